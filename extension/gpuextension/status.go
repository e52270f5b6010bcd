package gpuextension

import (
	"context"
	"errors"
	"strings"
	"sync"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componentstatus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/gpumeter/gpumeter/internal/node"
)

const scopeName = "github.com/gpumeter/gpumeter/extension/gpuextension"

// statuses holds the last status of the Collector's components and exports it as
// gpumeter.component.up among the Collector's own metrics.
type statuses struct {
	mu   sync.Mutex
	last map[*componentstatus.InstanceID]componentstatus.Status

	registration metric.Registration
}

var _ componentstatus.Watcher = (*statuses)(nil)

// ComponentStatusChanged implements componentstatus.Watcher.
func (s *statuses) ComponentStatusChanged(source *componentstatus.InstanceID, event *componentstatus.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if event.Status() == componentstatus.StatusStopped {
		delete(s.last, source)
		return
	}
	if s.last == nil {
		s.last = map[*componentstatus.InstanceID]componentstatus.Status{}
	}
	s.last[source] = event.Status()
}

// register registers the metric with provider.
func (s *statuses) register(provider metric.MeterProvider) error {
	meter := provider.Meter(scopeName)
	up, err := meter.Int64ObservableGauge("gpumeter.component.up", metric.WithUnit("{flag}"),
		metric.WithDescription("1 if the component of the agent works, 0 if it is starting, stopping or reporting an error."))
	if err != nil {
		return err
	}
	s.registration, err = meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		for id, value := range s.up() {
			o.ObserveInt64(up, value, metric.WithAttributes(
				attribute.String("otelcol.component.id", id.name), attribute.String("otelcol.component.kind", id.kind)))
		}
		return nil
	}, up)
	return err
}

func (s *statuses) unregister() error {
	if s.registration == nil {
		return nil
	}
	return s.registration.Unregister()
}

type componentID struct{ kind, name string }

// up returns 1 for each component all of whose instances work: a receiver of metrics and logs
// has two instances.
func (s *statuses) up() map[componentID]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[componentID]int64{}
	for source, status := range s.last {
		id := componentID{strings.ToLower(source.Kind().String()), source.ComponentID().String()}
		works := int64(0)
		if status == componentstatus.StatusOK {
			works = 1
		}
		if before, ok := all[id]; ok {
			works = min(works, before)
		}
		all[id] = works
	}
	return all
}

// report tells host when a reader starts to fail and when all readers work again, until ticks
// is closed.
func report(host component.Host, ticks <-chan node.Tick) {
	failing := false
	for t := range ticks {
		var problems []error
		for _, s := range t.Sources {
			if s.Problem != "" && s.State != "absent" { // missing hardware is normal
				problems = append(problems, errors.New(s.Name+": "+s.Problem))
			}
		}
		if now := len(problems) > 0; now != failing {
			failing = now
			if failing {
				componentstatus.ReportStatus(host, componentstatus.NewRecoverableErrorEvent(errors.Join(problems...)))
			} else {
				componentstatus.ReportStatus(host, componentstatus.NewEvent(componentstatus.StatusOK))
			}
		}
	}
}
