package reservedprocessor

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/processor"
	"go.opentelemetry.io/collector/processor/processorhelper"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.uber.org/zap"

	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/ticks"
)

const scopeName = "github.com/gpumeter/gpumeter/processor/reservedprocessor"

// Config is the configuration under processors::reserved. There is nothing to set.
type Config struct{}

// NewFactory returns the factory of the processor.
func NewFactory() processor.Factory {
	capabilities := processorhelper.WithCapabilities(consumer.Capabilities{MutatesData: true})
	return processor.NewFactory(component.MustNewType("reserved"), func() component.Config { return &Config{} },
		processor.WithMetrics(func(ctx context.Context, set processor.Settings, cfg component.Config, next consumer.Metrics) (processor.Metrics, error) {
			g, err := newGuard(&set, "metrics")
			if err != nil {
				return nil, err
			}
			return processorhelper.NewMetrics(ctx, set, cfg, next, g.metrics, capabilities, processorhelper.WithStart(g.start), processorhelper.WithShutdown(g.shutdown))
		}, component.StabilityLevelDevelopment),
		processor.WithLogs(func(ctx context.Context, set processor.Settings, cfg component.Config, next consumer.Logs) (processor.Logs, error) {
			g, err := newGuard(&set, "logs")
			if err != nil {
				return nil, err
			}
			return processorhelper.NewLogs(ctx, set, cfg, next, g.logs, capabilities, processorhelper.WithStart(g.start), processorhelper.WithShutdown(g.shutdown))
		}, component.StabilityLevelDevelopment))
}

// reason is why an item is dropped.
type reason int

const (
	byName     reason = iota // the name belongs to gpumeter
	byIdentity               // the item claims another machine
	reasonCount
)

var reasonLabels = [reasonCount]string{"name", "identity"}

// guard is the processor of one pipeline.
type guard struct {
	log     *zap.Logger
	dropped metric.Int64Counter
	reasons [reasonCount]metric.AddOption
	said    [reasonCount]sync.Once

	machine atomic.Pointer[map[string]string] // identity of this machine by attribute; nil before the first tick
	cancel  func()
	done    sync.WaitGroup
}

func newGuard(set *processor.Settings, signal string) (*guard, error) {
	g := &guard{log: set.Logger}
	for r, label := range reasonLabels {
		g.reasons[r] = metric.WithAttributeSet(attribute.NewSet(attribute.String("reason", label), attribute.String("signal", signal)))
	}
	var err error
	g.dropped, err = set.MeterProvider.Meter(scopeName).Int64Counter("gpumeter.reserved.dropped", metric.WithUnit("{item}"),
		metric.WithDescription("Data points and log records of applications that were dropped because they use a name of gpumeter or claim another machine."))
	return g, err
}

func (g *guard) start(ctx context.Context, host component.Host) error {
	view, err := ticks.Need(host, "reserved processor")
	if err != nil {
		return err
	}
	for _, r := range g.reasons { // an alert on a series that does not exist yet would miss its first increase
		g.dropped.Add(ctx, 0, r)
	}
	list, cancel := view.Subscribe()
	g.cancel = cancel
	g.done.Go(func() {
		for t := range list {
			m := identify(&t)
			g.machine.Store(&m)
		}
	})
	return nil
}

func (g *guard) shutdown(context.Context) error {
	if g.cancel != nil {
		g.cancel()
	}
	g.done.Wait()
	return nil
}

func identify(t *node.Tick) map[string]string {
	m := map[string]string{}
	for _, key := range identity {
		if v := t.Resource[key]; v != "" {
			m[key] = v
		}
	}
	if t.Host != "" {
		m["host.name"] = t.Host
	}
	if t.Simulated {
		m["gpumeter.simulated"] = "true"
	}
	return m
}

// errUnidentified is retryable.
var errUnidentified = errors.New("the agent has not identified its machine yet: retry")

// metrics removes from md what applications may not send.
func (g *guard) metrics(ctx context.Context, md pmetric.Metrics) (pmetric.Metrics, error) {
	machine := g.machine.Load()
	if machine == nil {
		return md, errUnidentified
	}
	md.ResourceMetrics().RemoveIf(func(rm pmetric.ResourceMetrics) bool {
		claim(rm.Resource().Attributes(), *machine)
		rm.ScopeMetrics().RemoveIf(func(sm pmetric.ScopeMetrics) bool {
			sm.Metrics().RemoveIf(func(m pmetric.Metric) bool {
				if reservedMetric(m) {
					g.drop(ctx, byName, max(points(m), 1), m.Name())
					return true
				}
				n := removePoints(m, func(attrs pcommon.Map) bool { return foreign(attrs, *machine) })
				g.drop(ctx, byIdentity, n, m.Name())
				return n > 0 && points(m) == 0
			})
			return sm.Metrics().Len() == 0
		})
		return rm.ScopeMetrics().Len() == 0
	})
	if md.ResourceMetrics().Len() == 0 {
		return md, processorhelper.ErrSkipProcessingData
	}
	return md, nil
}

