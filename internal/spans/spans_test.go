package spans

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpumeter/gpumeter/internal/device"
)

// service sends spans of one name, one each second.
type service struct {
	Board
	r   *rand.Rand
	now int64
}

func newService(seed uint64) *service { return &service{r: rand.New(rand.NewPCG(seed, 1))} }

func (s *service) span(seconds float64, f Facts) {
	s.now += 1e9
	span := Span{Service: "api", Name: "generate", Workload: "w", Entry: true, From: s.now - int64(seconds*1e9), To: s.now, Facts: f}
	span.Trace[0], span.Trace[1], span.Trace[2] = byte(s.now/1e9), byte(s.now/256e9), byte(s.now/65536e9)
	s.See([]Span{span})
}

// noise is a factor around 1.
func (s *service) noise(width float64) float64 { return math.Exp(width * s.r.NormFloat64()) }

func alone(own float64) Facts {
	return Facts{Own: device.Of(own), Others: device.Of(0), Busy: device.Of(own), Clock: device.Of(1.9e9)}
}

var near = cmpopts.EquateApprox(0.1, 0)

// Two processes share the GPU: each span takes twice as long, and its neighbor has half of the GPU.
func TestNeighbour(t *testing.T) {
	s := newService(1)
	for range 500 {
		s.span(0.1*s.noise(0.05), alone(0.5))
	}
	if got := s.SlowSpans(); got != nil {
		t.Fatalf("a quiet run: %+v", got)
	}
	s.span(0.2, Facts{Own: device.Of(0.5), Others: device.Of(0.5), Busy: device.Of(1), Clock: device.Of(1.9e9), Neighbours: []string{"other"}})
	got := s.SlowSpans()
	if len(got) != 1 || got[0].Cause() != Neighbour || math.Abs(got[0].Usual-0.1) > 0.01 {
		t.Fatalf("got %+v", got)
	}
	if diff := cmp.Diff([]Explanation{{Cause: Neighbour, Share: 1, Seconds: 0.1, Fact: "other: 0 -> 50 % of the GPU"}}, got[0].Explanations, near); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if want := "generate of api took 0.2 s instead of"; got[0].Text()[:len(want)] != want {
		t.Errorf("text %q", got[0].Text())
	}
	if s.SlowSpans() != nil {
		t.Error("a slow span is reported twice")
	}
}

// What is explained and what is not add up to what was lost, whatever the facts.
func TestSharesAddUp(t *testing.T) {
	for seed := range uint64(300) {
		s := newService(seed)
		for range 100 {
			s.span(0.1*s.noise(0.1), alone(0.3))
		}
		f := Facts{Own: device.Of(s.r.Float64()), Others: device.Of(s.r.Float64()), Busy: device.Of(1), Clock: device.Of(2e9 * s.r.Float64()), ByPower: s.r.Float64(), ByHeat: s.r.Float64(), Neighbours: []string{"x"}}
		s.span(0.1+s.r.Float64(), f)
		for _, slow := range s.SlowSpans() {
			sum, lost := slow.Unexplained, 0.0
			for _, e := range slow.Explanations {
				sum, lost = sum+e.Share, lost+e.Seconds
			}
			if math.Abs(sum-1) > 1e-9 || lost > slow.Lost*(1+1e-9) || slow.Unexplained < -1e-9 {
				t.Errorf("seed %d: shares add up to %v, %v of %v s: %+v", seed, sum, lost, slow.Lost, slow)
			}
		}
	}
}

// Catches a neighbor, or throttling, that is named although nothing changed but the spans themselves: noise,
// a heavy tail, a new release that is slower, a neighbor that was always there, a tail of the application.
func TestQuiet(t *testing.T) {
	shapes := map[string]func(s *service, i int) (float64, Facts){
		"noise":      func(s *service, _ int) (float64, Facts) { return 0.1 * s.noise(0.3), alone(0.5) },
		"heavy tail": func(s *service, _ int) (float64, Facts) { return 0.1 * s.noise(1.5), alone(0.5) },
		"slower": func(s *service, i int) (float64, Facts) {
			if i > 1000 {
				return 0.3 * s.noise(0.1), alone(0.5)
			}
			return 0.1 * s.noise(0.1), alone(0.5)
		},
		"waits elsewhere": func(s *service, i int) (float64, Facts) {
			if i%50 == 0 {
				return 5, alone(0.1)
			}
			return 0.1 * s.noise(0.1), alone(0.5)
		},
		"an old neighbor": func(s *service, i int) (float64, Facts) {
			f := Facts{Own: device.Of(0.5), Others: device.Of(0.4), Busy: device.Of(0.85), Neighbours: []string{"other"}}
			if i%50 == 0 {
				return 5, f
			}
			return 0.1 * s.noise(0.1), f
		},
		"a power cap that always is": func(s *service, i int) (float64, Facts) {
			f := Facts{Own: device.Of(0.9), Others: device.Of(0), Clock: device.Of(1.4e9 * s.noise(0.005)), ByPower: 1}
			if i%50 == 0 {
				return 5, f
			}
			return 0.1 * s.noise(0.1), f
		},
		"nothing is known": func(s *service, _ int) (float64, Facts) { return 0.1 * s.noise(1), Facts{ByHeat: 1} },
	}
	for name, shape := range shapes {
		s := newService(7)
		for i := range 5000 {
			s.span(shape(s, i))
		}
		if got := s.SlowSpans(); len(got) > 0 {
			t.Errorf("%s: %d spans, such as %s", name, len(got), got[0].Text())
		}
	}
}

