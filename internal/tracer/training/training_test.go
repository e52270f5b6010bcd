package training

import (
	"encoding/json"
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/gpumeter/gpumeter/internal/tracer"
)

// seeds returns how many runs of a random world are made.
func seeds(n uint64) uint64 {
	if testing.Short() {
		return 1
	}
	return n
}

// A wrong number of launches in a step makes each count of steps wrong, whatever else is right.
func TestStepsAreCounted(t *testing.T) {
	fused := map[string]float64{"multi_tensor_apply_kernel<..., FusedAdamMathFunctor<float, 4>>": 7}
	once := map[string]float64{"multi_tensor_apply_kernel<..., FusedAdamMathFunctor<float, 4>>": 1}
	eval := func(every uint64, batches int) func(*loop) []part {
		train := training(0.2, 1, adamw)
		return func(l *loop) []part {
			list := train(l)
			if l.steps%every == every-1 {
				for range batches {
					list = append(list, part{seconds: 0.07, kernels: forward}, part{seconds: 0.002, kernels: loss})
				}
			}
			return list
		}
	}
	after := func(train func(*loop) []part, every uint64, add part) func(*loop) []part {
		return func(l *loop) []part {
			list := train(l)
			if l.steps%every == every-1 {
				list = append(list, add)
			}
			return list
		}
	}
	long := func(l *loop) []part { // an update that takes 30 % of the step
		list := training(0.2, 1, adamw)(l)
		list[len(list)-1].seconds = 0.08
		return list
	}
	started := false
	filled := func(l *loop) []part {
		list := training(0.2, 2, adamw)(l)
		if l.steps == 0 && !started {
			list = append([]part{{seconds: 4, kernels: map[string]float64{"FillFunctor": 292, "elementwise_kernel": 100}}}, list...)
		}
		return append(list, part{kernels: map[string]float64{"FillFunctor": 72}})
	}
	for _, c := range []struct {
		name  string
		next  func(*loop) []part
		steps uint64
	}{
		{"a log each 10 steps", after(training(0.2, 1, adamw), 10, part{seconds: 0.001, kernels: map[string]float64{"isnan_kernel": 1, "copy_kernel": 2}}), 1500},
		{"a small evaluation", after(training(0.2, 1, adamw), 20, part{seconds: 0.01, kernels: forward}), 1500},
		{"penalty each 16 steps", after(training(0.2, 1, adamw), 16, part{seconds: 0.1, kernels: backward}), 1500},
		{"a long update", long, 1500},
		{"tensors filled at the start", filled, 1500},
		{"plain", training(0.25, 1, adamw), 2000},
		{"fused", training(0.11, 1, fused), 3000},
		{"one launch", training(0.11, 1, once), 3000},
		{"1,000 steps in less than a minute", training(0.05, 1, adamw), 1000},
		{"accumulated 2", training(0.5, 2, adamw), 800},
		{"accumulated 8", training(1.3, 8, adamw), 400},
		{"accumulated 6, fused", training(1.3, 6, fused), 400},
		{"accumulated 32, steps longer than a reading", training(26, 32, adamw), 60},
		{"a step in two readings", training(14, 1, adamw), 100},
		{"evaluation", eval(50, 40), 1500},
		{"evaluation each step", eval(1, 3), 500},
	} {
		for seed := range seeds(5) {
			t.Run(fmt.Sprintf("%s/%d", c.name, seed), func(t *testing.T) {
				l := newLoop(seed, c.next)
				s := l.watch(New(), "job")
				l.play(part{seconds: 3 + 9*l.rand.Float64()}) // imports
				l.make(c.steps)
				l.exit()
				if s.steps != c.steps {
					t.Errorf("%d steps were counted, it made %d", s.steps, c.steps)
				}
				if d := s.all() - seconds(l.now); d.Abs() > time.Microsecond {
					t.Errorf("the activities take %v, the process ran for %v: %v", s.all(), seconds(l.now), s.time)
				}
			})
		}
	}
}

