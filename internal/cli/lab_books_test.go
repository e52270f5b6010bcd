//go:build linux

package cli_test

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// near compares sums of floats.
var near = cmpopts.EquateApprox(1e-9, 1e-6)

// ticks returns the ticks so far, in the order of their time.
func (l *lab) ticks() []labTick {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.batches)
}

// sum adds up the points of a metric whose attributes are as the pairs of key and value say.
func (t *labTick) sum(metric string, pairs ...any) (sum float64, found bool) {
	for _, p := range t.points {
		ok := p.metric == metric
		for i := 0; ok && i < len(pairs); i += 2 {
			ok = p.attrs[pairs[i].(string)] == pairs[i+1]
		}
		if ok {
			sum, found = sum+p.value, true
		}
	}
	return sum, found
}

// last returns a sum in the latest tick, NaN if it has no such point.
func (l *lab) last(metric string, pairs ...any) float64 {
	all := l.ticks()
	if len(all) > 0 {
		if v, ok := all[len(all)-1].sum(metric, pairs...); ok {
			return v
		}
	}
	return math.NaN()
}

// by returns the points of a metric for one GPU in the latest tick, summed by pod; what has no pod
// goes by its kind.
func (l *lab) by(metric string, gpu int) map[string]float64 {
	all := l.ticks()
	books := map[string]float64{}
	for _, p := range all[len(all)-1].points {
		if p.metric == metric && p.attrs["gpu.index"] == int64(gpu) {
			name, ok := p.attrs["k8s.pod.name"]
			if !ok {
				name = p.attrs["gpu.workload.kind"]
			}
			books[name.(string)] += p.value
		}
	}
	return books
}

// wantJoules checks who used the energy of a GPU since the lab began, and that the books add up to the
// driver's counter. What used nothing need not be named.
func (l *lab) wantJoules(gpu int, want map[string]float64) {
	l.t.Helper()
	books := l.by("gpu.workload.energy", gpu)
	total := 0.0
	for name, joules := range books {
		if total += joules; joules == 0 {
			delete(books, name)
		}
	}
	if diff := cmp.Diff(want, books, near); diff != "" {
		l.t.Errorf("joules of GPU %d (-want +got):\n%s", gpu, diff)
	}
	if diff := cmp.Diff(l.used(gpu), total, near); diff != "" {
		l.t.Errorf("GPU %d: the driver counted (-), the books say (+):\n%s", gpu, diff)
	}
}

// seconds adds up the time between ticks at whose end ok is true.
func (l *lab) seconds(ok func(*labTick) bool) (sum float64) {
	all := l.ticks()
	for i := 1; i < len(all); i++ {
		if ok(&all[i]) {
			sum += all[i].time.Sub(all[i-1].time).Seconds()
		}
	}
	return sum
}

// stops returns the records of workloads that left a device, as the attribute by pod.
func (l *lab) stops(attribute string) map[string][]float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := map[string][]float64{}
	for _, r := range l.records {
		if pod, ok := r["k8s.pod.name"].(string); ok && r["event"] == "gpu.workload.stop" {
			v, _ := r[attribute].(float64)
			all[pod] = append(all[pod], v)
		}
	}
	return all
}

// ask answers PromQL from the hub, as values by a label.
func (l *lab) ask(query, by string) map[string]float64 {
	l.t.Helper()
	code, body := l.hub.get("/api/v1/query?query="+url.QueryEscape(query), "")
	var answer struct {
		Data struct {
			Result []struct {
				Metric map[string]string
				Value  [2]any
			}
		}
	}
	if err := json.Unmarshal([]byte(body), &answer); err != nil || code != http.StatusOK {
		l.t.Fatalf("%s: %d %v %s", query, code, err, body)
	}
	all := map[string]float64{}
	for _, r := range answer.Data.Result {
		v, err := strconv.ParseFloat(fmt.Sprint(r.Value[1]), 64)
		if err != nil {
			l.t.Fatal(err)
		}
		all[r.Metric[by]] += v
	}
	return all
}

// billed returns the GPU-seconds that workloads held until now, by a label, as the report says them.
func (l *lab) billed(by string) map[string]float64 {
	l.t.Helper()
	now := time.Now()
	time.Sleep(time.Until(now.Truncate(time.Second).Add(time.Second))) // a report ends at a whole second
	var report struct {
		Groups []struct {
			Name                       string
			Used_Seconds, Idle_Seconds float64 //nolint:revive // the names in the report
			Unmeasured_Seconds         float64 //nolint:revive // see above
		}
	}
	text := output(l.t, "report", "usage", "--by", by, "--last", "1h", "-o", "json", "--url", l.hub.url)
	if err := json.Unmarshal([]byte(text), &report); err != nil {
		l.t.Fatalf("%v: %s", err, text)
	}
	all := map[string]float64{}
	for _, g := range report.Groups {
		all[g.Name] = g.Used_Seconds + g.Idle_Seconds + g.Unmeasured_Seconds
	}
	return all
}

// held returns how long ticks said that a pod holds a GPU. The time between two agents is nobody's.
func (l *lab) held(pod string) (seconds float64) {
	all := l.ticks()
	for i := 1; i < len(all); i++ {
		_, before := all[i-1].sum("gpu.allocation", "k8s.pod.name", pod)
		if before && all[i].agent == all[i-1].agent {
			seconds += all[i].time.Sub(all[i-1].time).Seconds()
		}
	}
	return seconds
}

// between returns the seconds that agents counted for a pod after the last tick that the lab has of them:
// an agent ticks until its last data is sent, and the next one continues its sums.
func (l *lab) between(pod string) (seconds float64) {
	l.t.Helper()
	var last labTick // with the pod
	known := 0.0
	for _, b := range l.ticks() {
		v, ok := b.sum("gpu.workload.allocated.time", "k8s.pod.name", pod)
		if ok && last.agent > 0 && b.agent != last.agent {
			rise, room := v-known, b.time.Sub(last.time).Seconds()
			if rise < 0 || rise > room {
				l.t.Errorf("the sum of pod %s went from %v to %v while agents took turns, in %v s", pod, known, v, room)
			}
			seconds += rise
		}
		if ok {
			last, known = b, v
		}
	}
	return seconds
}
