package rules

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/hub/events"
	"github.com/gpumeter/gpumeter/internal/query"
)

func (f *world) up(from, to time.Duration, host, gpu, cluster string) {
	f.add(from, to, 1, "__name__", "gpu_up", "host_name", host, "gpu_uuid", host+"/"+gpu, "gpu_index", gpu[1:], "k8s_cluster_name", cluster)
}

func (f *world) commit() {
	f.t.Helper()
	if r, err := f.a.Commit(); err != nil || r.Refused > 0 {
		f.t.Fatal(r, err)
	}
}

// Catches a node reported missing because its cluster name appeared or disappeared, a missing
// node masked by a node of the same name in another cluster, and a node reported twice.
func TestMissingLateCluster(t *testing.T) {
	t.Parallel()
	f := newWorld(t)
	f.up(40*time.Minute, 20*time.Minute, "late", "G1", "")
	f.up(19*time.Minute, 0, "late", "G1", "x")
	f.up(40*time.Minute, 10*time.Minute, "early", "G1", "x")
	f.up(9*time.Minute, 0, "early", "G1", "")
	f.up(40*time.Minute, 10*time.Minute, "renamed", "G1", "x")
	f.up(9*time.Minute, 0, "renamed", "G1", "y")
	f.up(40*time.Minute, 10*time.Minute, "renamed", "G2", "x") // did not move to the new name
	f.up(40*time.Minute, 30*time.Minute, "half", "G1", "")
	f.up(40*time.Minute, 30*time.Minute, "half", "G2", "")
	f.up(29*time.Minute, 0, "half", "G1", "x")
	f.up(40*time.Minute, 30*time.Minute, "gone", "G1", "")
	f.up(40*time.Minute, 30*time.Minute, "gone", "G2", "") // G2 is unreadable from here on
	f.up(29*time.Minute, 8*time.Minute, "gone", "G1", "x")
	f.up(40*time.Minute, 8*time.Minute, "twin", "G1", "x")
	f.up(40*time.Minute, 0, "twin", "G2", "y")
	f.commit()
	list, err := Evaluate(t.Context(), f.s, now)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, x := range list {
		got = append(got, fmt.Sprintf("%s %s %s %s %g", x.Rule, x.Labels["k8s_cluster_name"], x.Labels["host_name"], x.Labels["gpu_uuid"], x.Value))
	}
	want := []string{MissingDevice + "  half half/G2 0", MissingDevice + " x renamed renamed/G2 0", MissingNode + " x gone  2", MissingNode + " x twin  1"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// Catches a node or device reported back only because it has been missing for over an hour, one
// reported again when a label ages out, and one that never comes back.
func TestMissingForLong(t *testing.T) {
	t.Parallel()
	f := newWorld(t)
	f.up(5*time.Hour, 0, "a", "G1", "x")
	f.up(5*time.Hour, 4*time.Hour, "a", "G2", "x")
	f.up(5*time.Hour, 250*time.Minute, "b", "G3", "")
	f.up(249*time.Minute, 4*time.Hour, "b", "G3", "x")
	f.up(20*time.Minute, 0, "b", "G3", "") // back, before its cluster is known
	f.up(10*time.Minute, 0, "a", "G2", "x")
	f.up(5*time.Hour, 250*time.Minute, "c", "G4", "x")
	f.up(249*time.Minute, 4*time.Hour, "c", "G4", "")
	f.commit()
	var w Watch
	var got []string
	for ago := 5 * time.Hour; ago >= 0; ago -= time.Minute {
		at := now.Add(-ago)
		found, err := w.Evaluate(t.Context(), f.s, at)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range w.Update(found, at) {
			e := c.Event()
			got = append(got, fmt.Sprintf("%s %s %s%s", ago, e.Attributes["gpu.finding.state"], e.Attributes["host.name"], e.Attributes["gpu.uuid"]))
		}
	}
	want := []string{
		"3h54m0s open aa/G2", "3h54m0s open b", "3h54m0s open c",
		"19m0s closed b", "9m0s closed aa/G2",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	// A missing node expires eventually, and the event does not claim that it is back.
	var old Watch
	x := Finding{Rule: MissingNode, Severity: "ERROR", Labels: query.Labels{"host_name": "old"}, Reason: "r"}
	old.Update([]Finding{x}, now.Add(-missedFor))
	old.Update([]Finding{x}, now.Add(-missedFor))
	var said []string
	for i := range 3 {
		at := now.Add(time.Duration(i) * time.Second)
		found, err := old.Evaluate(t.Context(), f.s, at)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range old.Update(found, at) {
			if e := c.Event(); c.Ended {
				said = append(said, e.Body)
			}
		}
	}
	if diff := cmp.Diff([]string{"expired: r"}, said); diff != "" {
		t.Error(diff)
	}
}

// Catches an unbounded list of missing devices, and one that drops the newest first.
func TestMissingIsBounded(t *testing.T) {
	t.Parallel()
	f := newWorld(t)
	var open []Change
	for i := range maxFindings + 1 {
		open = append(open, Change{Finding: Finding{Rule: MissingNode, Labels: query.Labels{"host_name": fmt.Sprintf("%04d", i)}}, Since: now.Add(time.Duration(i-5000) * time.Minute)})
	}
	found, err := evaluate(t.Context(), f.s, open, now)
	if err != nil || len(found) != maxFindings || found[0].Labels["host_name"] != "0001" {
		t.Errorf("kept %d of %d, the first is %v; %v", len(found), len(open), found[0].Labels, err)
	}
}

// Catches a finding that was open before a restart and is reported again, never closes or closes
// twice, and another service's events mistaken for the hub's.
func TestLoad(t *testing.T) {
	t.Parallel()
	f := newWorld(t)
	one := func(rule, severity string, l query.Labels) Finding {
		return Finding{Rule: rule, Severity: severity, Labels: l, Reason: rule + " is so", Action: "do"}
	}
	still := one(MissingNode, "ERROR", query.Labels{"host_name": "still", "k8s_node_name": "s", "k8s_cluster_name": "x"})
	list := []Finding{
		still,
		one(MissingNode, "ERROR", query.Labels{"host_name": "back"}),
		one(SlowClock, "WARN", query.Labels{"host_name": "a", "gpu_uuid": "G", "gpu_index": "0", "gpu_model": "m", "gpu_workload_kind": "job", "gpu_workload_name": "w", "gpu_workload_team": "t", "k8s_namespace_name": "n"}),
		one(RankBehind, "ERROR", query.Labels{"host_name": "a", "comm_id_hash": "c", "rank": "3", "nranks": "4"}),
		one(BudgetBurns, "ERROR", query.Labels{"gen_ai_request_model": "m", "gpumeter_slo_objective": "errors", "gpumeter_slo_severity": "page", "gpu_workload_kind": "process", "gpu_workload_name": "python", "user_name": "ann"}),
		one(BudgetBurns, "ERROR", query.Labels{"gen_ai_request_model": "m", "gpumeter_slo_objective": "errors", "gpumeter_slo_severity": "page", "gpu_workload_kind": "slurm_job", "gpu_workload_name": "j", "slurm_user": "bob", "slurm_account": "lab"}),
		one(OverQuota, "WARN", query.Labels{"quota": "vision/gpus", "source": "kubernetes", "unit": "gpus", "gpu_workload_team": "t"}),
	}
	write := func(changes []Change) {
		t.Helper()
		var list []events.Event
		for i := range changes {
			list = append(list, changes[i].Event())
		}
		if err := f.s.AppendEvents(t.Context(), list); err != nil {
			t.Fatal(err)
		}
	}
	var before Watch
	ended := one(MissingNode, "ERROR", query.Labels{"host_name": "ended"})
	for i := range 5 {
		found := list
		if i < 2 {
			found = append([]Finding{ended}, list...)
		}
		write(before.Update(found, now.Add(time.Duration(i-20)*time.Minute)))
	}
	agents := Change{Finding: one("xid", "ERROR", query.Labels{"host_name": "a"}), Since: now, Time: now.Add(-time.Minute)}
	e := agents.Event()
	e.Attributes["service.name"] = "gpumeter"
	if err := f.s.AppendEvents(t.Context(), []events.Event{e}); err != nil {
		t.Fatal(err)
	}

	var after, quotas Watch
	if err := after.Load(t.Context(), f.s, now, func(rule string) bool { return rule != OverQuota }); err != nil {
		t.Fatal(err)
	}
	if err := quotas.Load(t.Context(), f.s, now, func(rule string) bool { return rule == OverQuota }); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before.Active(), append(quotas.Active(), after.Active()...), cmp.Transformer("byKey", func(list []Change) map[string]Change {
		out := map[string]Change{}
		for _, c := range list {
			out[c.Key()] = c
		}
		return out
	})); diff != "" {
		t.Error(diff)
	}
	var got []string
	for i := range 3 {
		at := now.Add(time.Duration(i) * time.Second)
		for _, c := range append(after.Update([]Finding{still}, at), quotas.Update(nil, at)...) {
			e := c.Event()
			got = append(got, strings.Join([]string{fmt.Sprint(i), e.Attributes["gpu.finding.state"], c.Rule, c.Labels["host_name"]}, " "))
		}
	}
	want := []string{"1 closed " + MissingNode + " back", "1 closed " + RankBehind + " a", "1 closed " + BudgetBurns + " ", "1 closed " + BudgetBurns + " ", "1 closed " + SlowClock + " a", "1 closed " + OverQuota + " "}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
