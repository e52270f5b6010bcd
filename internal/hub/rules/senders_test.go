package rules

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/query"
)

// agent writes what one agent says of its start, every 10 seconds between two moments.
func (f *world) agent(from, to, began time.Duration, pairs ...string) {
	for at := from; at >= to; at -= 10 * time.Second {
		f.a.Gauge(labels.FromStrings(append([]string{"__name__", fleet.SeriesAgentStart}, pairs...)...), now.Add(-at).UnixMilli(),
			float64(now.Add(-began).UnixMilli())/1e3)
	}
}

// Catches two senders of a device or of a node that nobody notices, and restarts, moves, a second path of one
// agent and equal names in two clusters that are taken for two senders.
func TestTwoSenders(t *testing.T) {
	t.Parallel()
	f := newWorld(t)
	const hour = time.Hour
	// The same labels: the values of one series alternate.
	f.agent(30*time.Minute, 0, hour, "host_name", "alternating")
	f.agent(8*time.Minute-5*time.Second, 0, 8*time.Minute, "host_name", "alternating")
	// A systemd unit and a DaemonSet: two series.
	f.agent(30*time.Minute, 0, hour, "host_name", "both")
	f.agent(5*time.Minute, 0, 5*time.Minute, "host_name", "both", "k8s_node_name", "both.local", "k8s_cluster_name", "x")
	// None of these has two agents.
	f.agent(30*time.Minute, 6*time.Minute, hour, "host_name", "restarted")
	f.agent(6*time.Minute-5*time.Second, 0, 6*time.Minute, "host_name", "restarted")
	f.agent(30*time.Minute, 6*time.Minute, hour, "host_name", "new-pod", "instance", "1")
	f.agent(6*time.Minute-5*time.Second, 0, 6*time.Minute, "host_name", "new-pod", "instance", "2")
	f.agent(30*time.Minute, 0, hour, "host_name", "two-paths", "instance", "1")
	f.agent(30*time.Minute, 0, hour, "host_name", "two-paths", "instance", "2")
	f.agent(30*time.Minute, 0, hour, "host_name", "n1", "k8s_cluster_name", "x")
	f.agent(30*time.Minute, 0, 2*hour, "host_name", "n1", "k8s_cluster_name", "y")

	up := func(from, to time.Duration, host string, uuids ...string) {
		for _, uuid := range uuids {
			f.add(from, to, 1, "__name__", "gpu_up", "host_name", host, "gpu_uuid", uuid, "gpu_vendor", "tpu")
		}
	}
	up(30*time.Minute, 0, "pod-1", "GPU-1", "GPU-2", "GPU-6") // one machine under two names
	up(4*time.Minute, 0, "pod-2", "GPU-1", "GPU-2")
	up(4*time.Minute, 0, "pod-3", "GPU-6")
	up(30*time.Minute, 3*time.Minute, "old-host", "GPU-3", "GPU-4") // moved
	up(2*time.Minute, 0, "new-host", "GPU-3")
	up(2*time.Minute, 0, "newer-host", "GPU-4")
	for _, host := range []string{"t1", "t2", "t3", "t4", "t5"} { // earlier agents in containers
		up(30*time.Minute, 0, host, "tpu-0000:00:04.0", "tpu-0000:00:05.0")
	}
	f.commit()
	got, err := senders(t.Context(), f.s, now)
	if err != nil {
		t.Fatal(err)
	}
	const (
		stop    = "Stop all agents of the node but one, or give the machines different names: gauges alternate between the agents. Bills count every second of a device once. If the clock of the node was set back, the finding ends by itself."
		same    = "If the names belong to one machine, stop one of its agents or give both the same --host-name. If not, set a different host.id on each machine: see Device IDs in docs/architecture.md."
		upgrade = "Upgrade the agents of these nodes: an ID from a PCI address is not unique in a fleet."
	)
	want := []Finding{
		{TwoSenders, "WARN", query.Labels{"host_name": "pod-1", "gpumeter_senders": "pod-1 and pod-2"}, "pod-1 and pod-2 report the same 2 devices; a device counts once", same, 2},
		{TwoSenders, "WARN", query.Labels{"host_name": "pod-1", "gpumeter_senders": "pod-1 and pod-3"}, "pod-1 and pod-3 report the same device; a device counts once", same, 1},
		{TwoSenders, "WARN", query.Labels{}, "t1, t2, t3 and 2 more have devices with the same IDs; each node's devices count", upgrade, 2},
		{TwoSenders, "WARN", query.Labels{"host_name": "alternating"}, "2 agents send as node alternating, since 2026-03-07 12:14:15 and 2026-03-07 13:06:15 UTC", stop, 2},
		{TwoSenders, "WARN", query.Labels{"host_name": "both", "k8s_node_name": "both.local", "k8s_cluster_name": "x"}, "2 agents send as node both.local, since 2026-03-07 12:14:15 and 2026-03-07 13:09:15 UTC", stop, 2},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// Catches a finding of two senders that is repeated, that never ends, or that a restart of the hub forgets.
func TestTwoSendersOnce(t *testing.T) {
	t.Parallel()
	f := newWorld(t)
	f.agent(60*time.Minute, 0, 2*time.Hour, "host_name", "a")
	f.agent(40*time.Minute-5*time.Second, 30*time.Minute, 40*time.Minute, "host_name", "a")
	f.up(60*time.Minute, 0, "a", "G1", "")
	f.up(60*time.Minute, 0, "b", "G1", "")
	f.add(50*time.Minute, 30*time.Minute, 1, "__name__", "gpu_up", "host_name", "b", "gpu_uuid", "a/G1", "gpu_index", "1")
	f.commit()
	w := &Watch{}
	var got []string
	for ago := 60 * time.Minute; ago >= 0; ago -= time.Minute {
		at := now.Add(-ago)
		found, err := w.Evaluate(t.Context(), f.s, at)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range w.Update(found, at) {
			e := c.Event()
			got = append(got, fmt.Sprintf("%s %s %s", ago, e.Attributes["gpu.finding.state"], e.Attributes["gpu.finding.reason"]))
			if back, ok := parse(&e); !ok || back.Key() != c.Key() {
				t.Errorf("the event of %s is read as %s", c.Key(), back.Key())
			}
		}
	}
	want := []string{
		"47m0s open a and b report the same device; a device counts once",
		"37m0s open 2 agents send as node a, since 2026-03-07 11:14:15 and 2026-03-07 12:34:15 UTC",
	}
	if diff := cmp.Diff(want, got[:min(len(got), 2)]); diff != "" {
		t.Error(diff)
	}
	if len(got) != 4 {
		t.Errorf("%d changes, want each finding opened and closed once: %q", len(got), got)
	}
}

// Catches a device that is missing on its old host although it moved or has its new ID, and a node that is missing
// although it was renamed.
func TestMissingElsewhere(t *testing.T) {
	t.Parallel()
	f := newWorld(t)
	up := func(from, to time.Duration, host, uuid string) {
		f.add(from, to, 1, "__name__", "gpu_up", "host_name", host, "gpu_uuid", uuid, "gpu_index", "0", "gpu_vendor", "tpu")
	}
	up(40*time.Minute, 0, "a", "GPU-0")
	up(40*time.Minute, 20*time.Minute, "a", "GPU-1")
	up(19*time.Minute, 0, "b", "GPU-1")
	up(40*time.Minute, 20*time.Minute, "old-name", "GPU-2")
	up(19*time.Minute, 0, "new-name", "GPU-2")
	up(40*time.Minute, 20*time.Minute, "upgraded", "tpu-0123456789abcdef0123456789abcdef-0000:00:04.0")
	up(40*time.Minute, 20*time.Minute, "upgraded", "tpu-0000:00:05.0")
	up(19*time.Minute, 0, "upgraded", "tpu-1f0c83b2a4d5e697-0000:00:04.0")
	up(40*time.Minute, 20*time.Minute, "gone", "tpu-0000:00:06.0")
	up(40*time.Minute, 0, "other", "tpu-0000:00:06.0") // not the same device
	if diff := cmp.Diff([]string{MissingDevice + " upgraded tpu-0000:00:05.0 ", MissingNode + " gone  "}, f.found()); diff != "" {
		t.Error(diff)
	}
}