// logs removes from ld what applications may not send.
func (g *guard) logs(ctx context.Context, ld plog.Logs) (plog.Logs, error) {
	machine := g.machine.Load()
	if machine == nil {
		return ld, errUnidentified
	}
	ld.ResourceLogs().RemoveIf(func(rl plog.ResourceLogs) bool {
		resource := rl.Resource().Attributes()
		claim(resource, *machine)
		rl.ScopeLogs().RemoveIf(func(sl plog.ScopeLogs) bool {
			sl.LogRecords().RemoveIf(func(r plog.LogRecord) bool {
				if name, ok := reservedEvent(resource, r); ok {
					g.drop(ctx, byName, 1, name)
					return true
				}
				if foreign(r.Attributes(), *machine) {
					g.drop(ctx, byIdentity, 1, r.EventName())
					return true
				}
				return false
			})
			return sl.LogRecords().Len() == 0
		})
		return rl.ScopeLogs().Len() == 0
	})
	if ld.ResourceLogs().Len() == 0 {
		return ld, processorhelper.ErrSkipProcessingData
	}
	return ld, nil
}

// claim sets the identity of a resource to that of this machine: its sender runs here, whatever
// the resource says. A container often reports its own ID as the host name.
func claim(resource pcommon.Map, machine map[string]string) {
	// All of them: OTLP may repeat a key, and readers disagree on which one counts.
	resource.RemoveIf(func(key string, _ pcommon.Value) bool { return slices.Contains(identity, key) })
	for _, key := range identity {
		if v, ok := machine[key]; ok {
			resource.PutStr(key, v)
		}
	}
}

// foreign reports whether the attributes of a point or a record, which override those of the
// resource, claim another machine, or an engine that gpumeter reads.
func foreign(attrs pcommon.Map, machine map[string]string) bool {
	for key, v := range attrs.All() {
		label := labelOf(key)
		if label == engineLabel {
			return true
		}
		if i := slices.Index(identityLabels, label); i >= 0 && v.AsString() != machine[identity[i]] {
			return true
		}
	}
	return false
}

// drop counts n dropped items and logs the first.
func (g *guard) drop(ctx context.Context, r reason, n int, name string) {
	if n == 0 {
		return
	}
	g.dropped.Add(ctx, int64(n), g.reasons[r])
	g.said[r].Do(func() {
		what := "An application sent telemetry under a name that belongs to gpumeter: dropped"
		if r == byIdentity {
			what = "An application sent telemetry about another machine, or about an inference engine: dropped"
		}
		g.log.Warn(what+"; gpumeter.reserved.dropped counts further cases", zap.String("first", strconv.QuoteToASCII(name[:min(len(name), 200)])))
	})
}

// points returns the number of data points of m.
func points(m pmetric.Metric) int {
	switch m.Type() {
	case pmetric.MetricTypeGauge:
		return m.Gauge().DataPoints().Len()
	case pmetric.MetricTypeSum:
		return m.Sum().DataPoints().Len()
	case pmetric.MetricTypeHistogram:
		return m.Histogram().DataPoints().Len()
	case pmetric.MetricTypeExponentialHistogram:
		return m.ExponentialHistogram().DataPoints().Len()
	case pmetric.MetricTypeSummary:
		return m.Summary().DataPoints().Len()
	default:
		return 0
	}
}

// removePoints removes the points whose attributes match and returns their number.
func removePoints(m pmetric.Metric, match func(pcommon.Map) bool) int {
	before := points(m)
	switch m.Type() {
	case pmetric.MetricTypeGauge:
		m.Gauge().DataPoints().RemoveIf(func(p pmetric.NumberDataPoint) bool { return match(p.Attributes()) })
	case pmetric.MetricTypeSum:
		m.Sum().DataPoints().RemoveIf(func(p pmetric.NumberDataPoint) bool { return match(p.Attributes()) })
	case pmetric.MetricTypeHistogram:
		m.Histogram().DataPoints().RemoveIf(func(p pmetric.HistogramDataPoint) bool { return match(p.Attributes()) })
	case pmetric.MetricTypeExponentialHistogram:
		m.ExponentialHistogram().DataPoints().RemoveIf(func(p pmetric.ExponentialHistogramDataPoint) bool { return match(p.Attributes()) })
	case pmetric.MetricTypeSummary:
		m.Summary().DataPoints().RemoveIf(func(p pmetric.SummaryDataPoint) bool { return match(p.Attributes()) })
	default:
	}
	return before - points(m)
}
