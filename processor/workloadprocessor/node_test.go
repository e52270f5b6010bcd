package workloadprocessor

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/processor/processortest"
	"go.opentelemetry.io/otel/attribute"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/workload"
	"github.com/gpumeter/gpumeter/processor/workloadprocessor/internal/metadata"
)

var encoder = attribute.DefaultEncoder()

func pod(name string) workload.Workload {
	return workload.Workload{
		ID: "pod/" + name, Kind: "job", Name: name, Team: "red",
		Attributes: map[string]string{"k8s.pod.name": name + "-x", "k8s.namespace.name": "ml", "empty": ""},
	}
}

// of is what is added for the pod of a name.
func of(name string) string {
	return "gpu.workload.kind=job gpu.workload.name=" + name + " gpu.workload.team=red k8s.namespace.name=ml k8s.pod.name=" + name + "-x"
}

func held(w workload.Workload, partition string) node.Holder {
	return node.Holder{Workload: w, Partition: partition, Allocation: 1}
}

// machine is a node with a GPU of one pod, a shared one, a partitioned one, an unheld one, and
// one used by an unknown process.
func machine() node.Tick {
	a, b := pod("a"), pod("b")
	gone := held(pod("gone"), "")
	gone.Ended = true
	rest := held(workload.Workload{ID: "unallocated", Kind: workload.Unallocated}, "")
	unknown := held(workload.Workload{ID: "unattributed", Kind: workload.Unattributed}, "")
	r := func(index int, uuid, pci string, holders ...node.Holder) node.Reading {
		return node.Reading{Sample: device.Sample{ID: device.ID{Vendor: "nvidia", UUID: uuid, Index: index, PCI: pci}}, Up: true, Holders: holders}
	}
	part := func(uuid, alias, profile string, owner *workload.Workload) node.Reading {
		return node.Reading{Sample: device.Sample{
			ID:      device.ID{Vendor: "nvidia", UUID: uuid, Parent: "GPU-2", Index: 2, PCI: "0000:2b:00.0", Profile: profile},
			Aliases: []string{"nvidia2/gi9", alias},
		}, Up: true, Owner: owner}
	}
	one := r(0, "GPU-0", "0000:1a:00.0", held(a, ""), gone, rest)
	one.Owner = &a
	return node.Tick{
		Host: "node-1.example", Resource: map[string]string{"k8s.node.name": "node-1"},
		Readings: []node.Reading{
			one,
			r(1, "GPU-1", "0000:1b:00.0", held(a, ""), held(b, "")),
			r(2, "GPU-2", "0000:2b:00.0", held(a, "MIG-a"), held(b, "MIG-b"), held(a, "MIG-c"), held(b, "MIG-c")),
			part("MIG-a", "MIG-GPU-2/3/0", "1g.18gb", &a),
			part("MIG-b", "MIG-GPU-2/5/0", "1g.18gb", &b),
			part("MIG-c", "MIG-GPU-2/7/0", "2g.35gb", nil),
			r(3, "GPU-3", "", rest),
			r(4, "GPU-4", "", unknown),
		},
	}
}

