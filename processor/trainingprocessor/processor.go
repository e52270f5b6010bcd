package trainingprocessor

import (
	"cmp"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/processor"
	"go.opentelemetry.io/collector/processor/processorhelper"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"

	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/ticks"
	"github.com/gpumeter/gpumeter/internal/workload"
)

const scopeName = "github.com/gpumeter/gpumeter/processor/trainingprocessor"

// Config is the configuration under processors::training. There is nothing to set.
type Config struct{}

// NewFactory returns the factory of the processor.
func NewFactory() processor.Factory {
	return processor.NewFactory(component.MustNewType("training"), func() component.Config { return &Config{} },
		processor.WithMetrics(func(ctx context.Context, set processor.Settings, cfg component.Config, next consumer.Metrics) (processor.Metrics, error) {
			t, err := newTranslator(&set)
			if err != nil {
				return nil, err
			}
			return processorhelper.NewMetrics(ctx, set, cfg, next, t.metrics, processorhelper.WithCapabilities(consumer.Capabilities{MutatesData: true}),
				processorhelper.WithStart(t.start), processorhelper.WithShutdown(t.shutdown))
		}, component.StabilityLevelDevelopment))
}

// owners is what the gpu extension knows about processes and containers.
type owners interface {
	Process(pid uint32) (workload.Workload, bool)
	Container(id string) (workload.Workload, bool)
}

// reports is where the gpu extension remembers who reports what.
type reports interface {
	Report(job, metric string, at time.Time) (watched bool)
}

// outcome is what became of a point.
type outcome int

const (
	accepted  outcome = iota
	unowned           // accepted, but its sender belongs to no known workload
	unknown           // a name of training.* that does not exist
	malformed         // another kind of metric, another unit, or deltas
	absurd            // no number, or one that cannot be meant
	notFirst          // another rank than 0 reports what the job reports once
	outcomes
)

var outcomeLabels = [outcomes]string{"accepted", "unowned", "unknown", "malformed", "absurd", "rank"}

// translator is the processor of one pipeline.
type translator struct {
	log    *zap.Logger
	points metric.Int64Counter
	labels [outcomes]metric.AddOption
	said   [outcomes]sync.Once

	owners  owners  // nil: unknown
	reports reports // nil: nobody asks
	last    atomic.Pointer[holders]
	cancel  func()
	done    sync.WaitGroup
}

func newTranslator(set *processor.Settings) (*translator, error) {
	t := &translator{log: set.Logger}
	for o, label := range outcomeLabels {
		t.labels[o] = metric.WithAttributeSet(attribute.NewSet(attribute.String("outcome", label)))
	}
	var err error
	t.points, err = set.MeterProvider.Meter(scopeName).Int64Counter("gpumeter.training.points", metric.WithUnit("{point}"),
		metric.WithDescription("Points that training loops report, by outcome: accepted, unowned (accepted without a workload), unknown, malformed, absurd and rank (these are refused)."))
	return t, err
}

func (t *translator) start(ctx context.Context, host component.Host) error {
	view, err := ticks.Need(host, "training processor")
	if err != nil {
		return err
	}
	for _, o := range t.labels { // an alert on a series that does not exist yet would miss its first increase
		t.points.Add(ctx, 0, o)
	}
	t.owners, _ = view.(owners)
	t.reports, _ = view.(reports)
	list, cancel := view.Subscribe()
	t.cancel = cancel
	t.done.Go(func() {
		for tick := range list {
			t.learn(&tick)
		}
	})
	return nil
}

// holders are the workloads on the devices of this machine, as of the last tick.
type holders struct {
	hosts  [2]string
	byName map[string]*workload.Workload // by what a sender may name: see nameOf; nil: several
}

func (t *translator) learn(tick *node.Tick) {
	h := &holders{hosts: [2]string{tick.Host, tick.Resource["k8s.node.name"]}, byName: map[string]*workload.Workload{}}
	for i := range tick.Readings {
		for j := range tick.Readings[i].Holders {
			w := &tick.Readings[i].Holders[j].Workload
			for _, key := range nameOf(func(k string) string { return w.Attributes[k] }) {
				if was, ok := h.byName[key]; ok && (was == nil || was.JobKey() != w.JobKey()) {
					w = nil // one name, two workloads: it is neither's
				}
				h.byName[key] = w
			}
		}
	}
	t.last.Store(h)
}

