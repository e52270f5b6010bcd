package cost

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/device/nvidia"
	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/query/querytest"
)

// act is the behavior of one workload on one device over twelve hours.
type act struct {
	pod, uuid, model  string
	active            float64 // fraction of the time
	mean, peak        float64 // utilization
	memory, size      float64 // GiB
	ended, noActivity bool
	sm                float64 // peak SM activity, 0: not reported
	stopped           int     // minute after which it is inactive, 0: never
}

func (a act) write(m *querytest.Memory) {
	l := query.Labels{
		"gpu_uuid": a.uuid, "gpu_model": a.model, "gpu_workload_kind": "job", "gpu_workload_name": a.pod,
		"k8s_namespace_name": "ns", "k8s_pod_uid": a.pod, "host_name": "n", "gpu_workload_team": "t",
	}
	add := func(name string, at time.Time, v float64, more ...string) {
		s := maps.Clone(l)
		s["__name__"] = name
		for i := 0; i < len(more); i += 2 {
			s[more[i]] = more[i+1]
		}
		m.Add(s, at, v)
	}
	for i := range 12*60 + 1 {
		at := noon.Add(time.Duration(i-12*60) * time.Minute)
		if a.ended && i > 11*60 {
			return
		}
		add(fleet.SeriesAllocatedTime, at, float64(i*60))
		if !a.noActivity {
			worked := i
			if a.stopped > 0 {
				worked = min(i, a.stopped)
			}
			add(fleet.SeriesActiveTime, at, float64(worked*60)*a.active)
		}
		add("gpu_allocation_ratio", at, 1, "gpu_share_basis", "exclusive")
		u := a.mean
		if i%10 == 0 {
			u = a.peak
		}
		add("gpu_workload_utilization_ratio", at, u, "gpu_share_basis", "exclusive")
		add("gpu_workload_memory_used_bytes", at, a.memory*(1<<30), "gpu_share_basis", "exclusive")
		add("gpu_memory_total_bytes", at, a.size*(1<<30))
		if a.sm > 0 {
			add("gpu_sm_active_ratio", at, a.sm)
		}
	}
}

