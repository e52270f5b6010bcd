package schedulerreceiver

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/receiver/receivertest"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/gpumeter/gpumeter/internal/scheduler/kube"
	"github.com/gpumeter/gpumeter/internal/scheduler/kube/live"
)

// many is a Cluster in which something happens to so many pods in each round.
type many int

// Run implements Cluster.
func (many) Run(context.Context) {}

// View implements Cluster.
func (many) View(time.Time) live.View { return live.View{} }

// Events implements Cluster.
func (m many) Events() []kube.Event { return make([]kube.Event, m) }

// reporting returns a receiver of a Cluster, and what it logs, as "MESSAGE left_out".
func reporting(from Cluster) (r *kubernetesReceiver, logged func() []string) {
	core, logs := observer.New(zap.InfoLevel)
	set := receivertest.NewNopSettings(component.MustNewType("scheduler"))
	set.Logger = zap.New(core)
	return newReporter(createDefaultConfig().(*Config), set, from, time.Unix(1000, 0)), func() (list []string) {
		for _, e := range logs.TakeAll() {
			list = append(list, fmt.Sprint(e.Message, " ", e.ContextMap()["left_out"]))
		}
		return list
	}
}

// Catches records that are left out while the pipeline refuses, and that the log does not count, or only those of the last round.
func TestRecordsLeftOut(t *testing.T) {
	r, logged := reporting(many(6000))
	var refuse error
	next, err := consumer.NewLogs(func(context.Context, plog.Logs) error { return refuse })
	if err != nil {
		t.Fatal(err)
	}
	r.logs = next
	f := func(err error, rounds int, want ...string) {
		t.Helper()
		refuse = err
		for range rounds {
			r.tell(t.Context(), time.Unix(2000, 0))
		}
		if diff := cmp.Diff(want, logged()); diff != "" {
			t.Errorf("%d rounds with %v (-want +got):\n%s", rounds, err, diff)
		}
	}
	f(nil, 1)
	f(errors.New("full"), 3, "The pipeline refuses log records of Kubernetes <nil>")
	f(nil, 1, "The pipeline accepts log records of Kubernetes again 14000") // of 24,000
	f(nil, 1)
	r.watcher = many(10_003)
	f(nil, 1, leftOutEvents+" 3")
}

// Catches a process that is not elected any more and says that the times are complete again, and events that are lost and
// counted as objects that are not understood.
func TestSaysWhatIsMissing(t *testing.T) {
	r, logged := reporting(many(0))
	for _, v := range []live.View{
		{Leads: true, NoWaits: errors.New("refused")},
		{Holder: ""},
		{Leads: true, Snapshot: &kube.Snapshot{Untold: 7}},
	} {
		r.say(v)
	}
	want := []string{
		"This process watches the Kubernetes cluster <nil>", "Some times that pods waited are missing <nil>",
		"The times that pods waited are complete again <nil>", leftOutEvents + " 7",
	}
	if diff := cmp.Diff(want, logged()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	r.say(live.View{Leads: true, NoWaits: errors.New("refused")})
	logged()
	r.say(live.View{Holder: "another"})
	if diff := cmp.Diff([]string{"Another process watches the Kubernetes cluster <nil>"}, logged()); diff != "" {
		t.Errorf("not elected (-want +got):\n%s", diff)
	}
}
