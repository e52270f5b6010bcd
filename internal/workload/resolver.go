package workload

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Holding is one workload's hold on one device or partition.
type Holding struct {
	Workload Workload `json:"workload"`
	Device   string   `json:"device"` // UUID of the device or partition
	// Part is the share that was allocated: 1, or the ratio of held to offered replicas. 0
	// means that the device is used without an allocation.
	Part     float64  `json:"part"`
	Evidence Evidence `json:"evidence"`
	Stale    bool     `json:"stale,omitempty"`
	// Limited is set if Part is what the workload may use of the device.
	Limited bool `json:"limited,omitempty"`
}

// Evidence is how a Holding is known, least certain first.
type Evidence string

// The kinds of evidence.
const (
	ByProcess   Evidence = "process"   // one of its processes is on the device
	ByDevice    Evidence = "device"    // a scheduler allocated the device to it
	ByPartition Evidence = "partition" // a scheduler allocated the partition to it
)

// Answer states who holds the devices of this machine, and which workload each process
// belongs to.
type Answer struct {
	Holdings  []Holding           // by device, then by workload
	Processes map[uint32]Workload // by PID; unknown processes are missing
	Statuses  []Status
	// Unknown are the allocated devices that no reader knows, sorted: resource, space, ID. A
	// partition may have been created since the last discovery.
	Unknown []string
}

// Question is what is known about the devices.
type Question struct {
	Devices   []Device
	Processes map[string][]uint32 // PIDs by UUID of the device or partition
}

// Resolver combines what its sources know. The first source that knows a process decides.
type Resolver struct {
	Sources []Source
}

// Resolve answers q from what the sources have learned. It does not block.
func (r *Resolver) Resolve(q Question) Answer {
	var a Answer
	known := newNames(q.Devices)
	partition := map[string]bool{}
	for _, d := range q.Devices {
		partition[d.ID.UUID] = d.ID.Parent != ""
	}
	var unknown []string
	var limits []Limit // of the holdings so far
	for _, s := range r.Sources {
		a.Statuses = append(a.Statuses, s.Statuses()...)
		for _, g := range s.Grants() {
			uuid, ok := known.match(g.Device)
			if !ok {
				unknown = append(unknown, g.Device.Resource)
				a.Unknown = append(a.Unknown, g.Device.Resource+" "+strings.Join(g.Device.IDs, " "))
				continue
			}
			h := Holding{Workload: g.Workload, Device: uuid, Part: part(g), Evidence: ByDevice, Stale: g.Stale}
			if partition[uuid] {
				h.Evidence = ByPartition
			}
			a.Holdings = append(a.Holdings, h)
			limits = append(limits, g.Limit)
		}
	}
	if n := divideLimited(a.Holdings, limits, q.Devices); n > 0 {
		a.Statuses = append(a.Statuses, Status{"resolver", Failed, fmt.Sprintf(
			"the limits of the workloads on %d devices add up to more than the device: they count as replicas", n)})
	}
	r.processes(q, &a)
	a.Holdings = merge(a.Holdings)
	if len(unknown) > 0 && len(q.Devices) > 0 { // without any device, discovery is still in progress
		slices.Sort(unknown)
		a.Statuses = append(a.Statuses, Status{"resolver", ResourceUnknown, fmt.Sprintf(
			"%d allocated devices are unknown to every reader: resources %v", len(unknown), slices.Compact(unknown))})
	}
	slices.Sort(a.Unknown)
	a.Unknown = slices.Compact(a.Unknown)
	a.Statuses = sortStatuses(a.Statuses)
	return a
}

func part(g Grant) float64 {
	if g.Replicas <= 0 || g.Held >= g.Replicas {
		return 1
	}
	return float64(g.Held) / float64(g.Replicas)
}

