package schedulerreceiver

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer/consumertest"
	"go.opentelemetry.io/collector/receiver/receivertest"

	"github.com/gpumeter/gpumeter/internal/await"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/workload"
	"github.com/gpumeter/gpumeter/receiver/schedulerreceiver/internal/metadata"
)

// machine is a host with the ticks of a machine.
type machine struct{ ticks chan node.Tick }

func (m machine) GetExtensions() map[component.ID]component.Component {
	return map[component.ID]component.Component{component.MustNewID("gpu"): m}
}

func (machine) Start(context.Context, component.Host) error { return nil }
func (machine) Shutdown(context.Context) error              { return nil }

func (m machine) Subscribe() (ticks <-chan node.Tick, cancel func()) {
	return m.ticks, func() { close(m.ticks) }
}

// Catches series of a machine that take the place of those of the cluster, begin anew with each process, lack the cluster, or name
// one that pods of Slurm's nodes do not have.
func TestNode(t *testing.T) {
	epoch := time.Date(2026, 11, 19, 12, 0, 0, 0, time.UTC)
	cfg := createDefaultConfig().(*Config)
	cfg.Scheduler, cfg.Node = nodeKind, NodeConfig{Cluster: "prod", StateDir: filepath.Join(t.TempDir(), "work")}
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	tick := func(s int, jobs ...*workload.Job) node.Tick {
		var r node.Reading
		for _, j := range jobs {
			r.Holders = append(r.Holders, node.Holder{Workload: workload.Workload{Job: j}, Granted: true, Whole: true, Works: s > 10})
		}
		r.ID.UUID = "A"
		return node.Tick{Time: epoch.Add(time.Duration(s) * time.Second), Host: "gn1", Resource: map[string]string{"k8s.node.name": "gn1"}, Readings: []node.Reading{r}}
	}
	at := func(s int) time.Time { return epoch.Add(time.Duration(s) * time.Second) }
	jobs := []*workload.Job{
		{ID: "a", Scheduler: "kubernetes", Queue: "ml", Created: at(1), Started: at(5)},
		{ID: "b", Scheduler: "slurm", Cluster: "hpc", Queue: "gpu", Created: at(2), Started: at(8)},
	}
	for round := range 2 {
		sink := &consumertest.MetricsSink{}
		r, err := NewFactory().CreateMetrics(t.Context(), receivertest.NewNopSettings(metadata.Type), cfg, sink)
		if err != nil {
			t.Fatal(err)
		}
		m := machine{make(chan node.Tick)}
		if err := r.Start(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		if round == 0 {
			m.ticks <- tick(0)
			m.ticks <- tick(10, jobs...)
			if n := len(sink.AllMetrics()); n != 0 {
				t.Errorf("%d batches before anybody worked", n)
			}
		}
		m.ticks <- tick(20+10*round, jobs...)
		await.True(t, "the counts are reported", func() bool { return len(sink.AllMetrics()) == 1 })
		rm := sink.AllMetrics()[0].ResourceMetrics().At(0)
		if diff := cmp.Diff(map[string]any{"host.name": "gn1", "k8s.node.name": "gn1", "service.name": "gpumeter"}, rm.Resource().Attributes().AsRaw()); diff != "" {
			t.Errorf("resource (-want +got):\n%s", diff)
		}
		if name := rm.ScopeMetrics().At(0).Scope().Name(); name == metadata.ScopeName || name == queuesScope {
			t.Errorf("the scope is %s", name)
		}
		got := map[string]float64{}
		for _, metric := range rm.ScopeMetrics().At(0).Metrics().All() {
			for _, p := range metric.Histogram().DataPoints().All() {
				a := p.Attributes().AsRaw()
				key := metric.Name() + " " + a["scheduler.type"].(string) + " " + a["scheduler.cluster"].(string)
				for _, label := range []string{"scheduler.queue", "scheduler.job.phase", "scheduler.job.size"} {
					if v, ok := a[label]; ok {
						key += " " + v.(string)
					}
				}
				got[key] = p.Sum()
				if since := p.StartTimestamp().AsTime(); !since.Equal(epoch) || p.Count() != 1 {
					t.Errorf("%s: %d since %v", key, p.Count(), since)
				}
			}
		}
		if diff := cmp.Diff(map[string]float64{
			"scheduler.job.first_work.duration kubernetes prod ml": 19, "scheduler.job.phase.duration kubernetes prod warmup 1": 15,
			"scheduler.job.first_work.duration slurm hpc gpu": 18, "scheduler.job.phase.duration slurm hpc warmup 1": 12,
		}, got); diff != "" {
			t.Errorf("round %d (-want +got):\n%s", round, diff)
		}
		if err := r.Shutdown(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}
