//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"
)

// history is two days of four devices with everything that happens to counters: owners change, an agent is
// killed, another loses its state, one is down over midnight.
type history struct {
	begin, end time.Time
	sums       map[[2]int]*historySum // by device and holder
}

type historySum struct {
	held, active, energy float64
	since, seen          time.Time
}

const historyStep = time.Minute

// holder returns the holder of a device at a minute of the history: 0 is nobody.
func holder(device, minute int) int {
	switch {
	case device > 0:
		return device
	case minute%600 < 240:
		return 4
	case minute%600 < 400:
		return 5
	}
	return 0
}

// minute returns the metrics of the agents at a minute, with final points for ended series.
func (h *history) minute(n int) pmetric.Metrics {
	at := h.begin.Add(time.Duration(n) * historyStep)
	md := pmetric.NewMetrics()
	for device := range 4 {
		switch { // what happens to the agent of a device
		case device == 1 && n == 1500: // killed: continues from half a minute before
			s := h.sums[[2]int{1, 1}]
			s.held, s.active, s.energy = s.held-30, s.active-15, s.energy-9000
		case device == 2 && (n == 1100 || n == 2000): // state lost
			delete(h.sums, [2]int{2, 2})
		case device == 3 && n > 1250 && n < 1450: // down over midnight
			continue
		}
		who := holder(device, n)
		key := [2]int{device, who}
		s := h.sums[key]
		if s == nil {
			s = &historySum{since: at}
			h.sums[key] = s
		} else if n > 0 && s.seen.Equal(at.Add(-historyStep)) {
			s.held += 59.9991234
			if n%3 > 0 {
				s.active += 59.9991234
			}
			s.energy += 100 * float64(1+n%7)
		}
		s.seen = at
		rm := md.ResourceMetrics().AppendEmpty()
		rm.Resource().Attributes().PutStr("host.name", fmt.Sprintf("node-%d", device))
		rm.Resource().Attributes().PutStr("k8s.cluster.name", "c")
		list := rm.ScopeMetrics().AppendEmpty().Metrics()
		for other := range 6 {
			o := h.sums[[2]int{device, other}]
			if o == nil {
				continue
			}
			gone := at.Sub(o.seen) > 5*time.Minute // ended sums remain for five minutes
			o.write(list, device, other, at, gone)
			if gone {
				delete(h.sums, [2]int{device, other})
			}
		}
	}
	return md
}

func (s *historySum) write(list pmetric.MetricSlice, device, who int, at time.Time, gone bool) {
	values := map[string]float64{"gpu.workload.allocated.time": s.held, "gpu.workload.active.time": s.active, "gpu.workload.energy": s.energy}
	if who == 0 {
		values = map[string]float64{"gpu.unallocated.time": s.held, "gpu.workload.energy": s.energy}
	}
	for name, v := range values {
		m := list.AppendEmpty()
		m.SetName(name)
		m.SetUnit("s")
		if name == "gpu.workload.energy" {
			m.SetUnit("J")
		}
		sum := m.SetEmptySum()
		sum.SetIsMonotonic(true)
		sum.SetAggregationTemporality(pmetric.AggregationTemporalityCumulative)
		p := sum.DataPoints().AppendEmpty()
		p.SetTimestamp(pcommon.NewTimestampFromTime(at))
		p.SetStartTimestamp(pcommon.NewTimestampFromTime(s.since))
		p.SetDoubleValue(v)
		if gone {
			p.SetFlags(p.Flags().WithNoRecordedValue(true))
		}
		a := p.Attributes()
		a.PutStr("gpu.uuid", fmt.Sprintf("GPU-%d", device))
		a.PutStr("gpu.model", []string{"NVIDIA H100", "NVIDIA H100", "NVIDIA A100", "AMD MI300X"}[device])
		a.PutStr("gpu.workload.kind", "unallocated")
		if who > 0 {
			a.PutStr("gpu.workload.kind", "job")
			a.PutStr("gpu.workload.name", fmt.Sprintf("job-%d", who))
			a.PutStr("gpu.workload.team", []string{"", "red", "blue", "red", "green", "blue"}[who])
			a.PutStr("k8s.namespace.name", "ns")
			a.PutStr("k8s.pod.uid", fmt.Sprintf("uid-%d", who))
		}
	}
}

// send writes the whole history to a backend, an eighth of an hour per request.
func (h *history) send(t *testing.T, b *backend) {
	t.Helper()
	h.sums = map[[2]int]*historySum{}
	batch := pmetric.NewMetrics()
	minutes := int(h.end.Sub(h.begin) / historyStep)
	for n := range minutes + 1 {
		h.minute(n).ResourceMetrics().MoveAndAppendTo(batch.ResourceMetrics())
		if n%8 != 7 && n < minutes {
			continue
		}
		body, err := pmetricotlp.NewExportRequestFromMetrics(batch).MarshalProto()
		if err != nil {
			t.Fatal(err)
		}
		batch = pmetric.NewMetrics()
		resp, err := http.Post(b.url+b.path, "application/x-protobuf", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1000))
		resp.Body.Close()
		if resp.StatusCode/100 != 2 {
			t.Fatalf("%s: %s: %s", b.name, resp.Status, text)
		}
	}
}

// reported is a report as JSON, with all digits.
type reported struct {
	Groups []struct {
		Name string
		Money
	}
	Total   Money
	Missing any
	Notes   []string
}