// processes finds the workloads of the processes, and workloads that use a device without
// an allocation.
func (r *Resolver) processes(q Question, a *Answer) {
	a.Processes = map[uint32]Workload{}
	nameless := 0
	var uninvited, jobs []string
	for _, d := range q.Devices {
		for _, pid := range q.Processes[d.ID.UUID] {
			w, ok := a.Processes[pid]
			if !ok {
				if w, ok = r.Process(pid); !ok {
					nameless++
					continue
				}
				if w, ok = ofPod(w, grantsOn(a.Holdings, d)); !ok {
					nameless++
					continue
				}
				a.Processes[pid] = w
			}
			granted := grantsOn(a.Holdings, d)
			if !slices.ContainsFunc(granted, func(h Holding) bool { return h.Workload.ID == w.ID }) {
				a.Holdings = append(a.Holdings, Holding{Workload: w, Device: d.ID.UUID, Evidence: ByProcess})
				if w.Attributes["k8s.pod.name"] != "" && !slices.ContainsFunc(granted, func(h Holding) bool { return samePod(h.Workload, w) }) {
					uninvited = append(uninvited, w.Attributes["k8s.namespace.name"]+"/"+w.Attributes["k8s.pod.name"])
				}
				if id := w.Attributes["slurm.job.id"]; id != "" {
					jobs = append(jobs, id)
				}
			}
		}
	}
	if nameless > 0 {
		a.Statuses = append(a.Statuses, Status{"resolver", NoMatch, fmt.Sprintf("%d processes on a device belong to no known workload", nameless)})
	}
	if len(uninvited) > 0 {
		slices.Sort(uninvited)
		uninvited = slices.Compact(uninvited)
		a.Statuses = append(a.Statuses, Status{"resolver", NotRequested, fmt.Sprintf(
			"%d pods use a device that they did not request, such as %s", len(uninvited), uninvited[0])})
	}
	// If Slurm allocates no devices at all, using one is not a violation.
	if len(jobs) > 0 && slices.ContainsFunc(a.Holdings, func(h Holding) bool { return h.Evidence != ByProcess && h.Workload.Attributes["slurm.job.id"] != "" }) {
		slices.Sort(jobs)
		jobs = slices.Compact(jobs)
		a.Statuses = append(a.Statuses, Status{"resolver", NotRequested, fmt.Sprintf(
			"%d jobs use a device that was not allocated to them, such as %s", len(jobs), jobs[0])})
	}
}

// Process returns the workload that a process on this machine belongs to.
func (r *Resolver) Process(pid uint32) (Workload, bool) {
	for _, s := range r.Sources {
		if w, ok := s.Process(pid); ok {
			return w, true
		}
	}
	return Workload{}, false
}

// Ready reports whether every source has learned what it can, or failed to.
func (r *Resolver) Ready() bool {
	for _, s := range r.Sources {
		if s, ok := s.(interface{ Ready() bool }); ok && !s.Ready() {
			return false
		}
	}
	return true
}

// Container returns the workload of a container on this machine.
func (r *Resolver) Container(id string) (Workload, bool) {
	for _, s := range r.Sources {
		if c, ok := s.(ContainerSource); ok {
			if w, ok := c.Container(id); ok {
				return w, true
			}
		}
	}
	return Workload{}, false
}

// merge combines the holdings of the same workload on the same device: the strongest
// evidence wins, and parts of equal evidence add up, to at most 1.
func merge(list []Holding) []Holding {
	rank := []Evidence{ByProcess, ByDevice, ByPartition}
	slices.SortStableFunc(list, func(a, b Holding) int {
		return cmp.Or(cmp.Compare(a.Device, b.Device), cmp.Compare(a.Workload.ID, b.Workload.ID),
			cmp.Compare(slices.Index(rank, b.Evidence), slices.Index(rank, a.Evidence)))
	})
	out := list[:0]
	for _, h := range list {
		if n := len(out); n > 0 && out[n-1].Device == h.Device && out[n-1].Workload.ID == h.Workload.ID {
			if h.Evidence == out[n-1].Evidence {
				out[n-1].Part = min(1, out[n-1].Part+h.Part)
				out[n-1].Limited = out[n-1].Limited || h.Limited
			}
			continue
		}
		out = append(out, h)
	}
	return out
}
