package anomaly

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/host"
	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/tracer"
)

// Upper bounds of copy bandwidth, in bytes per second, on any machine so far. With them the
// time of asynchronous copies is never overestimated.
const (
	linkBandwidth   = 50e9 // between host and device, or devices
	memoryBandwidth = 2e12 // within a device
)

type opKey struct {
	op, kind string
	device   int
	class    tracer.Class
}

type opTotal struct {
	count uint64
	sum   float64 // seconds
	wait  float64 // seconds of them; see tracer.OpStat
	bytes uint64
}

// totals are the counters of a process at one moment.
type totals struct {
	since    time.Time
	launches uint64
	ops      map[opKey]opTotal
	kernels  map[string]uint64
	grids    map[string]float64    // blocks of the last launch, by kernel
	busy     map[int]time.Duration // by device
	wait     time.Duration
	bubble   time.Duration
	barrier  map[string]tracer.Histogram // by communicator; buckets are not kept
	host     tracer.Host
	facts    host.Facts
	has      bool // whether facts is set
}

func totalsOf(p *tracer.Process, facts host.Facts, has bool) totals {
	t := totals{
		since: p.Since, ops: map[opKey]opTotal{}, kernels: map[string]uint64{}, grids: map[string]float64{}, busy: map[int]time.Duration{},
		barrier: map[string]tracer.Histogram{}, host: p.Host, facts: facts, has: has,
	}
	for i := range p.Ops {
		o := &p.Ops[i]
		if o.Class == tracer.Launch || o.Class == tracer.Graph && isLaunch(o.Op) {
			t.launches += o.Time.Count
		}
		key := opKey{o.Op, o.Kind, o.Device, o.Class}
		if _, ok := t.ops[key]; ok || len(t.ops) < maxOps {
			was := t.ops[key]
			t.ops[key] = opTotal{was.count + o.Time.Count, was.sum + o.Time.Sum, was.wait + o.Wait.Seconds(), was.bytes + o.Bytes}
		}
	}
	for i := range p.Kernels {
		k := &p.Kernels[i]
		key := k.Symbol + " " + strconv.Itoa(k.Device)
		if _, ok := t.kernels[key]; ok || len(t.kernels) < maxKernels {
			t.kernels[key] += k.Count
			t.grids[key] = float64(k.Grid[0]) * float64(k.Grid[1]) * float64(k.Grid[2])
		}
	}
	for i := range p.Devices {
		d := &p.Devices[i]
		t.busy[d.Ordinal] += d.Busy
		t.wait += d.Wait
		t.bubble += d.Bubble
	}
	for i := range p.Comms {
		c := &p.Comms[i]
		key := cmp.Or(c.Key, c.ID) // communicators older than the tracer have no ID
		if _, ok := t.barrier[key]; ok || len(t.barrier) < maxComms {
			was := t.barrier[key]
			t.barrier[key] = tracer.Histogram{Count: was.Count + c.BarrierWait.Count, Sum: was.Sum + c.BarrierWait.Sum}
		}
	}
	return t
}

// isLaunch distinguishes launching a graph from creating one.
func isLaunch(op string) bool { return op == "cuGraphLaunch" || op == "hipGraphLaunch" }

// sample is what a process did in one window.
type sample struct {
	seconds  float64
	launches float64
	mix      map[string]float64
	grids    map[string]float64 // blocks of the last launch, by kernel of mix
	ops      map[opKey]opDelta
	busy     map[int]float64 // seconds, by device
	wait     float64
	bubble   float64
	copies   float64 // seconds that copies took, or must have taken if asynchronous
	copied   float64 // bytes
	barrier  float64 // seconds
	barriers float64
	threads  int            // that launch
	sleep    optional.Float // seconds that they slept outside traced calls, summed over threads
	queued   optional.Float // seconds that they were runnable without a CPU
	facts    map[string]optional.Float
	// values are the signals for the baseline.
	values map[string]float64
}

type opDelta struct{ count, sum, wait, bytes float64 }

// between returns what happened between before and t. It returns false after a counter
// reset; then t is the new start.
func (t *totals) between(before *totals, length time.Duration) (*sample, bool) {
	s := &sample{
		seconds: length.Seconds(), mix: map[string]float64{}, grids: map[string]float64{}, ops: map[opKey]opDelta{}, busy: map[int]float64{},
		facts: map[string]optional.Float{}, values: map[string]float64{},
	}
	if t.launches < before.launches || t.wait < before.wait || t.bubble < before.bubble {
		return nil, false
	}
	s.launches = float64(t.launches - before.launches)
	s.wait, s.bubble = (t.wait - before.wait).Seconds(), (t.bubble - before.bubble).Seconds()
	for key, o := range t.ops {
		was := before.ops[key]
		if o.count < was.count || o.bytes < was.bytes || o.sum < was.sum-1e-6 {
			return nil, false
		}
		if o.count == was.count && o.sum <= was.sum {
			continue
		}
		d := opDelta{float64(o.count - was.count), max(0, o.sum-was.sum), max(0, o.wait-was.wait), float64(o.bytes - was.bytes)}
		s.ops[key] = d
		if key.class == tracer.Copy {
			s.copies += copyTime(key.kind, d)
			s.copied += d.bytes
		}
	}
	for dev, busy := range t.busy {
		if busy < before.busy[dev] {
			return nil, false
		}
		s.busy[dev] = min((busy - before.busy[dev]).Seconds(), s.seconds)
	}
	for id, b := range t.barrier {
		was := before.barrier[id]
		if b.Count >= was.Count && b.Sum >= was.Sum {
			s.barrier += b.Sum - was.Sum
			s.barriers += float64(b.Count - was.Count)
		}
	}
	s.shares(t, before)
	s.hosts(t, before)
	return s, true
}