// Updates in hooks of the backward pass, layer by layer: a reading is always in the middle of one.
func TestStepsOfHooks(t *testing.T) {
	for seed := range seeds(5) {
		l := newLoop(seed, func(l *loop) []part {
			list := []part{{seconds: 0.06 * l.noise(0.02), kernels: forward}, {seconds: 0.003, kernels: loss}, {seconds: 0.003, kernels: lossBack}}
			for range 24 {
				list = append(list,
					part{seconds: 0.006 * l.noise(0.02), kernels: map[string]float64{"layer_norm_grad_input_kernel": 2, "flash_bwd_dq_dk_dv_loop_kernel": 1, "sm90_xmma_gemm_bf16": 8}},
					part{seconds: 0.001, kernels: map[string]float64{"multi_tensor_apply_kernel<..., FusedAdamMathFunctor<float, 4>>": 3}})
			}
			return append(list, part{step: true})
		})
		s := l.watch(New(), "job")
		l.make(2000)
		l.exit()
		if s.steps > 2000+20 || s.steps < 2000-20 {
			t.Errorf("seed %d: %d steps were counted, it made 2000", seed, s.steps)
		}
	}
}

// Steps are known long before the end.
func TestStepsAreKnownSoon(t *testing.T) {
	l := newLoop(1, training(0.25, 1, adamw))
	s := l.watch(New(), "job")
	l.run(65)
	if s.steps == 0 {
		t.Error("no step was counted in a minute")
	}
	l = newLoop(1, training(1.3, 8, adamw))
	s = l.watch(New(), "job")
	l.run(125)
	if made := l.steps; s.steps+10 < made {
		t.Errorf("%d steps were counted in two minutes, it made %d", s.steps, made)
	}
}

// Inference has no optimizer. Neither has a kernel that many programs use.
func TestInferenceIsNoTraining(t *testing.T) {
	l := newLoop(1, func(l *loop) []part { return []part{{seconds: 0.04 * l.noise(0.1), kernels: forward, step: true}} })
	s := l.watch(New(), "server")
	l.run(1200)
	l.exit()
	if s.told {
		t.Errorf("a server trains: %+v", s)
	}
	lists := map[string]float64{"multi_tensor_apply_kernel<..., UnaryOpFunctor>": 2}
	maps.Copy(lists, forward)
	l = newLoop(1, func(*loop) []part { return []part{{seconds: 0.04, kernels: lists, step: true}} })
	s = l.watch(New(), "server")
	l.run(1200)
	l.exit()
	if s.told {
		t.Errorf("a server that uses lists of tensors trains: %+v", s)
	}
}

// Gradients without an update, as in guided diffusion, are no steps.
func TestGradientsAreNoSteps(t *testing.T) {
	l := newLoop(1, func(*loop) []part {
		return []part{{seconds: 0.1, kernels: forward}, {seconds: 0.2, kernels: backward, step: true}}
	})
	s := l.watch(New(), "")
	l.run(600)
	if s.told {
		t.Errorf("%+v", s)
	}
}

func TestWhereTimeGoes(t *testing.T) {
	var saves int
	l := newLoop(3, nil)
	step := training(0.25, 1, adamw)
	l.next = func() []part {
		list := step(l)
		switch l.steps % 400 {
		case 399: // a checkpoint of 3 GB in 6 s
			saves++
			list = append(list, part{seconds: 6, writes: 3e9})
		case 200: // an evaluation of 20 s
			list = append(list, part{seconds: 20, kernels: map[string]float64{"sm90_xmma_gemm_bf16": 9600}})
		}
		return list
	}
	s := l.watch(New(), "job")
	l.play(part{seconds: 30})
	l.make(2000)
	l.exit()
	t.Log(s.time, s.all(), l.now)
	within := func(a Activity, want, by float64) {
		t.Helper()
		if got := s.time[a].Seconds(); got < want*(1-by) || got > want*(1+by) {
			t.Errorf("%s takes %.1f s, want %.1f", a, got, want)
		}
	}
	if s.steps != 2000 {
		t.Errorf("%d steps", s.steps)
	}
	within(Startup, 30, 0.05)
	within(Data, 2000*0.25*0.04, 0.04)
	within(Checkpoint, float64(saves)*6, 0.25)
	within(Other, 5*20, 0.25)
	within(Step, 2000*0.25*0.9, 0.05)
	if s.checkpoints != uint64(saves) || s.bytes != uint64(saves)*3e9 {
		t.Errorf("%d checkpoints of %d bytes, it made %d of %d", s.checkpoints, s.bytes, saves, saves*3e9)
	}
}

