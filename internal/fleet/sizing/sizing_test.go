package sizing

import (
	"context"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/device/nvidia"
	"github.com/gpumeter/gpumeter/internal/fleet"
	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/query"
	"github.com/gpumeter/gpumeter/internal/query/querytest"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const gib = 1 << 30

// Models of the fleet in the tests.
const (
	h100 = "NVIDIA H100 80GB HBM3"
	l4   = "NVIDIA L4"
)

var sizes = map[string]float64{h100: 81559 << 20, l4: 23034 << 20}

// hold is what an instance of a workload had of one device in the twelve hours before noon. A negative value is not reported.
type hold struct {
	name, pod, uuid, model string
	job                    string // of Slurm, instead of a pod
	hours                  float64
	active                 float64 // hours
	peak, sm               float64
	memory                 float64 // GiB
	ended                  bool
	part                   float64 // 0: the whole device
	partition              string
	unmeasured             bool
	shared                 float64 // first hours in which the device has other holders, so that sm is not reported
	before                 float64 // the part that it had first, if it has another one at the end
}

// world is a store and the rows of its bill.
type world struct {
	*querytest.Memory
	rows  []Row
	fleet *fleet.Fleet
}

func build(t *testing.T, holds ...hold) *world {
	t.Helper()
	w := &world{Memory: querytest.NewMemory(), fleet: &fleet.Fleet{At: noon, Index: map[string]int{}}}
	for _, h := range holds {
		l := query.Labels{
			fleet.LabelUUID: h.uuid, fleet.LabelModel: h.model, fleet.LabelVendor: "nvidia", fleet.LabelKind: "deployment", fleet.LabelWorkload: h.name,
			fleet.LabelNamespace: "ns", fleet.LabelPodUID: h.pod, fleet.LabelTeam: "red",
		}
		if h.job != "" {
			l = query.Labels{
				fleet.LabelUUID: h.uuid, fleet.LabelModel: h.model, fleet.LabelVendor: "nvidia", fleet.LabelKind: fleet.KindSlurmJob, fleet.LabelWorkload: h.name,
				fleet.LabelSlurmJob: h.job, fleet.LabelSlurmUser: "rosa", fleet.LabelSlurmAccount: "bio",
			}
		}
		if h.partition != "" {
			l[fleet.LabelPartition] = h.partition
		}
		seconds := func(hours float64) fleet.Seconds { return fleet.Seconds(hours * 3600e6) }
		row := Row{Labels: l, Held: seconds(h.hours), Used: seconds(h.active)}
		if h.unmeasured {
			row.Used, row.Unmeasured = 0, row.Held
		}
		w.rows = append(w.rows, row)
		if part := h.part; part == 0 {
			h.part = 1
		}
		begin, end := noon.Add(-12*time.Hour), noon
		if h.ended {
			end = noon.Add(-time.Hour)
		}
		add := func(name string, at time.Time, v float64) {
			if v < 0 {
				return
			}
			s := maps.Clone(l)
			s[fleet.LabelName] = name
			w.Add(s, at, v)
		}
		if from := end.Add(-time.Duration(h.hours * float64(time.Hour))); from.After(begin) {
			begin = from
		}
		for at := begin; !at.After(end); at = at.Add(5 * time.Minute) {
			if part := h.part; h.before > 0 && at.Before(end.Add(-time.Hour)) {
				add(fleet.SeriesAllocation, at, h.before)
			} else {
				add(fleet.SeriesAllocation, at, part)
			}
			add(fleet.SeriesWorkloadUtilization, at, h.peak)
			add(fleet.SeriesWorkloadMemory, at, h.memory*gib)
			if h.sm != 0 && at.Sub(begin).Hours() >= h.shared {
				add(fleet.SeriesSMActive, at, h.sm)
			}
		}
		if size := sizes[h.model]; size > 0 {
			w.Add(query.Labels{fleet.LabelName: fleet.SeriesMemoryTotal, fleet.LabelUUID: h.uuid, fleet.LabelVendor: "nvidia"}, noon, size)
		}
		if _, ok := w.fleet.Index[h.uuid]; !ok {
			w.add(h.model, h.uuid)
		}
	}
	return w
}

// add adds a device to the fleet.
func (w *world) add(model, uuid string) {
	w.fleet.Index[uuid] = len(w.fleet.Devices)
	l := query.Labels{fleet.LabelUUID: uuid, fleet.LabelModel: model, fleet.LabelVendor: "nvidia"}
	w.fleet.Devices = append(w.fleet.Devices, fleet.Device{Labels: l, UUID: uuid, Model: model, Vendor: "nvidia", MemoryTotal: optional.Of(sizes[model])})
}

// prices are per hour and model.
func prices(row query.Labels, _ time.Time) (fleet.Hourly, bool) {
	price, ok := map[string]float64{h100: 3, l4: 0.5}[row[fleet.LabelModel]]
	return fleet.Hourly{Device: price}, ok
}

func (w *world) read(t *testing.T, o Options) []Workload {
	t.Helper()
	o.Facts = device.Vendors{nvidia.Facts}
	r, err := Read(t.Context(), w, w.rows, w.fleet, noon.Add(-12*time.Hour), noon, o)
	if err != nil {
		t.Fatal(err)
	}
	return r.Workloads
}

// advice is the kind, what to ask for, and the saving of the best advice, or why there is none.
type advice struct {
	Workload, Kind, Ask string
	PerDay              optional.Float
	Hours               float64
}

func advices(list []Workload) []advice {
	var out []advice
	for _, w := range list {
		if len(w.Advice) == 0 {
			out = append(out, advice{w.Name, "", w.Because, optional.Float{}, 0})
		}
		for _, a := range w.Advice {
			ask := a.Model + a.Profile
			if ask == "" {
				ask = a.Text
			}
			out = append(out, advice{w.Name, a.Kind, ask, a.PerDay, round(a.Hours)})
		}
	}
	return out
}

// Catches a workload of eight devices of which one is used that looks busy, or whose report has other numbers than its series.
func TestEightHeldOneUsed(t *testing.T) {
	t.Parallel()
	var list []hold
	for uuid := range strings.FieldsSeq("g1 g2 g3 g4 g5 g6 g7 g8") {
		h := hold{name: "sweep", job: "17", uuid: uuid, model: h100, hours: 6, memory: 2, peak: 0.01}
		if uuid == "g3" {
			h.active, h.peak, h.sm, h.memory = 5, 1, 0.6, 70
		}
		list = append(list, h)
	}
	got := build(t, list...).read(t, Options{Price: prices})
	want := []Workload{{
		Owner: fleet.Owner{ID: "slurm_job///sweep/17", Kind: fleet.KindSlurmJob, Name: "sweep", Team: "bio", Job: "17", User: "rosa", Account: "bio"},
		Mean:  4, Most: 8, Now: 8, Models: []Model{{h100, 4}},
		Devices: 8, Used: optional.Of(1), Activity: optional.Of((0.6 + 7*0.01) / 8), ActivityPeak: optional.Of(0.6),
		MemoryPeak: optional.Of(70 * gib), MemorySize: optional.Of(sizes[h100]), Observed: 6 * time.Hour,
		Advice: []Advice{{Kind: Fewer, Devices: 7, Enough: 1, Text: "used 1 of 8 GPUs: ask for 1", PerDay: optional.Of(7 * 24 * 3), Hours: 42}},
	}}
	if diff := cmp.Diff(want, got, approx); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Catches advice below a peak, without headroom, or about what is not known, such as the activity while others had the device too; a time that was
// observed and is longer than any; the wrong partition or model, and the wrong saving.
func TestAdvice(t *testing.T) {
	t.Parallel()
	busy := hold{model: h100, hours: 10, active: 9, peak: 1, sm: 0.1, memory: 7}
	with := func(name string, change func(*hold)) hold {
		h := busy
		h.name, h.pod, h.uuid = name, "pod-"+name, "gpu-"+name
		change(&h)
		return h
	}
	none := optional.Float{}
	for name, test := range map[string]struct {
		hold hold
		want []advice
	}{
		"fits the smallest partition": {with("a", func(*hold) {}), []advice{{"a", Cut, "1g.10gb", optional.Of(24 * 3 * 6 / 7.), round(10 * 6 / 7.)}}},
		"the memory needs more, at the same price": {
			with("a", func(h *hold) { h.memory = 9 }), // 9.9 GiB with headroom, and 1g.10gb has 9.75
			[]advice{{"a", Cut, "1g.20gb", optional.Of(24 * 3 * 6 / 7.), round(10 * 6 / 7.)}},
		},
		"the activity needs more":            {with("a", func(h *hold) { h.sm = 0.22 }), []advice{{"a", Cut, "2g.20gb", optional.Of(24 * 3 * 5 / 7.), round(10 * 5 / 7.)}}},
		"no partition is large enough":       {with("a", func(h *hold) { h.sm = 0.46 }), []advice{{"a", "", "needs what it has", none, 0}}},
		"only utilization is known":          {with("a", func(h *hold) { h.sm = 0 }), []advice{{"a", "", "needs what it has", none, 0}}},
		"memory is not known":                {with("a", func(h *hold) { h.memory = -1 }), []advice{{"a", "", "the peak of its memory or of its activity is not known", none, 0}}},
		"activity is not known":              {with("a", func(h *hold) { h.unmeasured = true }), []advice{{"a", "", "the activity of its devices is not known", none, 0}}},
		"no peak of activity":                {with("a", func(h *hold) { h.sm, h.peak = 0, -1 }), []advice{{"a", "", "the peak of its memory or of its activity is not known", none, 0}}},
		"shared its device for an hour":      {with("a", func(h *hold) { h.shared = 1 }), []advice{{"a", "", "the peak of its memory or of its activity is not known", none, 0}}},
		"the first samples are missing":      {with("a", func(h *hold) { h.shared = 0.1 }), []advice{{"a", Cut, "1g.10gb", optional.Of(24 * 3 * 6 / 7.), round(10 * 6 / 7.)}}},
		"shared, and active with others":     {with("a", func(h *hold) { h.active, h.sm, h.shared = 0, 0.01, 1 }), []advice{{"a", "", "the peak of its memory or of its activity is not known", none, 0}}},
		"an eighth now, the whole before":    {with("a", func(h *hold) { h.hours, h.part, h.before = 3, 0.125, 1 }), []advice{{"a", "", "observed for 3h: advice needs 4h of a period of at least 6h", none, 0}}},
		"too short":                          {with("a", func(h *hold) { h.hours, h.active = 3, 2 }), []advice{{"a", "", "observed for 3h: advice needs 4h of a period of at least 6h", none, 0}}},
		"a quarter of a device":              {with("a", func(h *hold) { h.part, h.hours = 0.25, 3 }), []advice{{"a", "", "has a part of a device, and uses it", none, 0}}},
		"without a request":                  {with("a", func(h *hold) { h.hours, h.part = 0, -1 }), []advice{{"a", "", "uses a device that it did not ask for", none, 0}}},
		"ended, and perhaps shared":          {with("a", func(h *hold) { h.ended, h.sm = true, 0 }), []advice{{"a", "", "has ended, and may have shared its device", none, 0}}},
		"a partition":                        {with("a", func(h *hold) { h.partition = "MIG-1" }), []advice{{"a", "", "has a part of a device, and uses it", none, 0}}},
		"a model without partitions":         {with("a", func(h *hold) { h.model, h.memory = l4, 1 }), []advice{{"a", "", "needs what it has", none, 0}}},
		"nothing was used":                   {with("a", func(h *hold) { h.active, h.sm, h.peak = 0, 0, 0 }), []advice{{"a", Release, "did not use its GPU", optional.Of(72), 10}}},
		"no active time, but a peak":         {with("a", func(h *hold) { h.active, h.sm = 0, 0.3 }), []advice{{"a", Cut, "3g.40gb", optional.Of(24 * 3 * 4 / 7.), round(10 * 4 / 7.)}}},
		"ended: nothing more is saved a day": {with("a", func(h *hold) { h.ended = true }), []advice{{"a", Cut, "1g.10gb", none, round(10 * 6 / 7.)}}},
		"a size that is not known":           {with("a", func(h *hold) { h.model = "NVIDIA H100 NVL" }), []advice{{"a", "", "the peak of its memory or of its activity is not known", none, 0}}},
	} {
		got := advices(build(t, test.hold).read(t, Options{Price: prices}))
		if diff := cmp.Diff(test.want, got, approx); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

var approx = cmp.Comparer(func(a, b optional.Float) bool {
	x, ok := a.Get()
	y, also := b.Get()
	return ok == also && x-y < 1e-9 && y-x < 1e-9
})

// Catches a smaller model that is too weak or has too little memory, costs more, is of another vendor or in another cluster.
func TestSmallerModel(t *testing.T) {
	t.Parallel()
	small := hold{name: "a", pod: "p", uuid: "g", model: h100, hours: 10, active: 9, peak: 1, sm: 0.05, memory: 7}
	asked := func(h hold, price fleet.Pricer, change func(*world)) []string {
		w := build(t, h)
		w.add(l4, "l")
		if change != nil {
			change(w)
		}
		var out []string
		for _, a := range advices(w.read(t, Options{Price: price})) {
			if a.Kind == Smaller {
				out = append(out, a.Ask)
			}
		}
		return out
	}
	f := func(what string, got []string, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	f("small", asked(small, prices, nil), l4)
	f("without prices", asked(small, nil, nil), l4)
	h := small
	h.sm = 0.09 // of 3,350 GB/s with headroom: more than the 300 of an L4
	f("too fast", asked(h, prices, nil))
	h = small
	h.memory = 21 // 23.1 GiB with headroom
	f("too large", asked(h, prices, nil))
	dear := func(row query.Labels, at time.Time) (fleet.Hourly, bool) {
		if row[fleet.LabelModel] == l4 {
			return fleet.Hourly{Device: 4}, true
		}
		return prices(row, at)
	}
	f("dearer", asked(small, dear, nil))
	f("of another cluster", asked(small, prices, func(w *world) { w.fleet.Devices[1].Cluster = "b" }))
	f("of another vendor", asked(small, prices, func(w *world) { w.fleet.Devices[1].Vendor = "amd" }))
	f("simulated", asked(small, prices, func(w *world) { w.fleet.Devices[1].Simulated = true }))
	f("memory not known", asked(small, prices, func(w *world) { w.fleet.Devices[1].MemoryTotal = optional.Float{} }))
}

// Catches replicas of a deployment that are judged by one of them, a label that arrived late and makes two devices of one, an earlier
// pod whose devices are added to those of its successor, and a job that has ended and vanishes.
func TestInstances(t *testing.T) {
	t.Parallel()
	one := hold{name: "api", model: h100, hours: 10, active: 9, peak: 1, sm: 0.05, memory: 7}
	of := func(pod, uuid string, change func(*hold)) hold {
		h := one
		h.pod, h.uuid = pod, uuid
		if change != nil {
			change(&h)
		}
		return h
	}
	got := advices(build(t, of("p1", "g1", nil), of("p2", "g2", func(h *hold) { h.memory = 30 })).read(t, Options{Price: prices}))
	if diff := cmp.Diff([]advice{{"api", Cut, "3g.40gb", optional.Of(2 * 24 * 3 * 4 / 7.), round(20 * 4 / 7.)}}, got, approx); diff != "" {
		t.Errorf("replicas (-want +got):\n%s", diff)
	}
	got = advices(build(t, of("p1", "g1", nil), of("p2", "g2", func(h *hold) { h.active, h.peak, h.sm = 0, 0, 0 })).read(t, Options{Price: prices}))
	if diff := cmp.Diff([]advice{{"api", Fewer, "used 1 of 2 GPUs: ask for 1", optional.Of(72), 10}}, got, approx); diff != "" {
		t.Errorf("an idle replica (-want +got):\n%s", diff)
	}
	w := build(t, of("p1", "g1", func(h *hold) { h.hours, h.active = 5, 4 }))
	late := Row{Labels: maps.Clone(w.rows[0].Labels), Held: w.rows[0].Held, Used: w.rows[0].Used}
	late.Labels[fleet.LabelHostType] = "p5"
	w.rows = append(w.rows, late)
	if list := w.read(t, Options{}); len(list) != 1 || list[0].Devices != 1 || list[0].Observed != 10*time.Hour {
		t.Errorf("a late label: %+v", list)
	}
	list := build(t, of("old", "g1", func(h *hold) { h.ended, h.hours = true, 4 }), of("new", "g2", nil)).read(t, Options{})
	if len(list) != 1 || list[0].Devices != 1 || list[0].Now != 1 || list[0].Most != 2 || round(list[0].Mean) != round(14./12) {
		t.Errorf("a successor: %+v", list)
	}
	list = build(t, of("p", "g1", func(h *hold) { h.ended = true }), of("p", "g2", func(h *hold) { h.ended, h.active, h.peak, h.sm = true, 0, 0, 0 })).read(t, Options{Price: prices})
	if len(list) != 1 || list[0].Now != 0 || list[0].Devices != 2 || len(list[0].Advice) != 1 || list[0].Advice[0].Kind != Fewer || list[0].Advice[0].PerDay.OK() {
		t.Errorf("a job that ended: %+v", list)
	}
}

// counting counts how many values the store must compute for questions about a period.
type counting struct {
	*world
	steps int
}

func (c *counting) Range(ctx context.Context, expr string, start, end time.Time, step time.Duration) ([]query.Series, error) {
	c.steps += int(end.Sub(start)/step) + 1
	return c.Memory.Range(ctx, expr, start, end, step)
}

// Catches a question about a month of 10,000 devices that takes the store minutes.
func TestBounded(t *testing.T) {
	t.Parallel()
	w := build(t, hold{name: "a", pod: "p", uuid: "g", model: h100, hours: 10, active: 9, peak: 1, memory: 7})
	w.fleet.Devices = append(w.fleet.Devices, make([]fleet.Device, 9_999)...)
	c := &counting{world: w}
	r, err := Read(t.Context(), c, w.rows, w.fleet, noon.Add(-30*24*time.Hour), noon, Options{})
	if err != nil || c.steps > 21 || r.Peaks != Window || r.Step < 24*time.Hour {
		t.Errorf("%d steps of %s, peaks of %s: %v", c.steps, r.Step, r.Peaks, err)
	}
	if w := r.Workloads[0]; w.Most != 1 {
		t.Errorf("%+v", w)
	}
}
