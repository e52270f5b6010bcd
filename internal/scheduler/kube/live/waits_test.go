package live

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/workload/kubeapi"
	"github.com/gpumeter/gpumeter/internal/workload/kubeapi/kubeapitest"
)

// process is a process that watches, with a way to the API server of its own.
type process struct {
	*Watcher
	kill func() // without a last word
	stop func()
}

func begin(t *testing.T, s *kubeapitest.Server, name string) *process {
	t.Helper()
	var dead atomic.Bool
	dial, closed := kubeapitest.Pipe(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if dead.Load() {
			panic(http.ErrAbortHandler)
		}
		s.ServeHTTP(w, r)
	}))
	w := NewWatcher(kubeapi.Dial(dial), Config{Vendors: vendors, Lease: kubeapi.Lease{Name: "scheduler", Identity: name}})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.Run(ctx)
	}()
	p := &process{Watcher: w}
	p.stop = func() {
		cancel()
		<-done
		closed()
	}
	p.kill = func() {
		dead.Store(true)
		p.stop()
	}
	return p
}

// Catches a wait that is reported before it is in the Lease: whoever leads next may not find the pod any more, and the sum falls.
func TestWaitsAreReportedOnceWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := kubeapitest.New()
		p := begin(t, s, "a")
		defer p.stop()
		waits := func(after time.Duration, want uint64) {
			t.Helper()
			time.Sleep(after)
			synctest.Wait()
			got := uint64(0)
			if h := p.View(time.Now()).Waits.Scheduled["ml"]; h != nil {
				got = h.Count
			}
			if got != want {
				t.Errorf("%d waits, want %d", got, want)
			}
		}
		waits(4*time.Second, 0)
		s.PutPod(kubeapitest.Pod("gn1", "ml", "a", "ua", asks("1"), object{
			"metadata": object{"creationTimestamp": "2000-01-01T00:00:00Z"},
			"status":   object{"conditions": []object{{"type": "PodScheduled", "status": "True", "lastTransitionTime": "2000-01-01T00:00:02Z"}}},
		}))
		s.Fail("/apis/coordination.k8s.io", kubeapitest.Fault{Status: 503})
		waits(5*time.Second, 0)
		s.Heal()
		waits(4*time.Second, 1)
	})
}

// Catches a note that somebody has damaged, or that is of a version to come, and that keeps everything else from being reported.
func TestWaitsAfterDamage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := kubeapitest.New()
		s.Put("/apis/coordination.k8s.io/v1/namespaces/default/leases/scheduler", object{
			"metadata": object{"name": "scheduler", "uid": "x", "resourceVersion": "1", "annotations": object{"gpumeter/note": `x {"version":9}`}}, "spec": object{},
		})
		s.PutPod(kubeapitest.Pod("gn1", "ml", "a", "ua", asks("1")))
		p := begin(t, s, "a")
		defer p.stop()
		time.Sleep(4 * time.Second)
		synctest.Wait()
		v := p.View(time.Now())
		const want = "cannot continue what the last process counted: its note has version 9, want 1"
		if v.Err != nil || fmt.Sprint(v.NoWaits) != want || v.Snapshot == nil || !strings.HasPrefix(s.LeaseNote("default", "scheduler"), `x {"version":1,`) {
			t.Errorf("%v, %v, %v; the Lease says %s", v.Err, v.NoWaits, v.Snapshot, s.LeaseNote("default", "scheduler"))
		}
	})
}

// Catches a pod whose wait is lost or counted twice while processes that watch are killed, stopped and replaced: 50 pods, against
// the times of their own conditions. Catches also a value that is reported before it is sure, and so falls, and
// requests beyond the renewals of the Lease.
func TestWaitsOfFiftyPods(t *testing.T) {
	for seed := range uint64(5) {
		synctest.Test(t, func(t *testing.T) { fiftyPods(t, rand.New(rand.NewPCG(seed, 1))) }) //nolint:gosec // repeatable
	}
}

func fiftyPods(t *testing.T, r *rand.Rand) {
	t.Helper()
	began := time.Now()
	s := kubeapitest.New()
	stamp := func() string { return time.Now().UTC().Truncate(time.Second).Format(time.RFC3339) }
	put := func(i int, status object, created string, node string) {
		s.PutPod(kubeapitest.Pod(node, "ml", fmt.Sprint(i), fmt.Sprint("uid-", i), asks("1"), object{
			"metadata": object{"creationTimestamp": created}, "status": status,
		}))
	}
	whole := func(text string) time.Time {
		at, err := time.Parse(time.RFC3339, text)
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	var all []*process
	defer func() {
		for _, p := range all {
			p.stop()
		}
	}()
	enter := func() { all = append(all, begin(t, s, fmt.Sprint("process ", len(all)))) }
	var shown float64
	total := func() (waits, starts [2]float64, leads bool) {
		synctest.Wait()
		for _, p := range all {
			v := p.View(time.Now())
			if !v.Leads {
				continue
			}
			leads = true
			if h := v.Waits.Scheduled["ml"]; h != nil {
				waits = [2]float64{float64(h.Count), h.Sum}
			}
			if h := v.Waits.Started["ml"]; h != nil {
				starts = [2]float64{float64(h.Count), h.Sum}
			}
		}
		if leads && waits[0] < shown {
			t.Errorf("fell from %v to %v", shown, waits[0])
		}
		shown = max(shown, waits[0])
		return waits, starts, leads
	}
	enter()
	enter()
	time.Sleep(5 * time.Second)
	var wantWaits, wantStarts [2]float64
	for i := range 50 {
		created := stamp()
		put(i, object{"phase": "Pending"}, created, "")
		time.Sleep(time.Duration(r.IntN(20_000)) * time.Millisecond)
		placed := stamp()
		conditions := []object{{"type": "PodScheduled", "status": "True", "lastTransitionTime": placed}}
		put(i, object{"phase": "Pending", "conditions": conditions}, created, "gn1")
		wantWaits[0], wantWaits[1] = wantWaits[0]+1, wantWaits[1]+whole(placed).Sub(whole(created)).Seconds()
		time.Sleep(time.Duration(r.IntN(8_000)) * time.Millisecond)
		ran := stamp()
		put(i, object{
			"phase": "Running", "conditions": conditions,
			"containerStatuses": []object{{"name": "main", "state": object{"running": object{"startedAt": ran}}}},
		}, created, "gn1")
		wantStarts[0], wantStarts[1] = wantStarts[0]+1, wantStarts[1]+whole(ran).Sub(whole(placed)).Seconds()
		total()
		switch n := r.IntN(len(all)); r.IntN(6) {
		case 0:
			all[n].kill()
			all = append(all[:n], all[n+1:]...)
			enter()
		case 1:
			all[n].stop()
			all = append(all[:n], all[n+1:]...)
			enter()
		case 2:
			s.DropWatches(r.IntN(2) == 0)
		}
	}
	time.Sleep(time.Minute)
	waits, starts, leads := total()
	if diff := cmp.Diff([2][2]float64{wantWaits, wantStarts}, [2][2]float64{waits, starts}); diff != "" || !leads {
		t.Errorf("numbers and sums of waits and starts (-want +got), %v:\n%s", leads, diff)
	}
	for _, p := range all {
		if v := p.View(time.Now()); v.Leads && v.Waits.Since.Sub(began) > time.Second {
			t.Errorf("counts since %v, want since %v", v.Waits.Since, began)
		}
	}
}
