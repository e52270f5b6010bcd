package inferencereceiver

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/collector/receiver/receivertest"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gpumeter/gpumeter/internal/inference/discover"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/receiver/inferencereceiver/internal/metadata"
)

// blind is a finder that cannot see everything.
type blind struct {
	Simulated
	status discover.Status
}

func (b *blind) Status() discover.Status { return b.status }

// Catches an engine that is missing without a reason, and a reason that is logged at every tick.
func TestWhyEnginesAreMissing(t *testing.T) {
	t.Parallel()
	core, logs := observer.New(zap.InfoLevel)
	set := receivertest.NewNopSettings(metadata.Type)
	set.Logger = zap.New(core)
	f := &blind{Simulated: func(*node.Tick) []discover.Engine { return nil }}
	r := &inferenceReceiver{cfg: createDefaultConfig().(*Config), set: set, find: f, replay: true, targets: map[string]*target{}}
	for _, s := range []discover.Status{
		{Processes: 3, Sockets: 2},
		{Unreadable: 2, Unreachable: []discover.Unreachable{{Reason: "no way", Sockets: 1}}},
		{Unreadable: 3, Unreachable: []discover.Unreachable{{Reason: "no way", Sockets: 4}}},
		{},
		{Unreachable: []discover.Unreachable{{Reason: "no way", Sockets: 1}}},
	} {
		f.status = s
		r.tick(t.Context(), &node.Tick{Time: noon})
	}
	var got []string
	for _, l := range logs.All() {
		got = append(got, fmt.Sprint(l.ContextMap()["reason"], " ", l.ContextMap()["count"]))
	}
	want := []string{"files of processes cannot be read, which needs the same user or CAP_SYS_PTRACE 2", "no way 1", "no way 1"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