// A throttled device, one that is full of the workload's own work, and what only partly explains.
func TestCauses(t *testing.T) {
	f := func(name string, seconds float64, facts Facts, cause Cause, unexplained float64) {
		t.Helper()
		s := newService(3)
		for range 300 {
			s.span(0.1*s.noise(0.02), alone(0.6))
		}
		s.span(seconds, facts)
		got := s.SlowSpans()
		if len(got) != 1 || got[0].Cause() != cause || math.Abs(got[0].Unexplained-unexplained) > 0.1 {
			t.Errorf("%s: %+v, want %s and %v unexplained", name, got, cause, unexplained)
		}
	}
	f("half the clock", 0.16, Facts{Own: device.Of(0.75), Others: device.Of(0), Clock: device.Of(0.95e9), ByHeat: 1}, Throttling, 0)
	f("a power cap", 0.16, Facts{Own: device.Of(0.75), Others: device.Of(0), Clock: device.Of(0.95e9), ByPower: 1}, PowerCap, 0)
	f("a full device", 0.16, Facts{Own: device.Of(1), Others: device.Of(0), Busy: device.Of(1), Clock: device.Of(1.9e9)}, OwnLoad, 0)
	f("mostly something else", 1, Facts{Own: device.Of(0.5), Others: device.Of(0.2), Clock: device.Of(1.9e9), Neighbours: []string{"x"}}, Nothing, 0.78)
}

// In the end a new normal is accepted, and before that every slow span was reported.
func TestAdopted(t *testing.T) {
	s := newService(1)
	for range 1000 {
		s.span(0.1*s.noise(0.05), alone(0.5))
	}
	n := 0
	for range 20_000 {
		s.span(0.2*s.noise(0.05), Facts{Own: device.Of(0.5), Others: device.Of(0.5), Busy: device.Of(1), Neighbours: []string{"x"}})
		n += len(s.SlowSpans())
	}
	if n < 300 || n > 3000 {
		t.Errorf("%d slow spans of 20,000 until it is usual", n)
	}
}

// Catches memory that grows with names, workloads and slow spans, and what is refused without a count.
func TestBounded(t *testing.T) {
	var b Board
	for i := range 5000 {
		b.See([]Span{{Service: "s", Name: fmt.Sprint(i), Workload: fmt.Sprint(i), Entry: true, From: int64(i) * 1e9, To: int64(i)*1e9 + 1e6}})
	}
	if len(b.usual) > maxNames || len(b.recent) > maxWorkloads {
		t.Errorf("%d names, %d workloads", len(b.usual), len(b.recent))
	}
	for i := range 200 {
		s := Slow{Lost: float64((i*7 + 10) % 200)} // the largest losses are neither first nor last, and the last is small
		s.Trace[0], s.Trace[1] = byte(i), 1
		b.keep(s)
	}
	got := b.SlowSpans()
	if len(got) != maxPending || b.Refused() < 200-maxPending {
		t.Errorf("%d slow spans, %d refused", len(got), b.Refused())
	}
	for _, s := range got {
		if s.Lost < 200-maxPending {
			t.Errorf("a span that lost %v s is kept in place of one that lost more", s.Lost)
		}
	}
}

// Catches links to spans of another workload, process or time.
func TestDuring(t *testing.T) {
	var b Board
	for i := range int64(300) {
		for j := range int64(20) {
			b.See([]Span{{ID: [8]byte{byte(j)}, Name: "x", Workload: "w", PID: uint32(7 + j%2), Entry: j != 19, From: i*1e9 - j*1e6, To: i * 1e9}})
		}
	}
	var got []string
	for _, s := range b.During("w", 7, 250e9, 251e9, 3) {
		got = append(got, fmt.Sprint(s.To/1e9, " ", s.ID[0]))
	}
	if diff := cmp.Diff([]string{"250 18", "251 18", "250 16"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := b.During("w", 0, 10e9, 100e9, 3); len(got) != 0 {
		t.Errorf("spans that are too old: %v", got)
	}
	if got := b.During("v", 0, 0, 1e15, 3); got != nil {
		t.Errorf("spans of an unknown workload: %v", got)
	}
}

// Catches launches of another process or time, and a count where part of the time is unknown.
func TestCalls(t *testing.T) {
	var b Board
	for i := range 5 {
		n := float64(i * i)
		b.Traced(int64(i)*10e9, map[uint32]Calls{7: {Launches: 100 * n, Busy: n, Copied: 1000 * n, Waited: n / 2}, 8: {Launches: 1}})
	}
	f := func(pid uint32, from, to, want float64, known bool) {
		t.Helper()
		got, ok := b.Calls(pid, int64(from*1e9), int64(to*1e9))
		if diff := cmp.Diff(Calls{want, want / 100, want * 10, want / 200}, got, cmpopts.EquateApprox(1e-9, 1e-9)); diff != "" || ok != known {
			t.Errorf("from %v to %v: %t (-want +got):\n%s", from, to, ok, diff)
		}
	}
	f(7, 0, 40, 1600, true)
	f(7, 5, 15, 50+150, true)
	f(7, 12, 13, 30, true)
	f(7, 20, 20, 0, true)
	f(7, 30, 30.5, 35, true)
	f(7, 39, 45, 70*6, true) // it goes on
	f(8, 5, 15, 0, true)
	f(7, 39, 51, 0, false)
	f(7, -1, 5, 0, false)
	f(9, 5, 15, 0, false)
	b.Traced(50e9, map[uint32]Calls{7: {Launches: 3}}) // another process with that number
	f(7, 30, 45, 0, false)
	b.Traced(400e9, nil)
	if len(b.traced) != 0 {
		t.Errorf("%d processes that ended are remembered", len(b.traced))
	}
}