// Foreign series about a device must get the owner of that device under any of its names, and
// never another owner.
func TestDevice(t *testing.T) {
	b := newBench(t, nil)
	f := func(resource, point pairs, want string) {
		t.Helper()
		if diff := cmp.Diff([]string{"", want}, b.added(gauge(resource, "m", point))); diff != "" {
			t.Errorf("added (-want +got):\n%s", diff)
		}
	}
	f(nil, pairs{"gpu.uuid", "GPU-0"}, "") // before the first tick
	b.tick(machine())
	for _, key := range createDefaultConfig().(*Config).Attributes.UUID {
		f(nil, pairs{key, "GPU-0"}, of("a"))
	}
	f(pairs{"gpu.uuid", "GPU-0"}, nil, of("a"))                             // the resource is the device
	f(pairs{"gpu.uuid", "GPU-0"}, pairs{"gpu.uuid", "GPU-1"}, "")           // the point knows better
	f(pairs{"gpu.partition.id", "MIG-a"}, pairs{"gpu.uuid", "GPU-1"}, "")   // no mixture of both
	f(pairs{"host.name", "elsewhere"}, pairs{"gpu.uuid", "GPU-0"}, of("a")) // there is one such device
	f(nil, pairs{"gpu.uuid", "GPU-9", "gpu.index", 0}, "")                  // the index of another machine
	f(nil, pairs{"UUID", "GPU-1", "gpu.uuid", "GPU-0"}, of("a"))            // the more trusted name
	f(nil, pairs{"gpu.uuid", "GPU-0", "UUID", "GPU-1"}, of("a"))

	for _, key := range []string{"gpu.index", "gpu"} {
		for _, value := range []any{0, "0", 0.0} {
			f(nil, pairs{key, value}, of("a"))
		}
	}
	f(pairs{"host.name", "node-1.example"}, pairs{"gpu.index", 0}, of("a"))
	f(pairs{"k8s.node.name", "node-1"}, pairs{"gpu.index", 0}, of("a"))
	f(pairs{"host.name", "node-2"}, pairs{"gpu.index", 0}, "")
	f(pairs{"host.name", "node-2"}, pairs{"gpu.index", 0, "Hostname", "node-1"}, of("a"))
	f(nil, pairs{"gpu.index", 0, "Hostname", "node-2"}, "")
	f(nil, pairs{"gpu.index", 7}, "")

	f(nil, pairs{"pci_bus_id", "00000000:1A:00.0"}, of("a"))
	f(nil, pairs{"gpu.pci.address", "0000:1a:00.0"}, of("a"))
	f(nil, pairs{"gpu.pci.address", "1a:00.0"}, of("a"))
	f(nil, pairs{"gpu.pci.address", "0001:1a:00.0"}, "")
	f(nil, pairs{"gpu.pci.address", "00010000:1a:00.0"}, "")
	f(pairs{"host.name", "node-2"}, pairs{"gpu.pci.address", "0000:1a:00.0"}, "")

	f(nil, pairs{"gpu.uuid", "GPU-1"}, "") // two have it
	f(nil, pairs{"gpu.uuid", "GPU-2"}, "")
	f(nil, pairs{"gpu.uuid", "GPU-3"}, "")
	f(nil, pairs{"gpu.uuid", "GPU-4"}, "")
	f(nil, pairs{"other", "GPU-0"}, "")
}

// A partition has an owner, and its siblings have others.
func TestPartition(t *testing.T) {
	b := newBench(t, nil)
	b.tick(machine())
	f := func(point pairs, want string) {
		t.Helper()
		if diff := cmp.Diff([]string{"", want}, b.added(gauge(nil, "m", point))); diff != "" {
			t.Errorf("added (-want +got):\n%s", diff)
		}
	}
	f(pairs{"gpu.uuid", "GPU-2", "gpu.partition.id", "MIG-a"}, of("a"))
	f(pairs{"gpu.partition.id", "MIG-b"}, of("b"))
	f(pairs{"UUID", "MIG-b"}, of("b"))
	f(pairs{"gpu.uuid", "GPU-0", "gpu.partition.id", "MIG-b"}, "") // not one of its partitions
	f(pairs{"gpu.uuid", "GPU-2", "gpu.partition.id", "MIG-c"}, "") // two have it
	f(pairs{"gpu.uuid", "GPU-2", "gpu.partition.id", "MIG-z"}, "")
	f(pairs{"UUID", "GPU-2", "gpu", "2", "GPU_I_ID", "3", "GPU_I_PROFILE", "1g.18gb"}, of("a"))
	f(pairs{"UUID", "GPU-2", "gpu", "2", "GPU_I_ID", "5", "GPU_I_PROFILE", "1g.18gb"}, of("b"))
	f(pairs{"UUID", "GPU-2", "gpu", "2", "GPU_I_ID", "6", "GPU_I_PROFILE", "1g.18gb"}, "")
	f(pairs{"UUID", "GPU-2", "GPU_I_PROFILE", "1g.18gb"}, "") // which of the two
	f(pairs{"UUID", "GPU-0", "GPU_I_ID", "3"}, "")            // it is not cut any more
}