// Each rank makes all steps: they count once. The rank that waits least is the one that the others wait for.
func TestRanks(t *testing.T) {
	var ranks []*loop
	sums := map[int]*sum{}
	for r := range 4 {
		l := newLoop(9, func(l *loop) []part {
			list := training(0.25, 1, adamw)(l)
			late := 0.02
			if l.rank == 2 { // the slow one
				late = 0
			}
			return append(list, part{seconds: 0.03, barrier: 0.01 + late})
		})
		l.pid, l.rank, l.ranks = uint32(100+r), r, 4
		ranks, sums[r] = append(ranks, l), &sum{}
	}
	o := New()
	for end := 10.0; end <= 600; end += 10 {
		for _, l := range ranks {
			l.due = 1e9
			l.run(end)
		}
		observe(o, end, false, ranks, sums)
	}
	if got, made := sums[0].steps, ranks[0].steps; got+60 < made || got > made {
		t.Errorf("rank 0 counts %d steps, it made %d", got, made)
	}
	for r := 1; r < 4; r++ {
		if sums[r].steps != 0 {
			t.Errorf("rank %d counts %d steps, too", r, sums[r].steps)
		}
	}
	if w := sums[2].time[Collective]; w > time.Second {
		t.Errorf("the slow rank waits for %v", w)
	}
	if w, want := sums[1].time[Collective].Seconds(), float64(ranks[1].steps)*0.02; w < 0.8*want || w > 1.1*want {
		t.Errorf("rank 1 waits for %.1f s, want %.1f", w, want)
	}
}

// A job that is requeued goes on from its last checkpoint: what it did since is lost, and so is the time until
// it makes steps again. The ranks of one job restart it once each, and only rank 0 counts.
func TestRestart(t *testing.T) {
	o := New()
	first := newLoop(4, nil)
	step := training(0.25, 1, adamw)
	save := func(l *loop) {
		l.next = func() []part {
			list := step(l)
			if l.steps%400 == 399 {
				list = append(list, part{seconds: 6, writes: 3e9})
			}
			return list
		}
	}
	save(first)
	a := first.watch(o, "slurm/7")
	first.play(part{seconds: 30})
	first.make(1000) // the last checkpoint is after 800
	died := first.last
	first.exit()

	second := newLoop(5, nil)
	save(second)
	second.pid, second.began, second.now, second.sampled, second.due = 8, first.now+45, first.now+45, first.now+45, first.now+50
	b := second.watch(o, "slurm/7")
	began := second.now + 20
	second.play(part{seconds: 20})
	second.make(500)
	second.exit()
	t.Log(a, b)
	if a.restarts != 0 || b.restarts != 1 {
		t.Errorf("%d and %d restarts, want 0 and 1", a.restarts, b.restarts)
	}
	if want := seconds(began - died); (b.down - want).Abs() > time.Second {
		t.Errorf("down for %v, want %v", b.down, want)
	}
	if want := 200 * 250 * time.Millisecond * 9 / 10; (b.redone - want).Abs() > 7*time.Second {
		t.Errorf("%v are made again, want %v", b.redone, want)
	}
	if b.time[Startup] != 0 || (b.time[Restart]-20*time.Second).Abs() > time.Second {
		t.Errorf("the restart took %v, and the startup %v", b.time[Restart], b.time[Startup])
	}
	if a.steps+b.steps != 1500 {
		t.Errorf("%d steps", a.steps+b.steps)
	}

	other := newLoop(6, step)
	other.pid, other.began, other.now, other.due = 9, second.now+10, second.now+10, second.now+20
	if c := other.watch(o, "slurm/8"); true {
		other.make(500)
		other.exit()
		if c.restarts != 0 {
			t.Error("another job is a restart")
		}
	}
}

