package workloadprocessor

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"

	"github.com/gpumeter/gpumeter/internal/workload"
)

// allocation returns what an agent on a host says at a time: a point for each holder, and
// for what nobody holds.
func allocation(at time.Time, resource pairs, points ...pairs) pmetric.Metrics {
	md := gauge(resource, allocationMetric, points...)
	sm := md.ResourceMetrics().At(0).ScopeMetrics().At(0)
	sm.Scope().SetName(agentScopes + "receiver/gpureceiver")
	free := sm.Metrics().AppendEmpty()
	free.SetName(unallocatedMetric)
	list := free.SetEmptyGauge().DataPoints()
	sm.Metrics().At(0).Gauge().DataPoints().RemoveIf(func(dp pmetric.NumberDataPoint) bool {
		dp.SetTimestamp(pcommon.NewTimestampFromTime(at))
		kind, ok := dp.Attributes().Get(workload.KeyKind)
		if !ok || kind.Str() != workload.Unallocated {
			return false
		}
		dp.SetDoubleValue(1)
		dp.CopyTo(list.AppendEmpty())
		return true
	})
	return md
}

// has is a point of one who has a device: of the pod, or of nobody with a kind alone.
func has(index int, uuid, name string, more ...any) pairs {
	p := pairs{
		"gpu.uuid", uuid, "gpu.index", index, "gpu.model", "H200", "gpu.vendor", "nvidia", "gpu.share.basis", "exclusive",
		"gpu.workload.kind", "job", "gpu.workload.name", name, "gpu.workload.team", "red", "k8s.namespace.name", "ml", "k8s.pod.name", name + "-x",
	}
	if name == "" {
		p = pairs{"gpu.uuid", uuid, "gpu.index", index, "gpu.workload.kind", "unallocated"}
	}
	return append(p, more...)
}

// gateway is a processor with a clock of its own.
type gateway struct {
	*bench

	now time.Time
}

func newGateway(t testing.TB, change func(*Config)) *gateway {
	t.Helper()
	g := &gateway{now: time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)}
	g.bench = newBench(t, func(c *Config) {
		c.Mode = modeGateway
		if change != nil {
			change(c)
		}
	})
	g.knowledge.fleet.now = func() time.Time { return g.now }
	return g
}

// hear lets an agent on host say something, which must pass unchanged.
func (g *gateway) hear(host string, points ...pairs) {
	g.t.Helper()
	for _, line := range g.added(allocation(g.now, pairs{"host.name", host}, points...)) {
		if line != "" {
			g.t.Errorf("the agent's own series got %s", line)
		}
	}
}

// ask checks what is added to a point.
func (g *gateway) ask(resource, point pairs, want string) {
	g.t.Helper()
	if diff := cmp.Diff([]string{"", want}, g.added(gauge(resource, "m", point))); diff != "" {
		g.t.Errorf("added (-want +got):\n%s", diff)
	}
}