// nameOf returns the names under which a workload can be found.
func nameOf(get func(string) string) (list []string) {
	if uid := get("k8s.pod.uid"); uid != "" {
		list = append(list, "uid "+uid)
	}
	if pod := get("k8s.pod.name"); pod != "" {
		list = append(list, "pod "+pod)
	}
	if id := get("slurm.job.id"); id != "" {
		list = append(list, "slurm "+id)
	}
	return list
}

func (t *translator) shutdown(context.Context) error {
	if t.cancel != nil {
		t.cancel()
	}
	t.done.Wait()
	return nil
}

// metrics translates what is in the vocabulary.
func (t *translator) metrics(ctx context.Context, md pmetric.Metrics) (pmetric.Metrics, error) {
	var tally [outcomes]int64
	md.ResourceMetrics().RemoveIf(func(rm pmetric.ResourceMetrics) bool {
		var from *sender // looked up with the first metric of training
		rm.ScopeMetrics().RemoveIf(func(sm pmetric.ScopeMetrics) bool {
			loose := sm.Scope().Name() == looseScope
			sm.Metrics().RemoveIf(func(m pmetric.Metric) bool {
				word, ok := wordOf(m.Name(), loose)
				if !ok {
					if !ours(m.Name()) {
						return false
					}
					t.refuse(&tally, unknown, pointsOf(m), m.Name())
					return true
				}
				if from == nil {
					from = t.sender(rm.Resource().Attributes())
				}
				t.translate(m, &word, from, &tally)
				return pointsOf(m) == 0
			})
			return sm.Metrics().Len() == 0
		})
		return rm.ScopeMetrics().Len() == 0
	})
	for o, n := range tally {
		if n > 0 {
			t.points.Add(ctx, n, t.labels[o])
		}
	}
	if md.ResourceMetrics().Len() == 0 {
		return md, processorhelper.ErrSkipProcessingData
	}
	return md, nil
}

// refuse counts points, and logs the first of a kind. Its name is the sender's.
func (t *translator) refuse(tally *[outcomes]int64, o outcome, n int, name string) {
	if n == 0 {
		return
	}
	tally[o] += int64(n)
	t.said[o].Do(func() {
		t.log.Warn("A training reports what is not in the vocabulary: refused; gpumeter.training.points counts further cases",
			zap.String("reason", outcomeLabels[o]), zap.String("first", quote(name)))
	})
}

// sender is who reports.
type sender struct {
	job   string // empty: unknown
	pairs []workload.Attribute
	run   string // tells apart two trainings of one workload
	rank  int64
}

// sender finds the workload of a resource: by the pod or the Slurm job, if that holds a device of this machine, by
// the container, or else by the process. The number of a process in a container is not that of the host, so it
// counts only where nothing else is named.
func (t *translator) sender(resource pcommon.Map) *sender {
	text := func(key string) string {
		v, ok := resource.Get(key)
		if !ok {
			return ""
		}
		return v.AsString()
	}
	s := &sender{rank: rankOf(resource, 0), run: cmp.Or(text("service.instance.id"), text("process.pid"))}
	if w, ok := t.owner(resource, text); ok {
		s.job, s.pairs = w.JobKey(), w.Identity()
	}
	return s
}

func (t *translator) owner(resource pcommon.Map, text func(string) string) (workload.Workload, bool) {
	last := t.last.Load()
	names := nameOf(text)
	for _, name := range names {
		if last != nil && last.byName[name] != nil {
			return *last.byName[name], true
		}
	}
	if t.owners == nil {
		return workload.Workload{}, false
	}
	if id := text("container.id"); id != "" {
		return t.owners.Container(id)
	}
	pid, ok := resource.Get("process.pid")
	if !ok || len(names) > 0 || last == nil || pid.Type() != pcommon.ValueTypeInt || pid.Int() <= 0 || pid.Int() >= 1<<22 {
		return workload.Workload{}, false
	}
	if host := text("host.name"); host == "" || host != last.hosts[0] && host != last.hosts[1] {
		return workload.Workload{}, false
	}
	return t.owners.Process(uint32(pid.Int()))
}