// dcgmSeries are series of dcgm-exporter 4.x according to its README, written by hand in the
// form of the Prometheus receiver: labels are point attributes, and the resource is the
// exporter's own pod.
func dcgmSeries() pmetric.Metrics {
	md := gauge(pairs{"service.name", "dcgm", "k8s.pod.name", "dcgm-exporter-1", "container.id", "exporter"}, "DCGM_FI_DEV_GPU_TEMP",
		pairs{"gpu", "0", "UUID", "GPU-0", "pci_bus_id", "00000000:1A:00.0", "device", "nvidia0", "modelName", "NVIDIA H200", "Hostname", "node-1", "DCGM_FI_DRIVER_VERSION", "580"},
		pairs{"gpu", "1", "UUID", "GPU-1", "pci_bus_id", "00000000:1B:00.0", "device", "nvidia1", "modelName", "NVIDIA H200", "Hostname", "node-1"},
		pairs{"gpu", "2", "UUID", "GPU-2", "device", "nvidia2", "modelName", "NVIDIA H200", "GPU_I_PROFILE", "1g.18gb", "GPU_I_ID", "5", "Hostname", "node-1"},
		pairs{"gpu", "0", "UUID", "GPU-0", "Hostname", "node-1", "pod", "a-x", "namespace", "ml", "container", "main"},
	)
	metrics := md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics()
	add := func(name string) pmetric.Metric {
		m := metrics.AppendEmpty()
		m.SetName(name)
		return m
	}
	energy := add("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION").SetEmptySum()
	energy.SetIsMonotonic(true)
	attrs(energy.DataPoints().AppendEmpty().Attributes(), "gpu", "0", "UUID", "GPU-0", "Hostname", "node-1")
	attrs(add("level").SetEmptySum().DataPoints().AppendEmpty().Attributes(), "UUID", "GPU-0")
	attrs(add("h").SetEmptyHistogram().DataPoints().AppendEmpty().Attributes(), "UUID", "GPU-0")
	attrs(add("e").SetEmptyExponentialHistogram().DataPoints().AppendEmpty().Attributes(), "UUID", "GPU-0")
	attrs(add("s").SetEmptySummary().DataPoints().AppendEmpty().Attributes(), "UUID", "GPU-0")
	add("empty")
	return md
}