// A gateway sees the devices, processes and containers of others: those of its own node,
// and an index or a UUID without a host, must mean nothing to it.
func TestGateway(t *testing.T) {
	g := newGateway(t, nil)
	g.view.processes, g.view.containers = nil, nil
	g.ask(pairs{"host.name", "n1"}, pairs{"gpu.uuid", "GPU-0"}, "")
	g.added(allocation(g.now, pairs{"host.name", "n1.example", "k8s.node.name", "n1"}, has(0, "GPU-0", "a"), has(1, "GPU-1", "b", "gpu.up", 1), has(1, "GPU-1", "", "k", "v")))
	g.hear("n2", has(0, "GPU-8", "c"), has(1, "GPU-9", "c"), has(1, "GPU-9", "d"), has(2, "GPU-10", ""))
	for _, host := range []string{"n1", "n1.example"} {
		g.ask(pairs{"host.name", host}, pairs{"gpu.uuid", "GPU-0"}, of("a"))
		g.ask(pairs{"k8s.node.name", host}, pairs{"gpu", "1"}, of("b"))
		g.ask(nil, pairs{"UUID", "GPU-0", "gpu", "0", "Hostname", host}, of("a"))
	}
	g.ask(pairs{"host.name", "n2"}, pairs{"gpu.index", 0}, of("c"))
	g.ask(pairs{"host.name", "n2"}, pairs{"gpu.index", 1}, "") // two have it
	g.ask(pairs{"host.name", "n2"}, pairs{"gpu.index", 2}, "") // nobody has it
	g.ask(pairs{"host.name", "n2"}, pairs{"gpu.index", 3}, "")
	g.ask(pairs{"host.name", "n2"}, pairs{"gpu.uuid", "GPU-0"}, "")
	g.ask(pairs{"host.name", "n3"}, pairs{"gpu.index", 0}, "")
	g.ask(nil, pairs{"gpu.uuid", "GPU-0"}, "")
	g.ask(nil, pairs{"gpu.index", 0}, "")
	g.ask(pairs{"host.name", "n1"}, pairs{"gpu.pci.address", "0000:1a:00.0"}, "")
	g.ask(pairs{"host.name", "n1", "process.pid", 42, "container.id", "c"}, pairs{"process.pid", 42}, "")

	// What was learned of metrics is for logs, too.
	ld := plog.NewLogs()
	rl := ld.ResourceLogs().AppendEmpty()
	attrs(rl.Resource().Attributes(), "host.name", "n1")
	attrs(rl.ScopeLogs().AppendEmpty().LogRecords().AppendEmpty().Attributes(), "gpu.index", 0)
	if diff := cmp.Diff([]string{"", of("a")}, g.addedToLogs(ld)); diff != "" {
		t.Errorf("added to logs (-want +got):\n%s", diff)
	}
	want := []string{
		"gpumeter.workload.devices 5",
		"gpumeter.workload.items outcome=ambiguous,signal=metrics 1",
		"gpumeter.workload.items outcome=matched,signal=logs 1",
		"gpumeter.workload.items outcome=matched,signal=metrics 7",
		"gpumeter.workload.items outcome=unmatched,signal=metrics 7",
		"gpumeter.workload.refused  0",
	}
	if diff := cmp.Diff(want, g.counted()); diff != "" {
		t.Errorf("counted (-want +got):\n%s", diff)
	}
}

// An owner who is gone must not be named a tick longer, in whatever way he went.
func TestGatewayForgets(t *testing.T) {
	g := newGateway(t, nil)
	n1 := pairs{"host.name", "n1"}
	device := pairs{"gpu.uuid", "GPU-0"}
	next := func(d time.Duration) { g.now = g.now.Add(d) }
	g.hear("n1", has(0, "GPU-0", "a"))
	g.ask(n1, device, of("a"))

	next(10 * time.Second) // handed on
	g.hear("n1", has(0, "GPU-0", "b"))
	g.ask(n1, device, of("b"))

	ended := allocation(g.now.Add(time.Second), n1, has(0, "GPU-0", "b"), has(0, "GPU-0", ""))
	ended.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().At(0).Gauge().DataPoints().At(0).SetFlags(pmetric.DefaultDataPointFlags.WithNoRecordedValue(true))
	g.added(ended)
	g.ask(n1, device, "")

	next(10 * time.Second) // back, and free a tick later, which only gpu.unallocated says
	g.hear("n1", has(0, "GPU-0", "b"))
	g.ask(n1, device, of("b"))
	next(10 * time.Second)
	g.hear("n1", has(0, "GPU-0", ""))
	g.ask(n1, device, "")

	next(10 * time.Second) // back, and all of it ended without anybody else
	g.hear("n1", has(0, "GPU-0", "b"))
	g.ask(n1, device, of("b"))
	next(time.Second)
	last := allocation(g.now, n1, has(0, "GPU-0", "b"))
	last.ResourceMetrics().At(0).ScopeMetrics().At(0).Metrics().At(0).Gauge().DataPoints().At(0).SetFlags(pmetric.DefaultDataPointFlags.WithNoRecordedValue(true))
	g.added(last)
	g.ask(n1, device, "")
	if g.knowledge.fleet.size() != 0 || len(g.knowledge.fleet.known) != 0 {
		t.Error("something is left of it")
	}

	next(10 * time.Second) // an old tick comes late, then one of a queue on a disk
	g.hear("n1", has(0, "GPU-0", "c"))
	g.added(allocation(g.now.Add(-time.Second), n1, has(0, "GPU-0", "a")))
	g.added(allocation(g.now.Add(-time.Hour), n1, has(1, "GPU-1", "a")))
	g.ask(n1, device, of("c"))
	g.ask(n1, pairs{"gpu.uuid", "GPU-1"}, "")

	next(10 * time.Second) // another device in its place
	g.hear("n1", has(0, "GPU-5", "d"))
	g.ask(n1, pairs{"gpu.index", 0}, "") // for now it may be either
	next(5 * time.Minute)
	g.ask(n1, device, "") // nothing was heard of it
	g.hear("n1", has(0, "GPU-5", "d"))
	g.ask(n1, pairs{"gpu.index", 0}, of("d"))
	if n := g.knowledge.fleet.size(); n != 1 {
		t.Errorf("%d devices are known", n)
	}
}

