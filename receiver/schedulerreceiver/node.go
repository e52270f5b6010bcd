package schedulerreceiver

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver"
	"go.uber.org/zap"

	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/scheduler/work"
	"github.com/gpumeter/gpumeter/internal/ticks"
	"github.com/gpumeter/gpumeter/receiver/schedulerreceiver/internal/metadata"
)

// NodeConfig configures what the agent of a machine adds: when the jobs on it did their first work.
type NodeConfig struct {
	// Cluster is the value of scheduler.cluster of pods, as in KubernetesConfig. Slurm's jobs have their own.
	Cluster string `mapstructure:"cluster"`
	// StateDir is a folder for what has been counted. Empty: counts begin with each start.
	StateDir string `mapstructure:"state_dir"`
}

// nodeReceiver reports the first work of jobs on this machine.
type nodeReceiver struct {
	cfg    *Config
	log    *zap.Logger
	next   consumer.Metrics
	watch  *work.Watch
	cancel func()
	done   sync.WaitGroup

	trouble string // that was logged last
	refused bool   // the pipeline refused the last batch
	over    bool   // too many jobs
}

func newNode(cfg *Config, set receiver.Settings, next consumer.Metrics) *nodeReceiver {
	return &nodeReceiver{cfg: cfg, log: set.Logger, next: next}
}

// Start implements component.Component.
func (r *nodeReceiver) Start(_ context.Context, host component.Host) error {
	view, err := ticks.Need(host, "scheduler receiver of a node")
	if err != nil {
		return err
	}
	watch, err := work.New(r.cfg.Node.StateDir)
	if err != nil { // it counts anyway
		r.log.Warn("Counts of the first work of jobs begin anew", zap.Error(err))
	}
	subscription, cancel := view.Subscribe()
	r.watch, r.cancel = watch, cancel
	r.done.Go(func() {
		for t := range subscription {
			r.tick(&t)
		}
	})
	return nil
}

// Shutdown implements component.Component.
func (r *nodeReceiver) Shutdown(context.Context) error {
	if r.cancel == nil {
		return nil
	}
	r.cancel()
	r.done.Wait()
	return r.watch.Close()
}

func (r *nodeReceiver) tick(t *node.Tick) {
	if text := errText(r.watch.See(t)); text != r.trouble {
		if r.trouble = text; text == "" {
			r.log.Info("The first work of jobs is kept again")
		} else {
			r.log.Error("The first work of jobs is not reported while it cannot be kept", zap.String("reason", text))
		}
	}
	if over := r.watch.Refused() > 0; over && !r.over {
		r.over = true
		r.log.Warn("Left out the first work of jobs: too many on this machine")
	}
	md := r.emit(t)
	if md.DataPointCount() == 0 {
		return
	}
	// A tick is worth delivering even while the Collector shuts down.
	err := r.next.ConsumeMetrics(context.Background(), md)
	if refused := err != nil; refused != r.refused {
		if r.refused = refused; refused {
			r.log.Error("The pipeline refuses the first work of jobs", zap.Error(err))
		} else {
			r.log.Info("The pipeline accepts the first work of jobs again")
		}
	}
}

// nodeScope is the scope of what a node counts. Who keeps the last batch of each scope would else keep either this or what the
// watch of the cluster says.
var nodeScope = metadata.ScopeName + "/node"

func (r *nodeReceiver) emit(t *node.Tick) pmetric.Metrics {
	md := pmetric.NewMetrics()
	totals := r.watch.Totals()
	if len(totals.Sums) == 0 {
		return md
	}
	rm := md.ResourceMetrics().AppendEmpty()
	ticks.Resource(nodeResource{pcommon.NewResource()}, t).MoveTo(rm.Resource())
	sm := rm.ScopeMetrics().AppendEmpty()
	sm.Scope().SetName(nodeScope)
	for _, s := range totals.Sums {
		cluster := s.Cluster
		if s.Scheduler == kubernetesKind {
			cluster = r.cfg.Node.Cluster
		}
		worked(sm.Metrics(), cluster, s, totals.Since, pcommon.NewTimestampFromTime(t.Time))
	}
	return md
}

// worked adds the histograms of first work of one scheduler.
func worked(to pmetric.MetricSlice, cluster string, s *work.Sums, since time.Time, ts pcommon.Timestamp) {
	labels := map[string]string{"scheduler.cluster": cluster, "scheduler.type": s.Scheduler}
	put(to, []histogram{
		{"scheduler.job.first_work.duration", "Time from the creation of a job with GPUs until its first work on one of them, as the agent of its node saw it, each job once.", s.Worked, []string{"scheduler.queue"}, labels},
		{"scheduler.job.phase.duration", phaseText, s.Phases, []string{"scheduler.job.phase", "scheduler.job.size"}, labels},
	}, since, ts)
}

// nodeResource is the resource of a machine.
type nodeResource struct{ pcommon.Resource }

func (r nodeResource) SetHostName(name string)    { r.Attributes().PutStr("host.name", name) }
func (r nodeResource) SetServiceName(name string) { r.Attributes().PutStr("service.name", name) }
func (r nodeResource) SetGpumeterSimulated(v bool) {
	r.Attributes().PutBool("gpumeter.simulated", v)
}

// Emit implements ticks.Builder.
func (r nodeResource) Emit() pcommon.Resource { return r.Resource }
