package hub

import (
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/hub/share"
)

// Catches a node with ever new labels that leaves no series for the others, before and after a
// restart, and a refusal that nobody sees.
func TestOneNodeDoesNotFillTheHub(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := openTest(t, dir, Options{MaxSeries: 1000})
	send := func(node string, from, to int) Result {
		a := s.Appender(t.Context())
		for i := from; i < to; i++ {
			labels := []string{"i", strconv.Itoa(i)}
			if node != "" {
				labels = append([]string{"host_name", node}, labels...)
			}
			a.Gauge(name("x", labels...), ago(time.Second), 1)
		}
		return commit(t, a)
	}
	if got, want := send("bad", 0, 2000), (Result{
		Accepted: 750, Refused: 1250, Points: 1250,
		Why: "node bad: limit of 750 series per node reached: find out which labels change all the time, or raise --max-series-per-node",
	}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := send("good", 0, 100); got != (Result{Accepted: 100}) {
		t.Errorf("another node: %+v", got)
	}
	if got := send("bad", 0, 750); got != (Result{Accepted: 750}) {
		t.Errorf("known series of the node: %+v", got)
	}
	if got := send("", 0, 10); got != (Result{Accepted: 10}) {
		t.Errorf("series without a node: %+v", got)
	}
	own := s.OwnAppender(t.Context())
	own.Gauge(name("gpumeter_fleet_finding", "host_name", "bad"), ago(0), 1)
	if got := commit(t, own); got != (Result{Accepted: 1}) {
		t.Errorf("a finding about the node: %+v", got)
	}
	if n := s.Refusals().Count(NodeSeriesLimit); n != 1250 {
		t.Errorf("%d are counted", n)
	}
	want := []share.Over{{Node: share.Node{Name: "bad"}, What: share.Series, Count: 1250, First: now, Last: now}}
	if diff := cmp.Diff(want, s.Over(now)); diff != "" {
		t.Error(diff)
	}
	if code, body, _ := ask(t, NewHandler(s, s, HandlerOptions{}), "", http.MethodGet, "/readyz", nil); code != http.StatusOK || body != "ok\nnodes that exceed their share of series: 1" {
		t.Errorf("readyz: %d %q", code, body)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openTest(t, dir, Options{MaxSeries: 1000})
	if got := send("bad", 2000, 2010); got.Accepted != 0 || got.Refused != 10 {
		t.Errorf("after a restart: %+v", got)
	}
	if got := send("good", 100, 200); got != (Result{Accepted: 100}) {
		t.Errorf("another node after a restart: %+v", got)
	}
}
