// Package watch finds anomalies on one machine: it correlates traced calls with the devices and the
// host over the same window, and internal/tracer/anomaly judges them.
package watch

import (
	"errors"
	"io/fs"
	"path/filepath"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/host"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/optional"
	"github.com/gpumeter/gpumeter/internal/tracer"
	"github.com/gpumeter/gpumeter/internal/tracer/anomaly"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// maxHosts bounds the processes whose host statistics are read per window.
const maxHosts = 256

// Watcher collects the facts of a window and judges them.
type Watcher struct {
	// Owner returns the workload of a process; nil if workloads are unknown.
	Owner    func(pid uint32) (workload.Workload, bool)
	host     host.Reader
	detector *anomaly.Detector
	devices  []*sums
	byUUID   map[string]*sums
}

// New returns a Watcher that reads the host's proc.
func New(proc string) *Watcher {
	return &Watcher{
		host:     host.Reader{Proc: proc, Cgroup: filepath.Join(filepath.Dir(filepath.Clean(proc)), "sys/fs/cgroup")},
		detector: anomaly.NewDetector(), byUUID: map[string]*sums{},
	}
}

// mean averages over the ticks of a window that have a value.
type mean struct {
	sum float64
	n   int
}

func (m *mean) add(v device.Value) {
	if f, ok := v.Get(); ok {
		m.sum, m.n = m.sum+f, m.n+1
	}
}

func (m mean) value() optional.Float {
	if m.n == 0 {
		return optional.Float{}
	}
	return optional.Of(m.sum / float64(m.n))
}

// sums accumulates the ticks of a window for one device or partition.
type sums struct {
	uuid                                string
	clock, clockMax, power, limit, busy mean
	capped, hot, slowed                 mean
	processes                           []device.Process
}

// See adds a tick to the window.
func (w *Watcher) See(t *node.Tick) {
	parents := map[string]*node.Reading{}
	for i := range t.Readings {
		parents[t.Readings[i].ID.UUID] = &t.Readings[i]
	}
	for i := range t.Readings {
		r := &t.Readings[i]
		if !r.Up {
			continue
		}
		s := w.byUUID[r.ID.UUID]
		if s == nil {
			s = &sums{uuid: r.ID.UUID}
			w.byUUID[s.uuid], w.devices = s, append(w.devices, s)
		}
		s.busy.add(r.Utilization.Compute)
		s.processes = r.Processes
		if p := parents[r.ID.Parent]; p != nil && p.Up { // a partition uses the sensors of its device
			r = p
		}
		s.sensors(&r.Sample)
	}
}

func (s *sums) sensors(d *device.Sample) {
	clock, power := d.ComputeClock(), d.Power()
	s.clock.add(clock.Frequency)
	s.clockMax.add(clock.Limit)
	s.power.add(power.Draw())
	s.limit.add(power.Enforced())
	if d.Throttles == nil {
		return
	}
	held := func(match func(device.Buckets) bool) device.Value {
		for _, t := range d.Throttles {
			if t.Active && match(t.Buckets) {
				return device.Of(1)
			}
		}
		return device.Of(0)
	}
	s.capped.add(held(func(b device.Buckets) bool { return b&device.BucketPower != 0 && b&device.BucketSW != 0 }))
	s.hot.add(held(func(b device.Buckets) bool { return b&device.BucketThermal != 0 }))
	s.slowed.add(held(func(b device.Buckets) bool { return b&device.BucketHW != 0 && b&device.BucketThermal == 0 }))
}

// Judge ends the window with a reading and returns the anomalies that opened and closed.
func (w *Watcher) Judge(s *tracer.Snapshot) []anomaly.Anomaly {
	window := anomaly.Window{Snapshot: *s, Devices: w.facts(), Hosts: map[uint32]host.Facts{}}
	for i := range s.Processes {
		if p := &s.Processes[i]; !p.Ended && len(window.Hosts) < maxHosts {
			// Facts that we may not read are absent; a process that is gone has none.
			if facts, err := w.host.Process(p.PID); !errors.Is(err, fs.ErrNotExist) {
				window.Hosts[p.PID] = facts
			}
		}
	}
	return w.detector.Observe(window)
}

// Refused returns how many processes and operations exceeded the detector's capacity.
func (w *Watcher) Refused() uint64 { return w.detector.Refused() }

// facts returns what the ticks reported about the devices, and resets.
func (w *Watcher) facts() []anomaly.DeviceFacts {
	list := make([]anomaly.DeviceFacts, 0, len(w.devices))
	for _, d := range w.devices {
		facts := anomaly.DeviceFacts{
			UUID: d.uuid, SMClock: d.clock.value(), SMClockMax: d.clockMax.value(), Power: d.power.value(), PowerLimit: d.limit.value(),
			Utilization: d.busy.value(), PowerCapped: d.capped.value(), ThermalThrottled: d.hot.value(), HWSlowdown: d.slowed.value(),
		}
		for i := range d.processes {
			p := &d.processes[i]
			facts.Processes = append(facts.Processes, anomaly.DeviceProcess{PID: p.PID, Name: p.Name, Workload: w.name(p.PID), Utilization: p.Utilization})
		}
		list = append(list, facts)
	}
	w.devices, w.byUUID = nil, map[string]*sums{}
	return list
}

// name returns the display name of the workload of a process.
func (w *Watcher) name(pid uint32) string {
	if w.Owner == nil {
		return ""
	}
	o, ok := w.Owner(pid)
	if !ok {
		return ""
	}
	return Name(&o)
}

// Name returns the display name of a workload.
func Name(w *workload.Workload) string {
	if pod := w.Attributes["k8s.pod.name"]; pod != "" {
		return "pod " + w.Attributes["k8s.namespace.name"] + "/" + pod
	}
	if id := w.Attributes["slurm.job.id"]; id != "" {
		return "job " + id
	}
	if w.Name == "" {
		return w.Kind
	}
	return w.Kind + " " + w.Name
}