// Money has the numbers of a line. It is exported so that it can be embedded and decoded.
type Money struct {
	Used        json.Number `json:"used_seconds"`
	Idle        json.Number `json:"idle_seconds"`
	Unallocated json.Number `json:"unallocated_seconds"`
	Energy      json.Number `json:"energy_joules"`
	UsedCost    json.Number `json:"used_cost"`
	IdleCost    json.Number `json:"idle_cost"`
	Free        json.Number `json:"unallocated_cost"`
	EnergyCost  json.Number `json:"energy_cost"`
}

// micro returns a number with at most six decimals as an integer.
func micro(t *testing.T, n json.Number) int64 {
	t.Helper()
	if n == "" {
		return 0
	}
	whole, part, _ := strings.Cut(n.String(), ".")
	v, err := json.Number(whole + (part + "000000")[:6]).Int64()
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func (m Money) all(t *testing.T) [8]int64 {
	var out [8]int64
	for i, n := range []json.Number{m.Used, m.Idle, m.Unallocated, m.Energy, m.UsedCost, m.IdleCost, m.Free, m.EnergyCost} {
		out[i] = micro(t, n)
	}
	return out
}

// Catches bills of the same history that differ between Prometheus and VictoriaMetrics in any digit, and a
// day that is not the sum of its hours.
func TestReport(t *testing.T) {
	binary := gpumeter(t)
	midnight := time.Now().UTC().Truncate(24 * time.Hour)
	h := &history{begin: midnight.Add(-46 * time.Hour), end: midnight.Add(-2 * time.Hour)}
	prices := filepath.Join(t.TempDir(), "prices.yaml")
	change := midnight.Add(-20*time.Hour - 17*time.Minute).Format(time.RFC3339)
	if err := os.WriteFile(prices, []byte(`
currency: EUR
prices:
- match: {model: "NVIDIA *"}
  rates:
  - {from: 2020-01-01, kind: on_demand, per_hour: 3.123456789}
  - {from: "`+change+`", kind: owned, capex: 30000, years: 4}
power:
- rates: [{from: 2020-01-01, per_kwh: 0.21, pue: 1.3, co2_g_per_kwh: 380}]
`), 0o600); err != nil {
		t.Fatal(err)
	}
	day := [2]time.Time{midnight.Add(-30 * time.Hour), midnight.Add(-6 * time.Hour)}
	bills := map[string]reported{}
	for _, open := range []func(*testing.T) *backend{prometheus3, victoriametrics} {
		b := open(t)
		t.Run(b.name, func(t *testing.T) {
			b.t, b.server.t = t, t
			b.up("")
			h.send(t, b)
			last := fmt.Sprintf(`count(last_over_time({__name__=~"gpu_workload_allocated_time_seconds_total|gpu_unallocated_time_seconds_total"}[%dh]))`, int(time.Since(h.begin).Hours())+1)
			eventually(t, "all sums are there", func() error {
				got, err := b.query(last)
				if err == nil && (len(got) != 1 || fmt.Sprint(got[0].Value[1]) != "6") {
					err = fmt.Errorf("%v", got)
				}
				return err
			})
			report := func(from, to time.Time, args ...string) string {
				args = append([]string{"report", "--url", b.url, "--prices", prices, "--by", "workload", "--from", from.Format(time.RFC3339), "--to", to.Format(time.RFC3339)}, args...)
				return command(t, ".", binary, args...)
			}
			parsed := func(from, to time.Time) (r reported) {
				if err := json.Unmarshal([]byte(report(from, to, "-o", "json")), &r); err != nil {
					t.Fatal(err)
				}
				return r
			}
			var whole reported
			eventually(t, "the newest samples are there", func() error { // VictoriaMetrics shows them a second later
				before := whole
				if whole = parsed(day[0], day[1]); !cmp.Equal(before, whole) {
					return fmt.Errorf("the bill changed to %+v", whole.Total)
				}
				return nil
			})
			var sum [8]int64
			for at := day[0]; at.Before(day[1]); at = at.Add(time.Hour) {
				for i, v := range parsed(at, at.Add(time.Hour)).Total.all(t) {
					sum[i] += v
				}
			}
			if diff := cmp.Diff(whole.Total.all(t), sum); diff != "" {
				t.Errorf("a day is not the sum of its hours (-day +hours):\n%s", diff)
			}
			for _, output := range []string{"table", "csv", "html"} {
				if out := report(day[0], day[1], "-o", output, "--findings"); !strings.Contains(out, "ns/job-1") || !strings.Contains(out, "(unallocated)") {
					t.Errorf("%s:\n%s", output, out)
				}
			}
			bills[b.name] = whole
			t.Logf("%s: %+v, %v", b.name, whole.Total, whole.Notes)
		})
	}
	if len(bills) < 2 {
		t.Skip("there is nothing to compare")
	}
	if diff := cmp.Diff(bills["prometheus3"], bills["victoriametrics"]); diff != "" {
		t.Errorf("the bills differ (-Prometheus +VictoriaMetrics):\n%s", diff)
	}
	// 59.9991234 s of each minute are counted. The killed agent's half minute counts twice; the time
	// that one agent was down and the state that another lost do not count.
	want := bills["prometheus3"].Total
	if time := micro(t, want.Used) + micro(t, want.Idle) + micro(t, want.Unallocated); time < 4*22*3600e6 || time > 4*24*3600e6 {
		t.Errorf("the day has %d us of four devices", time)
	}
}