// Catches waste that is not found, found twice or priced wrongly, and a finding about healthy
// work.
func TestFindings(t *testing.T) {
	t.Parallel()
	m := querytest.NewMemory()
	list := []act{
		{pod: "busy", uuid: "g1", model: "NVIDIA H100 80GB HBM3", active: 1, mean: 0.95, peak: 1, memory: 70, size: 80},
		{pod: "hoarder", uuid: "g2", model: "NVIDIA H100 80GB HBM3", active: 0.3, stopped: 600, peak: 0.01, memory: 60, size: 80},
		{pod: "never", uuid: "g3", model: "NVIDIA H100 80GB HBM3", memory: 0.3, size: 80},
		{pod: "small", uuid: "g4", model: "NVIDIA H100 80GB HBM3", active: 1, mean: 0.1, peak: 0.12, memory: 7, size: 80},
		{pod: "half", uuid: "g5", model: "AMD Instinct MI300X", active: 1, mean: 0.3, peak: 0.4, memory: 60, size: 192},
		{pod: "waits", uuid: "g6", model: "NVIDIA H100 80GB HBM3", active: 0.9, mean: 0.3, peak: 1, memory: 60, size: 80},
		{pod: "gone", uuid: "g7", model: "NVIDIA H100 80GB HBM3", memory: 60, size: 80, ended: true},
		{pod: "silent", uuid: "g8", model: "Tenstorrent", noActivity: true, mean: 0.5, peak: 0.5, memory: 8, size: 32},
		{pod: "kernel", uuid: "g9", model: "NVIDIA H100 80GB HBM3", active: 1, mean: 1, peak: 1, sm: 0.02, memory: 60, size: 80},
	}
	for i := range 8 {
		a := act{pod: "eight", uuid: fmt.Sprintf("e%d", i), model: "NVIDIA H100 80GB HBM3", memory: 60, size: 80}
		if i < 3 {
			a.active, a.mean, a.peak = 1, 0.95, 1
		}
		list = append(list, a)
	}
	for _, a := range list {
		a.write(m)
	}
	p := mustParse(t, `{currency: USD, prices: [{match: {model: "NVIDIA*"}, rates: [{from: 2020-01-01, kind: spot, per_hour: 2}]}]}`)
	found, err := FindingsOf(t.Context(), m, p, noon.Add(-12*time.Hour), noon, Rules{Facts: device.Vendors{nvidia.Facts}}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	type short struct {
		rule, workload, perDay string
		devices                int
	}
	var got []short
	for _, f := range found {
		perDay := "-"
		if f.Priced {
			perDay = f.PerDay.String()
		}
		got = append(got, short{f.Rule, f.Workload, perDay, len(f.Devices)})
		if f.Summary == "" || len(f.Evidence) == 0 || f.Currency != "USD" || f.Labels["gpu_workload_team"] != "t" || f.Labels["gpu_uuid"] != "" {
			t.Errorf("incomplete finding: %+v", f)
		}
	}
	want := []short{
		{PartlyUsed, "ns/eight", "240.00", 5},
		{IdleHolder, "ns/hoarder", "48.00", 1},
		{BarelyUsed, "ns/kernel", "48.00", 1}, // a kernel runs, but the SMs are idle
		{NeverUsed, "ns/never", "48.00", 1},
		{FitsSmaller, "ns/small", "41.14", 1},
		{HostBound, "ns/waits", "25.44", 1},
		{FitsSmaller, "ns/half", "-", 1},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(short{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Catches a machine label that arrives an hour late and turns one device, and its price, into
// two.
func TestFindingsLateLabel(t *testing.T) {
	t.Parallel()
	m := querytest.NewMemory()
	for _, a := range []act{
		{pod: "hoarder", uuid: "g2", model: "NVIDIA H100 80GB HBM3", active: 0.3, stopped: 600, peak: 0.01, memory: 60, size: 80},
		{pod: "never", uuid: "g3", model: "NVIDIA H100 80GB HBM3", memory: 0.3, size: 80},
		{pod: "small", uuid: "g4", model: "NVIDIA H100 80GB HBM3", active: 1, mean: 0.1, peak: 0.12, memory: 7, size: 80},
		{pod: "two", uuid: "e1", model: "NVIDIA H100 80GB HBM3", memory: 60, size: 80},
		{pod: "two", uuid: "e2", model: "NVIDIA H100 80GB HBM3", active: 1, mean: 0.95, peak: 1, memory: 60, size: 80},
	} {
		a.write(m)
	}
	// relabelled is the same fleet with different labels from a moment on.
	relabelled := func(from time.Time, before, after query.Labels) *querytest.Memory {
		out := querytest.NewMemory()
		for _, s := range m.Series() {
			for _, p := range s.Points {
				l := maps.Clone(s.Labels)
				if p.Time.After(from) {
					maps.Copy(l, after)
				} else {
					maps.Copy(l, before)
				}
				out.Add(l, p.Time, p.Value)
			}
		}
		return out
	}
	p := mustParse(t, `currency: USD
prices:
  - {match: {k8s_cluster_name: "b"}, rates: [{from: 2020-01-01, kind: spot, per_hour: 2}]}
  - {match: {model: "NVIDIA*"}, rates: [{from: 2020-01-01, kind: spot, per_hour: 7}]}`)
	cluster := func(name string) query.Labels { return query.Labels{"k8s_cluster_name": name} }
	rules := Rules{Facts: device.Vendors{nvidia.Facts}}
	want, err := FindingsOf(t.Context(), relabelled(noon.Add(-24*time.Hour), nil, cluster("b")), p, noon.Add(-12*time.Hour), noon, rules, Options{})
	if err != nil || len(want) != 4 || want[0].PerDay.String() != "48.00" {
		t.Fatal(want, err)
	}
	for name, late := range map[string]*querytest.Memory{
		"comes":       relabelled(noon.Add(-11*time.Hour), nil, cluster("b")),
		"has come":    relabelled(noon.Add(-2*time.Minute), nil, cluster("b")),
		"another":     relabelled(noon.Add(-8*time.Hour), cluster("z"), cluster("b")),
		"one more":    relabelled(noon.Add(-8*time.Hour), cluster("a"), cluster("b")),
		"two of them": relabelled(noon.Add(-11*time.Hour), cluster("b"), query.Labels{"k8s_cluster_name": "b", "host_type": "p5"}),
	} {
		got, err := FindingsOf(t.Context(), late, p, noon.Add(-12*time.Hour), noon, rules, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