// Half a batch names one owner where there are two. Two clusters may have nodes of one name.
func TestGatewayAmbiguous(t *testing.T) {
	g := newGateway(t, nil)
	n1 := pairs{"host.name", "n1"}
	g.hear("n1", has(0, "GPU-0", "a"))
	g.hear("n1", has(0, "GPU-0", "b"))
	g.ask(n1, pairs{"gpu.uuid", "GPU-0"}, "")
	g.hear("n1", has(1, "GPU-1", "a"))
	g.hear("n1", has(1, "GPU-8", "b"))
	g.ask(n1, pairs{"gpu.uuid", "GPU-1"}, of("a"))
	g.ask(n1, pairs{"gpu.index", 1}, "")

	// Agents do not say which instance of MIG a partition is.
	part := func(id, profile string) []any { return []any{"gpu.partition.id", id, "gpu.partition.profile", profile} }
	g.hear("n3", has(0, "GPU-3", "a", part("MIG-a", "1g.18gb")...), has(0, "GPU-3", "b", part("MIG-b", "2g.35gb")...), has(0, "GPU-3", "", part("MIG-c", "2g.35gb")...))
	n3 := pairs{"host.name", "n3"}
	g.ask(n3, pairs{"gpu.partition.id", "MIG-a"}, of("a"))
	g.ask(n3, pairs{"gpu.uuid", "GPU-3", "gpu.partition.id", "MIG-b"}, of("b"))
	g.ask(n3, pairs{"UUID", "GPU-3", "gpu", "0", "GPU_I_ID", "3", "GPU_I_PROFILE", "1g.18gb"}, of("a"))
	g.ask(n3, pairs{"UUID", "GPU-3", "gpu", "0", "GPU_I_ID", "4", "GPU_I_PROFILE", "2g.35gb"}, "")
	g.ask(n3, pairs{"UUID", "GPU-3", "GPU_I_ID", "4"}, "")
	g.ask(n3, pairs{"gpu.uuid", "GPU-3"}, "")
	g.hear("n4", has(0, "GPU-4", "a", part("MIG-d", "1g.18gb")...))
	g.ask(pairs{"host.name", "n4"}, pairs{"gpu.uuid", "GPU-4"}, "") // he has a seventh of it
}

