package tokens

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/cost"
	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/fleet/serving"
	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/query/querytest"
)

// tokenStore has the counters of devices and engines of an afternoon, with a sample each minute.
type tokenStore struct {
	*querytest.Memory
	begin time.Time
}

// each adds a series with a value for every minute.
func (s tokenStore) each(name string, l map[string]string, value func(minute int) float64, more ...string) {
	labels := query.Labels{fleet.LabelName: name, fleet.LabelHost: "n"}
	maps.Copy(labels, l)
	for i := 0; i < len(more); i += 2 {
		labels[more[i]] = more[i+1]
	}
	for i := range 181 {
		if v := value(i); v >= 0 {
			s.Add(labels, s.begin.Add(time.Duration(i)*time.Minute), v)
		}
	}
}

func served(workload string) map[string]string {
	return map[string]string{fleet.LabelKind: "deployment", fleet.LabelWorkload: workload, fleet.LabelTeam: "team-" + workload, fleet.LabelPodUID: workload}
}

// holds adds a workload that has a part of a device, uses it three quarters of the time and draws watts.
func (s tokenStore) holds(workload, uuid, partition string, part, watts float64) {
	l := served(workload)
	l[fleet.LabelUUID], l[fleet.LabelModel] = uuid, "H100"
	if partition != "" {
		l[fleet.LabelPartition] = partition
	}
	for name, perMinute := range map[string]float64{fleet.SeriesAllocatedTime: 60 * part, fleet.SeriesActiveTime: 45 * part, fleet.SeriesEnergy: 60 * watts} {
		s.each(name, l, func(minute int) float64 { return perMinute * float64(minute) })
	}
}

// engine adds an engine on devices, as UUID or UUID/partition.
func (s tokenStore) engine(id, workload string, devices ...[2]string) {
	l := served(workload)
	l[fleet.LabelEngine], l[fleet.LabelProvider] = id, "vllm"
	for _, d := range devices {
		more := []string{fleet.LabelUUID, d[0], fleet.LabelModel, "H100"}
		if d[1] != "" {
			more = append(more, fleet.LabelPartition, d[1])
		}
		s.each(fleet.SeriesEngineDevice, l, func(int) float64 { return 1 }, more...)
	}
}

// counts adds counters of tokens that grow by so much a minute.
func (s tokenStore) counts(id, workload, model string, in, cached, out float64, value func(minute int, perMinute float64) float64) {
	l := served(workload)
	l[fleet.LabelEngine], l[fleet.LabelProvider], l[fleet.LabelServedModel] = id, "vllm", model
	for name, perMinute := range map[string]float64{fleet.SeriesTokensIn: in, fleet.SeriesPrefixHits: cached, fleet.SeriesTokensOut: out} {
		s.each(name, l, func(minute int) float64 { return value(minute, perMinute) })
	}
}

func steadily(minute int, perMinute float64) float64 { return perMinute * float64(minute) }

// serve returns the bill of a period, and what was served.
func (s tokenStore) serve(t *testing.T, prices string, from, to time.Duration) (cost.Statement, *Bill) {
	t.Helper()
	r, p := reader(t, s, prices), parsed(t, prices)
	bill, err := cost.Bill(t.Context(), s, p, s.begin.Add(from), s.begin.Add(to), cost.Options{})
	if err != nil {
		t.Fatal(err)
	}
	out, err := r.Read(t.Context(), s.begin.Add(from), s.begin.Add(to), s.begin.Add(to))
	if err != nil {
		t.Fatal(err)
	}
	return bill, out
}