// copyTime returns the duration of copies: the time in the call without waiting for earlier work,
// or the minimum time for the bytes if the call does not wait for them.
func copyTime(kind string, d opDelta) float64 {
	bandwidth := linkBandwidth
	if kind == "dtod" {
		bandwidth = memoryBandwidth
	}
	return max(d.sum-d.wait, d.bytes/bandwidth)
}

// shares computes the mix of kernels. A kernel that is new, or was not among the top ones,
// counts as other: how much of its count belongs to this window is unknown.
func (s *sample) shares(t, before *totals) {
	if s.launches == 0 {
		return
	}
	other := s.launches
	for key, n := range t.kernels {
		was, ok := before.kernels[key]
		if !ok || n <= was {
			continue
		}
		part := float64(n - was)
		s.mix[key] = part / s.launches
		s.grids[key] = t.grids[key]
		other -= part
	}
	if other > 0 {
		s.mix["other"] += other / s.launches
	}
}

// hosts computes what the host provided and withheld.
func (s *sample) hosts(t, before *totals) {
	h, was := t.host, before.host
	s.threads = h.Threads
	if h.Known && was.Known && h.RunQueue >= was.RunQueue && h.Blocked >= was.Blocked {
		s.queued = optional.Of((h.RunQueue - was.RunQueue).Seconds())
		inside := max(0, h.BlockedInCall-was.BlockedInCall)
		s.sleep = optional.Of(max(0, h.Blocked-was.Blocked-inside).Seconds())
	}
	if !t.has || !before.has || t.facts.Start != before.facts.Start {
		return
	}
	f, b := t.facts, before.facts
	s.facts["main"] = f.RunQueue.Since(b.RunQueue)
	s.facts["throttled"] = f.Throttled.Since(b.Throttled)
	s.facts["throttled periods"] = f.ThrottledPeriods.Since(b.ThrottledPeriods)
	s.facts["disk"] = f.BlockIO.Since(b.BlockIO)
	s.facts["faults"] = f.MajorFaults.Since(b.MajorFaults)
	s.facts["retransmits"] = f.Retransmits.Since(b.Retransmits)
	if f.PressureOf == "cgroup" && b.PressureOf == "cgroup" { // the machine's pressure may be caused by others
		s.facts["cpu pressure"] = f.CPUPressure.Since(b.CPUPressure)
		s.facts["io pressure"] = f.IOPressure.Since(b.IOPressure)
		s.facts["memory pressure"] = f.MemoryPressure.Since(b.MemoryPressure)
	}
}

// signals adds the process's own signals, per launch or per second.
func (s *sample) signals() {
	set := func(name string, v optional.Float, per float64) {
		if x, ok := v.Get(); ok && per > 0 {
			s.values[name] = x / per
		}
	}
	if s.launches >= minCalls {
		set(Step, optional.Of(s.seconds), s.launches)
		set("bubble", optional.Of(s.bubble), s.launches)
		set("wait", optional.Of(s.wait+s.blocked()), s.launches)
		set("copy", optional.Of(s.copies), s.launches)
		set("copied", optional.Of(s.copied), s.launches)
		set("barrier", optional.Of(s.barrier), s.launches)
		set("sleep", s.sleep, s.launches)
	}
	set("launches", optional.Of(s.launches), s.seconds)
	set("queued", s.queued, s.seconds)
	for name, v := range s.facts {
		set(name, v, s.seconds)
	}
	if s.barriers > 0 {
		s.values["collective"] = s.barrier / s.barriers
	}
	for _, key := range s.top() {
		s.values[key.signal()] = s.ops[key].sum / s.ops[key].count
	}
}

// blocked returns the seconds in which launches waited for space in the queue: the device is behind.
func (s *sample) blocked() float64 {
	sum := 0.0
	for key, d := range s.ops {
		if key.class == tracer.Launch || key.class == tracer.Graph {
			sum += max(0, d.sum-d.count*promptly)
		}
	}
	return sum
}

// top returns the operations that took the most time.
func (s *sample) top() []opKey {
	var list []opKey
	for key, d := range s.ops {
		if d.count >= minCalls {
			list = append(list, key)
		}
	}
	slices.SortFunc(list, func(a, b opKey) int {
		return cmp.Or(cmp.Compare(s.ops[b].sum, s.ops[a].sum), strings.Compare(a.signal(), b.signal()))
	})
	return list[:min(len(list), topOps)]
}

const opSignal = "op "

func (k opKey) signal() string {
	return opSignal + k.op + " " + k.kind + " " + strconv.Itoa(k.device)
}

func (k opKey) String() string {
	if k.kind != "" {
		return k.op + " " + k.kind
	}
	return k.op
}
