package anomaly

import (
	"math/rand/v2"
	"time"

	"github.com/gpumeter/gpumeter/internal/host"
	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/tracer"
)

var noon = time.Date(2026, 11, 15, 12, 0, 0, 0, time.UTC)

const (
	window = 10 * time.Second
	gpuA   = "GPU-aaaa"
)

// machine is a training job on one GPU as the tracer, the driver and the kernel would show
// it. A launch takes so much of the GPU, of the host, of copies and of waiting; all else
// follows. One thread launches, and synchronises every tenth launch.
type machine struct {
	at      time.Time
	rand    *rand.Rand
	process tracer.Process
	facts   host.Facts
	other   *tracer.Process // a neighbour that is traced

	// What a launch takes, in seconds, when all is well.
	gpu, host, copy, barrier float64
	jitter                   float64 // standard deviation of a window
	mix                      map[string]float64

	// What is the matter, for the next windows.
	clock      float64 // of 1
	capped     float64
	hot        float64
	neighbour  float64 // its share of the GPU
	queued     float64 // seconds a second that the launching thread does not get its CPU
	storm      float64 // bytes a second of copies of another thread, at 25 GB/s
	asleep     float64 // part of the time that nobody asks for anything
	faults     float64
	limit      float64 // watts
	hung       time.Time
	behind     []int
	noDriver   bool // says nothing
	noHost     bool
	noSched    bool
	noProcUtil bool
	zeroUtil   bool // of the neighbour: the driver has no sample of it
	unlisted   bool // the driver does not name the neighbour
	noMain     bool // nothing of the main thread
	events     bool // the tracer sees no end of what was submitted
}

func newMachine(seed uint64) *machine {
	return &machine{
		at: noon, rand: rand.New(rand.NewPCG(seed, 1)), gpu: 80e-6, host: 15e-6, copy: 5e-6, jitter: 0.01, clock: 1, limit: 700,
		mix: map[string]float64{"gemm": 0.6, "relu": 0.3, "adam": 0.1},
		process: tracer.Process{
			PID: 12, Name: "python3", Since: noon,
			Devices: []tracer.Device{{UUID: gpuA}},
			Ops: []tracer.OpStat{
				{Op: "cuLaunchKernelEx", Class: tracer.Launch},
				{Op: "cuStreamSynchronize", Class: tracer.Sync},
				{Op: "cuMemcpyHtoD", Class: tracer.Copy, Kind: "htod"},
			},
			Comms: []tracer.Comm{{ID: "c", Size: 8}},
			Host:  tracer.Host{Threads: 1, Known: true},
		},
		facts: host.Facts{
			Start: 7, CPU: optional.Of(0), MajorFaults: optional.Of(0), RunQueue: optional.Of(0), Throttled: optional.Of(0),
			CPUPressure: optional.Of(0), IOPressure: optional.Of(0), MemoryPressure: optional.Of(0), PressureOf: "cgroup", Retransmits: optional.Of(0),
		},
	}
}