// An owner on a counter would end its series with each pod, and the exporter's own pod does not
// hold the devices.
func TestDCGM(t *testing.T) {
	f := func(counters bool, counter string, want ...string) {
		t.Helper()
		b := newBench(t, func(c *Config) { c.Counters = counters })
		b.tick(machine())
		b.view.containers = map[string]workload.Workload{"exporter": pod("exporter")}
		all := []string{"", of("a"), "", of("b"), of("a"), counter, of("a"), counter, counter, counter}
		if diff := cmp.Diff(all, b.added(dcgmSeries())); diff != "" {
			t.Errorf("added (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(want, b.counted()); diff != "" {
			t.Errorf("counted (-want +got):\n%s", diff)
		}
	}
	f(false, "", "gpumeter.workload.items outcome=ambiguous,signal=metrics 1", "gpumeter.workload.items outcome=matched,signal=metrics 4")
	f(true, of("a"), "gpumeter.workload.items outcome=ambiguous,signal=metrics 1", "gpumeter.workload.items outcome=matched,signal=metrics 8")

	// A batch of counters alone is about devices too.
	b := newBench(t, nil)
	b.tick(machine())
	b.view.containers = map[string]workload.Workload{"exporter": pod("exporter")}
	md := dcgmSeries()
	md.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().RemoveIf(func(m pmetric.Metric) bool { return m.Type() != pmetric.MetricTypeHistogram })
	if diff := cmp.Diff([]string{"", ""}, b.added(md)); diff != "" {
		t.Errorf("added (-want +got):\n%s", diff)
	}
}

// The next tick decides about the owner from then on.
func TestOwnerChange(t *testing.T) {
	b := newBench(t, nil)
	tick := machine()
	for _, name := range []string{"a", "b", "a"} {
		w := pod(name)
		tick.Readings = slices.Clone(tick.Readings)
		tick.Readings[0].Owner = &w
		b.tick(tick)
		if diff := cmp.Diff([]string{"", of(name)}, b.added(gauge(nil, "m", pairs{"gpu.uuid", "GPU-0"}))); diff != "" {
			t.Errorf("added (-want +got):\n%s", diff)
		}
	}
	b.tick(node.Tick{Paused: true})
	if diff := cmp.Diff([]string{"", ""}, b.added(gauge(nil, "m", pairs{"gpu.uuid", "GPU-0"}))); diff != "" {
		t.Errorf("added while nothing is read (-want +got):\n%s", diff)
	}
}

// Existing attributes stay. Half of one pod's attributes with half of another's would describe
// neither.
func TestNoOverwriting(t *testing.T) {
	b := newBench(t, nil)
	b.tick(machine())
	b.view.containers = map[string]workload.Workload{"c": pod("c")}
	f := func(md pmetric.Metrics, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, b.added(md)); diff != "" {
			t.Errorf("added (-want +got):\n%s", diff)
		}
	}
	const labels = "gpu.workload.kind=job gpu.workload.name=a gpu.workload.team=red"
	f(gauge(nil, "m", pairs{"UUID", "GPU-0", "k8s.pod.name", "a-x"}), "", labels+" k8s.namespace.name=ml")
	f(gauge(nil, "m", pairs{"UUID", "GPU-0", "k8s.pod.name", "other"}), "", labels)
	f(gauge(nil, "m", pairs{"UUID", "GPU-0", "k8s.pod.name", 7}), "", labels)
	f(gauge(nil, "m", pairs{"UUID", "GPU-0", "gpu.workload.kind", "job"}), "", "")
	f(gauge(pairs{"container.id", "c", "k8s.pod.name", "c-x"}, "m", nil), "gpu.workload.kind=job gpu.workload.name=c gpu.workload.team=red k8s.namespace.name=ml", "")
	f(gauge(pairs{"container.id", "c", "k8s.pod.name", "other"}, "m", nil), "", "")
	f(gauge(pairs{"container.id", "c", "gpu.workload.kind", "job"}, "m", nil), "", "")
	own := gauge(pairs{"container.id", "c"}, "gpu.info", pairs{"gpu.uuid", "GPU-0"})
	own.ResourceMetrics().At(0).ScopeMetrics().At(0).Scope().SetName("github.com/gpumeter/gpumeter/receiver/gpureceiver")
	f(own, "", "") // others join on it: it has one series whoever the owner is
}