func parsed(t *testing.T, prices string) (p cost.Prices) {
	t.Helper()
	if prices == "" {
		return p
	}
	p, err := cost.Parse([]byte(prices))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// reader returns a reader with prices.
func reader(t *testing.T, store query.Store, prices string) *Reader {
	t.Helper()
	p := parsed(t, prices)
	return NewReader(store, func(ctx context.Context, from, to time.Time) (*cost.Statement, error) {
		s, err := cost.Bill(ctx, store, p, from, to, cost.Options{})
		return &s, err
	}, cost.Options{}, DefaultInputWeight)
}

const fourAnHour = "currency: EUR\nprices: [{match: {model: H100}, rates: [{from: 2026-01-01, kind: on_demand, per_hour: 4}]}]\n"

// line is a group as text.
func line(g *Group) string {
	text := func(v optional.Float) string {
		if f, ok := v.Get(); ok {
			return fmt.Sprintf("%.4f", f)
		}
		return "-"
	}
	return fmt.Sprintf("%d engines on %d GPUs, %.2f h, cost %s, idle %s, %.0f J, in %v of them cached %v, out %v; %s %s %s, %s tokens/J",
		g.Engines, g.Devices, g.Time().Hours(), g.Amounts.Total(), g.IdleCost, g.Energy.Joules(), g.In.N, g.Cached.N, g.Out.N,
		text(g.PerMillion), text(g.PerMillionOutput), text(g.PerMillionWeighted), text(g.TokensPerJoule))
}

func lines(s *Bill, by ...string) map[string]string {
	var dims []cost.Dimension
	for _, name := range by {
		for _, d := range Dimensions() {
			if d.Name == name {
				dims = append(dims, d)
			}
		}
	}
	out := map[string]string{}
	for _, g := range s.By(dims...) {
		out[g.Name] = line(&g)
	}
	return out
}

// Catches cost per token that is not that of a calculation by hand: of two models that share a GPU in time or
// in partitions, of one model on four GPUs, of two models of one engine, of an engine that begins anew within
// the period, and of one that the bill has no device of.
func TestCostPerTokenByHand(t *testing.T) {
	t.Parallel()
	s := tokenStore{querytest.NewMemory(), time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)}
	// GPU-0 is shared in time: a quarter and three quarters of 4 EUR an hour.
	s.holds("chat", "GPU-0", "", 0.25, 100)
	s.engine("e0", "chat", [2]string{"GPU-0", ""})
	s.counts("e0", "chat", "llama", 30000, 0, 2000, steadily)
	s.holds("code", "GPU-0", "", 0.75, 300)
	s.engine("e1", "code", [2]string{"GPU-0", ""})
	s.counts("e1", "code", "qwen", 60000, 20000, 10000, func(minute int, perMinute float64) float64 {
		if minute >= 90 { // in the middle of the second hour it begins anew
			return perMinute * float64(minute-89)
		}
		return perMinute * float64(minute)
	})
	// GPU-1 has two partitions of different workloads, and a third one without an engine.
	s.holds("chat", "GPU-1", "MIG-a", 2./7, 50)
	s.engine("e2", "chat", [2]string{"GPU-1", "MIG-a"})
	s.counts("e2", "chat", "llama", 0, 0, 1000, steadily)
	s.holds("embed", "GPU-1", "MIG-b", 1./7, 20)
	s.engine("e3", "embed", [2]string{"GPU-1", "MIG-b"})
	s.counts("e3", "embed", "bge", 90000, 0, 0, steadily)
	s.holds("train", "GPU-1", "MIG-c", 4./7, 200)
	// One model on four GPUs.
	var four [][2]string
	for i := range 4 {
		uuid := fmt.Sprint("GPU-4", i)
		s.holds("big", uuid, "", 1, 700)
		four = append(four, [2]string{uuid, ""})
	}
	s.engine("e4", "big", four...)
	s.counts("e4", "big", "deepseek", 100000, 50000, 40000, steadily)
	// One engine with two models, of which one is idle.
	s.holds("many", "GPU-5", "", 1, 400)
	s.engine("e5", "many", [2]string{"GPU-5", ""})
	s.counts("e5", "many", "bert", 3000, 0, 0, steadily)
	s.counts("e5", "many", "whisper", 0, 0, 1800, steadily)
	s.counts("e5", "many", "idle", 0, 0, 0, steadily)
	// An engine without a device.
	s.counts("e6", "lost", "lost", 10, 0, 10, steadily)
	// A GPU that nobody uses: its engine has counted nothing.
	s.holds("unused", "GPU-6", "", 1, 60)
	s.engine("e7", "unused", [2]string{"GPU-6", ""})

	bill, got := s.serve(t, fourAnHour, time.Hour, 2*time.Hour)
	want := map[string]string{
		// 1 EUR of GPU-0 and 4*2/7 of GPU-1 for 1.8 M and 0.12 M + 0.06 M tokens; weighted 0.36 M + 0.18 M.
		"llama": "2 engines on 2 GPUs, 0.54 h, cost 2.14, idle 0.54, 540000 J, in 1800000 of them cached 0, out 180000; 1.0823 11.9048 3.9683, 3.6667 tokens/J",
		// 3 EUR for 3.6 M and 0.6 M tokens; weighted 0.2*2.4 M + 0.6 M.
		"qwen":     "1 engines on 1 GPUs, 0.75 h, cost 3.00, idle 0.75, 1080000 J, in 3600000 of them cached 1200000, out 600000; 0.7143 5.0000 2.7778, 3.8889 tokens/J",
		"bge":      "1 engines on 1 GPUs, 0.14 h, cost 0.57, idle 0.14, 72000 J, in 5400000 of them cached 0, out 0; 0.1058 - 0.5291, 75.0000 tokens/J",
		"deepseek": "1 engines on 4 GPUs, 4.00 h, cost 16.00, idle 4.00, 10080000 J, in 6000000 of them cached 3000000, out 2400000; 1.9048 6.6667 5.3333, 0.8333 tokens/J",
		// 0.2*180,000 : 108,000 is 1 : 3.
		"bert":    "1 engines on 1 GPUs, 0.25 h, cost 1.00, idle 0.25, 360000 J, in 180000 of them cached 0, out 0; 5.5556 - 27.7778, 0.5000 tokens/J",
		"whisper": "1 engines on 1 GPUs, 0.75 h, cost 3.00, idle 0.75, 1080000 J, in 0 of them cached 0, out 108000; 27.7778 27.7778 27.7778, 0.1000 tokens/J",
		"idle":    "1 engines on 1 GPUs, 0.00 h, cost 0.00, idle 0.00, 0 J, in 0 of them cached 0, out 0; - - -, - tokens/J",
		"lost":    "1 engines on 0 GPUs, 0.00 h, cost 0.00, idle 0.00, 0 J, in 600 of them cached 0, out 600; - - -, - tokens/J",
		"(none)":  "1 engines on 1 GPUs, 1.00 h, cost 4.00, idle 1.00, 216000 J, in 0 of them cached 0, out 0; - - -, - tokens/J",
	}
	if diff := cmp.Diff(want, lines(got, "model")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// Models cost what their GPUs cost in the bill, to the last digit: all but train's part of GPU-1.
	total, gpus := got.Total(), cost.Amounts{}
	for _, r := range bill.Rows {
		if r.Labels[fleet.LabelWorkload] != "train" {
			gpus = gpus.Add(r.Amounts)
		}
	}
	if diff := cmp.Diff(gpus, total.Amounts); diff != "" || len(got.Rest) > 0 {
		t.Errorf("%d in no model, (-bill +models):\n%s", len(got.Rest), diff)
	}
	if text := line(&total); text != "8 engines on 8 GPUs, 7.43 h, cost 29.71, idle 7.43, 13428000 J, in 16980600 of them cached 4200000, out 3288600; 1.4661 9.0372 5.0846, 1.5094 tokens/J" {
		// The tokens of e6 are in no cost: 29.71 / 20.268 M, / 3.288 M, / (0.2*12.78 M + 3.288 M).
		t.Errorf("total: %s", text)
	}
	if total.Unbilled != 1200 {
		t.Errorf("%d tokens have no device", total.Unbilled)
	}
	if diff := cmp.Diff(want["deepseek"], lines(got, "team", "model")["team-big / deepseek"]); diff != "" {
		t.Error(diff)
	}
	// Without prices there are tokens, time and energy.
	_, free := s.serve(t, "", time.Hour, 2*time.Hour)
	if got, want := lines(free, "model")["qwen"], "1 engines on 1 GPUs, 0.75 h, cost 0.00, idle 0.00, 1080000 J, in 3600000 of them cached 1200000, out 600000; - - -, 3.8889 tokens/J"; got != want {
		t.Errorf("without prices: %s", got)
	}
}

// Catches tokens of an engine that count as a whole on each of its devices or in each hour, or on a device as often as
// the device has series, where another engine of the workload has a part of it.
func TestEnginesShareADevice(t *testing.T) {
	t.Parallel()
	l := query.Labels{fleet.LabelKind: "job", fleet.LabelWorkload: "w"}
	owner, _ := fleet.OwnerOf(l)
	on := func(engine, device, model string, hours serving.Hours) serving.Work {
		return serving.Work{Engine: serving.Engine{ID: engine}, Owner: owner, Device: device, Model: model, Hours: hours, Labels: l}
	}
	counted := func(engine string, out int64) serving.TokenRow {
		return serving.TokenRow{Engine: serving.Engine{ID: engine}, Owner: owner, Model: "of-" + engine, Labels: l, Tokens: serving.Tokens{Out: serving.TallyOf(out)}}
	}
	row := func(device string) cost.Row {
		labels := maps.Clone(l)
		labels[fleet.LabelUUID] = device
		return cost.Row{Labels: labels, Amounts: cost.Amounts{Used: 4e6, UsedCost: 4e6}}
	}
	hour := func(n int) time.Time { return time.Date(2026, 11, 15, n, 0, 0, 0, time.UTC) }
	parts := []cost.Statement{{From: hour(0), To: hour(1), Rows: []cost.Row{row("1"), row("2")}}, {From: hour(1), To: hour(2), Rows: []cost.Row{row("1"), row("2")}}}
	use := &serving.TokenUse{
		Works: []serving.Work{on("a", "1", "", 0b111), on("a", "1", "of-a", 0b11), on("a", "2", "", 0b11), on("b", "1", "", 0b10)},
		Rows:  []serving.TokenRow{counted("a", 1200), counted("b", 100)},
	}
	// On device 1 in the second hour, a quarter of the 1,200 tokens of a count: the others were computed on device 2 and
	// in the first hour, and none in the third one, which is not billed.
	want := map[string]cost.Money{"of-a": 4e6 + 4e6 + 4e6 + 3e6, "of-b": 1e6}
	got := map[string]cost.Money{}
	for _, g := range Divide(parts, use, DefaultInputWeight).By(servingDimension("model")) {
		got[g.Name] = g.Amounts.Total()
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Catches money that counts twice or is lost, whatever engines and workloads share, begin and end: the rows of models and
// what had no engine add up to those of the bill for the workloads of engines, in all amounts.
func TestServingAddsUp(t *testing.T) {
	t.Parallel()
	midnight := time.Date(2026, 11, 15, 0, 0, 0, 0, time.UTC)
	rests, remotes := 0, 0
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		use := &serving.TokenUse{}
		amount := func() int64 { return r.Int64N([]int64{6, 1e12}[r.IntN(2)]) - 5 }
		workloads := []string{"a", "b", "c", "(none)", "(unattributed)"}
		labels := func(workload string) query.Labels {
			l := query.Labels{fleet.LabelTeam: "t" + workload}
			switch workload {
			case "(none)":
			case "(unattributed)":
				l[fleet.LabelKind] = fleet.KindUnattributed
			default:
				l[fleet.LabelKind], l[fleet.LabelWorkload] = "job", workload
			}
			return l
		}
		want := cost.Amounts{}
		serves := map[string]bool{}
		hours := func() serving.Hours { return []serving.Hours{1<<24 - 1, 0b11, 0b1100, 1 << 23}[r.IntN(4)] }
		for e := range r.IntN(8) {
			workload := workloads[r.IntN(len(workloads))]
			owner, _ := fleet.OwnerOf(labels(workload))
			engine := serving.Engine{Host: fmt.Sprint("n", r.IntN(2)), ID: fmt.Sprint(e / 2)}
			for range r.IntN(4) {
				w := serving.Work{
					Engine: engine, Owner: owner, Device: fmt.Sprint(r.IntN(4)), Partition: []string{"", "p", "q"}[r.IntN(3)], Labels: labels(workload),
					Model: []string{"", "", "m0", "m7"}[r.IntN(4)], Hours: hours(),
				}
				use.Works = append(use.Works, w)
				serves[workload] = workload[0] != '('
			}
			for range r.IntN(3) {
				row := serving.TokenRow{Engine: engine, Owner: owner, Model: fmt.Sprint("m", r.IntN(3)), Labels: labels(workload)}
				row.In, row.Out = serving.TallyOf(r.Int64N(1e12)*int64(r.IntN(2))), serving.TallyOf(r.Int64N(1e12)*int64(r.IntN(2)))
				row.Cached = serving.TallyOf(r.Int64N(1e12))
				row.Tenant = []string{"", "", "x", "y"}[r.IntN(4)]
				use.Rows = append(use.Rows, row)
			}
		}
		var parts []cost.Statement
		for _, hour := range [][2]int{{0, 2}, {2, 3}, {3, 4}, {4, 23}} { // engines of the last hour are not billed
			s := cost.Statement{From: midnight.Add(time.Duration(hour[0]) * time.Hour), To: midnight.Add(time.Duration(hour[1]) * time.Hour)}
			for range 10 {
				workload := workloads[r.IntN(len(workloads))]
				l := labels(workload)
				l[fleet.LabelUUID], l[fleet.LabelPodUID], l[fleet.LabelHost] = fmt.Sprint(r.IntN(4)), fmt.Sprint(r.IntN(2)), fmt.Sprint("n", r.IntN(3))
				if p := []string{"", "p", "q"}[r.IntN(3)]; p != "" {
					l[fleet.LabelPartition] = p
				}
				a := cost.Amounts{
					Used: cost.Seconds(amount()), Idle: cost.Seconds(amount()), Unmeasured: cost.Seconds(amount()), Energy: cost.Energy(amount()), Carbon: cost.Carbon(amount()),
					UsedCost: cost.Money(amount()), IdleCost: cost.Money(amount()), UnmeasuredCost: cost.Money(amount()), EnergyCost: cost.Money(amount()),
					Unpriced: cost.Seconds(r.Int64N(2)), UnpricedEnergy: cost.Energy(amount()), Uncounted: cost.Energy(amount()),
				}
				s.Rows = append(s.Rows, cost.Row{Labels: l, Amounts: a})
				if serves[workload] {
					want = want.Add(a)
				}
			}
			parts = append(parts, s)
		}
		for range r.IntN(4) {
			use.Gateways = append(use.Gateways, serving.TokenRow{
				Model: fmt.Sprint([]string{"", "openai/"}[r.IntN(2)], "m", r.IntN(3)), Tenant: []string{"", "x", "z"}[r.IntN(3)],
				Tokens: serving.Tokens{In: serving.TallyOf(r.Int64N(1e12) * int64(r.IntN(2))), Out: serving.TallyOf(r.Int64N(1e11))},
			})
		}
		served := Divide(parts, use, InputWeight(r.Int64N(1001)))
		total, rest := served.Total(), served.RestTotal()
		if diff := cmp.Diff(want, total.Amounts.Add(rest.Amounts)); diff != "" {
			t.Errorf("seed %d: (-want +got):\n%s", seed, diff)
		}
		if rest.Time() > 0 {
			rests++
		}
		if served.Remote > 0 {
			remotes++
		}
		var tokens serving.Tokens
		for i := range use.Rows {
			tokens = tokens.Plus(use.Rows[i].Tokens)
		}
		if diff := cmp.Diff(tokens, total.Tokens); diff != "" {
			t.Errorf("seed %d: tokens (-want +got):\n%s", seed, diff)
		}
		for _, by := range []string{"model", "team", "workload", "cluster", "gpu", "tenant"} {
			var sum cost.Amounts
			d := servingDimension(by)
			for _, g := range slices.Concat(served.By(d), served.RestBy(d)) {
				sum = sum.Add(g.Amounts)
			}
			if diff := cmp.Diff(want, sum); diff != "" {
				t.Errorf("seed %d: by %s (-want +got):\n%s", seed, by, diff)
			}
		}
	}
	if rests < 20 || remotes < 20 {
		t.Errorf("only %d worlds have GPUs without an engine, and %d engines that span machines", rests, remotes)
	}
}

func servingDimension(name string) cost.Dimension {
	for _, d := range Dimensions() {
		if d.Name == name {
			return d
		}
	}
	panic(name)
}