// Two trainings in one pod are two trainings, not one with a restart.
func TestTwoInOnePod(t *testing.T) {
	o := New()
	list := []*loop{newLoop(1, training(0.2, 1, adamw)), newLoop(2, training(0.3, 4, adamw))}
	sums := map[int]*sum{0: {}, 1: {}}
	for i, l := range list {
		l.pid, l.due = uint32(50+i), 1e9
		if i == 1 {
			l.began, l.now = 120, 120
		}
	}
	for end := 10.3; end < 600; end += 10 {
		for _, l := range list {
			l.run(end)
		}
		there := list
		if end < 120 {
			there = list[:1]
		}
		observe(o, end, false, there, sums)
	}
	for i, l := range list {
		if got := sums[i].steps; got+60 < l.steps || got > l.steps {
			t.Errorf("training %d made %d steps, counted are %d", i, l.steps, got)
		}
		if sums[i].restarts != 0 {
			t.Errorf("training %d is a restart", i)
		}
	}
}

// The activities of a process add up to its time, whatever it does.
func TestActivitiesAddUp(t *testing.T) {
	for seed := range seeds(40) {
		l := newLoop(seed, nil)
		step := training(0.05+3*l.rand.Float64(), 1+l.rand.IntN(4), adamw)
		l.next = func() []part {
			list := step(l)
			for l.rand.IntN(30) == 0 {
				s := 60 * l.rand.Float64() * l.rand.Float64()
				list = append(list, part{
					seconds: s, bubble: s * l.rand.Float64(), sleep: s * l.rand.Float64(), barrier: s * l.rand.Float64(), writes: 1e9 * l.rand.Float64(),
				})
			}
			return list
		}
		s := l.watch(New(), "job")
		l.run(900)
		l.exit()
		if d := s.all() - seconds(l.now); s.told && d.Abs() > time.Microsecond {
			t.Errorf("seed %d: the activities take %v, the process ran for %v: %v", seed, s.all(), seconds(l.now), s.time)
		}
		if s.steps > l.steps {
			t.Errorf("seed %d: %d steps of %d", seed, s.steps, l.steps)
		}
	}
}

// An agent that is restarted in the middle of a job counts no step twice and none less, in its state or without
// one: then what was made until its first reading is missing.
func TestAgentRestarts(t *testing.T) {
	for _, kept := range []bool{true, false} {
		for seed := range seeds(4) {
			l := newLoop(seed, training(0.25, 2, adamw))
			o := New()
			a := l.watch(o, "job")
			l.run(405)
			text, err := json.Marshal(o.State())
			if err != nil {
				t.Fatal(err)
			}
			var state State
			if err := json.Unmarshal(text, &state); err != nil {
				t.Fatal(err)
			}
			last := l.due - 10
			read := l.process(false)
			l.reader = func(float64, bool) {}
			l.run(430) // nobody looks
			o = New()
			first := a.steps
			b := l.watch(o, "job")
			if kept {
				o.Resume(&state, []tracer.Process{read}, at(last))
			} else {
				o.Resume(nil, []tracer.Process{l.process(false)}, at(l.now))
				first = l.steps
			}
			l.run(900)
			l.exit()
			if got := first + b.steps; got > l.steps || got+1 < l.steps && kept || got+45 < l.steps {
				t.Errorf("seed %d, kept %v: %d and %d steps are counted, it made %d", seed, kept, first, b.steps, l.steps)
			}
			if b.restarts != 0 {
				t.Errorf("seed %d: a restart of the agent is a restart of the job", seed)
			}
		}
	}
}