// A pid is valid only on its own host: in every container the first process is 1.
func TestRunner(t *testing.T) {
	b := newBench(t, nil)
	b.tick(machine())
	b.view.containers = map[string]workload.Workload{"c1": pod("c")}
	b.view.processes = map[uint32]workload.Workload{42: pod("p")}
	spans := func(resource, span pairs) ptrace.Traces {
		td := ptrace.NewTraces()
		rs := td.ResourceSpans().AppendEmpty()
		attrs(rs.Resource().Attributes(), resource...)
		attrs(rs.ScopeSpans().AppendEmpty().Spans().AppendEmpty().Attributes(), span...)
		return td
	}
	records := func(resource, record pairs) plog.Logs {
		ld := plog.NewLogs()
		rl := ld.ResourceLogs().AppendEmpty()
		attrs(rl.Resource().Attributes(), resource...)
		attrs(rl.ScopeLogs().AppendEmpty().LogRecords().AppendEmpty().Attributes(), record...)
		return ld
	}
	f := func(resource, item pairs, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, b.addedToSpans(spans(resource, item))); diff != "" {
			t.Errorf("added to spans (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(want, b.addedToLogs(records(resource, item))); diff != "" {
			t.Errorf("added to logs (-want +got):\n%s", diff)
		}
		if slices.Contains(resource, any("gpu.uuid")) {
			return // points are not spans: their series live longer than an owner
		}
		if len(item) > 0 && want[0] != "" && want[1] != "" {
			want = []string{"", want[1]} // see TestDCGM
		}
		if diff := cmp.Diff(want, b.added(gauge(resource, "m", item))); diff != "" {
			t.Errorf("added to points (-want +got):\n%s", diff)
		}
	}
	f(pairs{"container.id", "c1"}, nil, of("c"), "")
	f(pairs{"container.id", "containerd://c1"}, nil, of("c"), "")
	f(pairs{"container.id", "c1", "host.name", "c-x"}, nil, of("c"), "")
	f(pairs{"container.id", "c9"}, nil, "", "")
	f(nil, pairs{"container.id", "c1"}, "", of("c"))
	f(pairs{"process.pid", 42, "host.name", "node-1"}, nil, of("p"), "")
	f(pairs{"process.pid", "42", "host.name", "node-1"}, nil, of("p"), "")
	f(pairs{"host.name", "node-1"}, pairs{"process.pid", 42}, "", of("p"))
	f(pairs{"process.pid", 42}, nil, "", "")
	f(pairs{"process.pid", 42, "host.name", "p-x"}, nil, "", "") // a pod is its own host
	f(pairs{"process.pid", 42, "host.name", "node-1", "k8s.pod.name", "other"}, nil, "", "")
	f(pairs{"process.pid", 43, "host.name", "node-1"}, nil, "", "")
	f(pairs{"container.id", "c1", "process.pid", 42, "host.name", "node-1"}, nil, of("c"), "")
	f(pairs{"container.id", "c1"}, pairs{"gpu.uuid", "GPU-0"}, of("c"), of("a"))
	f(pairs{"gpu.uuid", "GPU-0"}, nil, of("a"), "")
	f(pairs{"host.name", "node-1"}, pairs{"gpu.uuid", "GPU-1", "process.pid", 42}, "", of("p")) // of those who share it
	f(pairs{"host.name", "node-1"}, pairs{"gpu.uuid", "GPU-0", "process.pid", 43}, "", of("a"))
}

// Foreign telemetry may contain anything.
func TestHostile(t *testing.T) {
	b := newBench(t, nil)
	b.tick(machine())
	long := strings.Repeat("GPU-0", 1<<20)
	for _, bad := range []any{nil, "", true, -1, 1.5, 1e300, int64(1) << 62, long, []byte("GPU-0"), []any{"GPU-0"}, map[string]any{"a": map[string]any{}}} {
		for _, list := range createDefaultConfig().(*Config).Attributes.lists() {
			if bad == "" && list[0] == "host.name" {
				continue
			}
			got := b.added(gauge(pairs{list[0], bad}, "m", pairs{list[0], bad, "big", long}))
			if diff := cmp.Diff([]string{"", ""}, got); diff != "" {
				t.Errorf("%s: added (-want +got):\n%s", list[0], diff)
			}
		}
	}
	if got := b.added(pmetric.NewMetrics()); len(got) != 0 {
		t.Errorf("out of nothing came %q", got)
	}
}

// Without the extension there is nothing to learn from, which must be reported at start.
func TestNeedsExtension(t *testing.T) {
	f := func(h host, want string) {
		t.Helper()
		p, err := NewFactory().CreateMetrics(t.Context(), processortest.NewNopSettings(metadata.Type), createDefaultConfig(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Start(t.Context(), h); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error = %v, want %q", err, want)
		}
		if err := p.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	}
	f(host{}, "needs the gpu extension")
	f(host{component.MustNewID("gpu"): &view{}, component.MustNewIDWithName("gpu", "2"): &view{}}, "more than one")
}
