package gpuextension

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/component/componentstatus"

	"github.com/gpumeter/gpumeter/internal/node"
)

// Defect: a receiver that fails in one of its pipelines, or was replaced by a reload, is up.
func TestComponentUp(t *testing.T) {
	var s statuses
	id := component.MustNewID("gpu")
	metrics, logs := componentstatus.NewInstanceID(id, component.KindReceiver), componentstatus.NewInstanceID(id, component.KindReceiver)
	page := componentstatus.NewInstanceID(component.MustNewID("page"), component.KindExporter)
	f := func(want map[componentID]int64) {
		t.Helper()
		if diff := cmp.Diff(want, s.up(), cmp.AllowUnexported(componentID{})); diff != "" {
			t.Errorf("up (-want +got):\n%s", diff)
		}
	}
	f(map[componentID]int64{})
	receiver, exporter := componentID{"receiver", "gpu"}, componentID{"exporter", "page"}
	for _, i := range []*componentstatus.InstanceID{metrics, logs, page} {
		s.ComponentStatusChanged(i, componentstatus.NewEvent(componentstatus.StatusStarting))
	}
	f(map[componentID]int64{receiver: 0, exporter: 0})
	for _, i := range []*componentstatus.InstanceID{metrics, logs, page} {
		s.ComponentStatusChanged(i, componentstatus.NewEvent(componentstatus.StatusOK))
	}
	f(map[componentID]int64{receiver: 1, exporter: 1})
	s.ComponentStatusChanged(logs, componentstatus.NewRecoverableErrorEvent(errors.New("refused")))
	f(map[componentID]int64{receiver: 0, exporter: 1})
	s.ComponentStatusChanged(logs, componentstatus.NewEvent(componentstatus.StatusStopped))
	s.ComponentStatusChanged(page, componentstatus.NewEvent(componentstatus.StatusStopped))
	f(map[componentID]int64{receiver: 1})
}

// reporter is a host that records reported statuses.
type reporter struct {
	component.Host
	events []*componentstatus.Event
}

func (r *reporter) Report(e *componentstatus.Event) { r.events = append(r.events, e) }

// Defect: a failing driver is not reported, reported at every tick, or still reported after
// recovery.
func TestReport(t *testing.T) {
	ticks := make(chan node.Tick, 10)
	for _, state := range []node.SourceStatus{
		{Name: "nvidia", State: "absent", Problem: "no library"}, // normal
		{Name: "nvidia", State: "failed", Problem: "driver mismatch"},
		{Name: "nvidia", State: "failed", Problem: "driver mismatch"},
		{Name: "nvidia", State: "open"},
	} {
		ticks <- node.Tick{Sources: []node.SourceStatus{state}}
	}
	close(ticks)
	var r reporter
	report(&r, ticks)
	var got []string
	for _, e := range r.events {
		text := e.Status().String()
		if e.Err() != nil {
			text += " " + e.Err().Error()
		}
		got = append(got, text)
	}
	if diff := cmp.Diff([]string{"StatusRecoverableError nvidia: driver mismatch", "StatusOK"}, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}