func dur(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func more(v optional.Float, by float64) optional.Float { return optional.Of(v.Default(0) + by) }

// next lets a window go by and returns it.
func (m *machine) next() Window {
	m.at = m.at.Add(window)
	w := window.Seconds()
	noise := math1(1 + m.jitter*m.rand.NormFloat64())
	if m.rand.IntN(50) == 0 { // tails are heavy
		noise += 3 * m.jitter * m.rand.ExpFloat64()
	}
	gpu := m.gpu / m.clock / (1 - m.neighbour) * noise
	storm := min(0.9, m.storm/25e9) // part of the time that its copies take
	awake := w * (1 - m.asleep) * (1 - m.queued) * (1 - storm)
	n := awake / (gpu + m.host + m.copy + m.barrier)
	if !m.hung.IsZero() {
		n = 0
	}
	n = float64(int(n))

	p := &m.process
	p.Devices = []tracer.Device{p.Devices[0]}
	p.Ops = append([]tracer.OpStat{}, p.Ops...)
	d := &p.Devices[0]
	d.Busy += dur(n * (gpu + m.copy + m.barrier))
	d.Wait += dur(n * (gpu + m.barrier) * 0.9)
	d.Bubble += dur(n*m.host + w*m.asleep + w*m.queued)
	if m.events {
		d.Busy, d.Bubble = m.at.Sub(noon), 0
	}
	if d.WaitingSince = m.hung; !m.hung.IsZero() { // clocks are compared anew each time
		d.WaitingSince = m.hung.Add(time.Duration(m.rand.IntN(2000)-1000) * time.Microsecond)
	}
	count(&p.Ops[0], n, n*4e-6, 0)
	count(&p.Ops[1], n/10, n*(gpu+m.barrier)*0.9, 0)
	count(&p.Ops[2], n/10+w*m.storm/1e8, n*m.copy+w*storm, n*4096+w*m.storm)
	var kernels []tracer.Kernel
	for name, part := range m.mix {
		k := tracer.Kernel{Name: name, Symbol: name}
		for _, was := range p.Kernels {
			if was.Symbol == name {
				k.Count = was.Count
			}
		}
		k.Count += uint64(part * n)
		kernels = append(kernels, k)
	}
	for _, was := range p.Kernels {
		if _, ok := m.mix[was.Symbol]; !ok {
			kernels = append(kernels, was)
		}
	}
	p.Kernels = kernels
	p.Comms = append([]tracer.Comm{}, p.Comms...)
	p.Comms[0].BarrierWait.Count += uint64(n / 100)
	p.Comms[0].BarrierWait.Sum += n * m.barrier
	queued := w*m.queued + 0.02*m.rand.Float64()
	p.Host.RunQueue += dur(queued)
	p.Host.Blocked += dur(w * m.asleep)
	p.Host.Known = !m.noSched
	m.facts.RunQueue = more(m.facts.RunQueue, queued)
	if m.noMain {
		m.facts.RunQueue = optional.Float{}
	}
	m.facts.CPUPressure = more(m.facts.CPUPressure, queued)
	m.facts.MajorFaults = more(m.facts.MajorFaults, m.faults)

	return m.window(n * gpu * (1 - m.neighbour) / w)
}

func math1(v float64) float64 { return max(0.5, v) }

func count(o *tracer.OpStat, n, seconds, bytes float64) {
	o.Time.Count += uint64(n)
	o.Time.Sum += seconds
	o.Bytes += uint64(bytes)
}

func (m *machine) window(utilization float64) Window {
	w := Window{Snapshot: tracer.Snapshot{Time: m.at, Started: noon, Processes: []tracer.Process{m.process}}}
	if m.other != nil {
		w.Snapshot.Processes = append(w.Snapshot.Processes, *m.other)
	}
	if !m.noHost {
		w.Hosts = map[uint32]host.Facts{12: m.facts}
	}
	if len(m.behind) > 0 {
		w.Snapshot.Groups = []tracer.CommGroup{{
			ID: "c", Size: 8, Behind: m.behind, Waiting: m.hung,
			Ranks: []tracer.RankSeen{{Rank: 0, PID: 12, Sequence: 4711, LastOp: "AllReduce"}, {Rank: 3, PID: 15, Sequence: 4710, LastOp: "AllReduce"}},
		}}
	}
	if m.noDriver {
		return w
	}
	f := DeviceFacts{
		UUID: gpuA, SMClock: optional.Of(1980e6 * m.clock * (1 + 0.003*m.rand.NormFloat64())), SMClockMax: optional.Of(1980e6),
		Power: optional.Of(min(600, m.limit-2)), PowerLimit: optional.Of(m.limit), Utilization: optional.Of(utilization),
		PowerCapped: optional.Of(m.capped), ThermalThrottled: optional.Of(m.hot), HWSlowdown: optional.Of(0),
		Processes: []DeviceProcess{{PID: 12, Name: "python3", Workload: "team x", Utilization: optional.Of(utilization)}},
	}
	if (m.neighbour > 0 || m.other != nil) && !m.unlisted {
		share := m.neighbour
		if m.zeroUtil {
			share = 0
		}
		f.Processes = append(f.Processes, DeviceProcess{PID: 99, Name: "infer", Workload: "team y", Utilization: optional.Of(share)})
	}
	if m.noProcUtil {
		for i := range f.Processes {
			f.Processes[i].Utilization = optional.Float{}
		}
	}
	w.Devices = []DeviceFacts{f}
	return w
}

// run observes windows and returns what was said.
func (m *machine) run(d *Detector, windows int) []Anomaly {
	var told []Anomaly
	for range windows {
		told = append(told, d.Observe(m.next())...)
	}
	return told
}