// Whoever can send metrics can send any: what is remembered of them is bounded.
func TestGatewayBounds(t *testing.T) {
	g := newGateway(t, func(c *Config) { c.MaxDevices = 10 })
	var many []pairs
	for i := range 100 {
		many = append(many, has(i, fmt.Sprint("GPU-", i), "a"))
	}
	g.hear("n1", many...)
	if n := g.knowledge.fleet.size(); n != 10 {
		t.Errorf("%d devices are known", n)
	}
	g.now = g.now.Add(6 * time.Minute) // those that are gone make room
	g.hear("n2", has(0, "GPU-0", "b"))
	g.ask(pairs{"host.name", "n2"}, pairs{"gpu.index", 0}, of("b"))

	long := strings.Repeat("x", 1<<20)
	g.hear("n2", has(0, long, "a"), has(1, "GPU-1", "a", "k8s.pod.label.x", long), has(2, "GPU-2", "a", long, "x"), pairs{"gpu.uuid", []byte("x")}, pairs{"gpu.uuid", 7, "gpu.index", "x"}, nil)
	g.hear(long, has(0, "GPU-0", "a"))
	g.hear("", has(0, "GPU-0", "a"))
	for i := range 3 {
		want := ""
		if i == 0 {
			want = of("b")
		}
		g.ask(pairs{"host.name", "n2"}, pairs{"gpu.index", i}, want)
	}
	wide := has(3, "GPU-3", "a")
	for i := range 1000 {
		wide = append(wide, fmt.Sprint("k", i), "v")
	}
	var holders []pairs
	for i := range 2000 {
		holders = append(holders, has(4, "GPU-4", fmt.Sprint(i)))
	}
	g.hear("n2", append(holders, wide)...)
	g.ask(pairs{"host.name", "n2"}, pairs{"gpu.index", 3}, "")
	g.ask(pairs{"host.name", "n2"}, pairs{"gpu.index", 4}, "")
	if n := len(g.knowledge.fleet.members[name{"n2", "GPU-4"}].holders); n != maxHolders {
		t.Errorf("%d holders are remembered", n)
	}
	if n := g.knowledge.fleet.refused.Load(); n != 90+2+1+2000-maxHolders {
		t.Errorf("%d were counted as refused", n)
	}
}

// The ticks of the extension must reach the processor, and one pipeline that ends must not
// take them from the others.
func TestSubscription(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		ask := func(want string) {
			t.Helper()
			synctest.Wait()
			if diff := cmp.Diff([]string{"", want}, b.added(gauge(nil, "m", pairs{"gpu.uuid", "GPU-0"}))); diff != "" {
				t.Errorf("added (-want +got):\n%s", diff)
			}
		}
		b.view.Publish(machine())
		ask(of("a"))
		if err := b.logs.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		next := machine()
		w := pod("b")
		next.Readings[0].Owner = &w
		b.view.Publish(next)
		ask(of("b"))
	})
}

// What is remembered of a container must not outlive what is known of it for long, nor
// hide that it became known.
func TestRecent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		ask := func(id, want string) {
			t.Helper()
			if diff := cmp.Diff([]string{want, ""}, b.added(gauge(pairs{"container.id", id}, "m", nil))); diff != "" {
				t.Errorf("added (-want +got):\n%s", diff)
			}
		}
		ask("c", "")
		b.view.containers = map[string]workload.Workload{"c": pod("a")}
		ask("c", of("a"))
		delete(b.view.containers, "c")
		ask("c", of("a"))
		time.Sleep(recentFor)
		ask("c", "")
		for i := range 2*recentLimit + 1 {
			id := fmt.Sprint(i)
			b.view.containers[id] = pod(id)
			ask(id, of(id))
		}
		if n := len(b.knowledge.here.containers.known); n > recentLimit {
			t.Errorf("%d containers are remembered", n)
		}
	})
}

// Pipelines run beside one another, and beside the ticks. The race detector judges.
func TestConcurrent(t *testing.T) {
	g := newGateway(t, nil)
	b := newBench(t, nil)
	b.view.containers = map[string]workload.Workload{"c": pod("c")}
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for n := range 50 {
				at := g.now.Add(time.Duration(n) * time.Second)
				for _, err := range []error{
					g.metrics.ConsumeMetrics(t.Context(), allocation(at, pairs{"host.name", fmt.Sprint(i % 2)}, has(0, "GPU-0", "a"))),
					g.metrics.ConsumeMetrics(t.Context(), gauge(pairs{"host.name", "0"}, "m", pairs{"gpu.index", 0})),
					b.metrics.ConsumeMetrics(t.Context(), gauge(pairs{"container.id", "c"}, "m", nil)),
					b.metrics.ConsumeMetrics(t.Context(), gauge(nil, "m", pairs{"gpu.index", 0})),
				} {
					if err != nil {
						t.Error(err)
					}
				}
				b.view.Publish(machine())
			}
		})
	}
	all.Wait()
	if n := g.knowledge.fleet.size(); n != 2 {
		t.Errorf("%d devices are known", n)
	}
}
