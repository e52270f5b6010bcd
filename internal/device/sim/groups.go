package sim

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Group is a set of devices of one model that all do the same.
type Group struct {
	Model   string
	Devices int
	// Role is what the devices do while they have a tenant: one of Roles.
	Role string
	// Onset is when a sick device starts to fail, since boot.
	Onset time.Duration
	// Stays are the tenants of the devices, one after the other; empty means none.
	// Partitioned devices have the tenants of their partitions instead.
	Stays []Stay
	// Thief uses the devices without having been allocated them; nil means no thief.
	Thief *Stay
	// Serves is the name of the model that the tenants' inference engine serves, see Engines. Their
	// container is called like the engine. Empty means that they have no engine.
	Serves string
}

// Stay is the time during which a tenant holds a device.
type Stay struct {
	From  time.Duration // since boot
	Until time.Duration // 0: forever
	// Loads is how long the tenant has the device before it uses it: images, data, a model.
	Loads time.Duration
	Pod   Pod
	Job   Job // a Slurm job instead of a pod
}

// There reports whether the tenant holds the device when the node has been up for up.
func (s Stay) There(up time.Duration) bool { return up >= s.From && (s.Until == 0 || up < s.Until) }

// Job is a simulated Slurm job.
type Job struct {
	ID, Name, User, Account, Partition, Cluster string
}

// partitioned is the Role of a device that is split among several tenants.
const partitioned = "partitioned"

// byName are the roles that a Group may have.
var byName = map[string]*role{
	"training": roleTraining, "inference": roleInference, "idle": roleIdle, "overheating": roleOverheating,
	"saturated": roleSaturated, "failing": roleFailing, "sick": roleSick, partitioned: nil,
}

// Roles returns the valid values of Group.Role, sorted.
func Roles() []string { return slices.Sorted(maps.Keys(byName)) }

// plan adds the devices of all groups to n.
func (n *node) plan(cfg Config) error {
	index := map[string]int{} // by vendor
	for i, group := range cfg.Groups {
		m := models[group.Model]
		if m == nil {
			return fmt.Errorf("unknown simulated model %q, want one of %s", group.Model, strings.Join(slices.Sorted(maps.Keys(models)), ", "))
		}
		r, ok := byName[group.Role]
		if !ok {
			return fmt.Errorf("unknown role %q of simulated devices, want one of %s", group.Role, strings.Join(Roles(), ", "))
		}
		if (r == nil || m.cut) && (group.Stays != nil || group.Thief != nil) {
			return fmt.Errorf("%s devices with role %s are partitioned: their tenants cannot be specified", group.Model, group.Role)
		}
		if err := checkStays(group.Stays); err != nil {
			return err
		}
		if err := checkEngine(&group, r); err != nil {
			return err
		}
		for range group.Devices {
			g := newGPU(n, m, hash(cfg.Seed, uint64(i)), index[m.vendor], r)
			index[m.vendor]++
			g.onset, g.thief = group.Onset, group.Thief
			if r != nil && !m.cut {
				g.settle(group.Stays)
			}
			n.gpus = append(n.gpus, g)
		}
	}
	return nil
}

// checkStays returns an error unless each stay ends before the next one starts. Times are
// whole seconds, like the scripts.
func checkStays(list []Stay) error {
	if len(list) >= thiefPID { // each has a process of its own
		return fmt.Errorf("%d stays of simulated devices, at most %d", len(list), thiefPID-1)
	}
	var last time.Duration
	for i, s := range list {
		if s.From < last || s.Until != 0 && s.Until <= s.From || s.Until == 0 && i < len(list)-1 || s.From%time.Second != 0 || s.Until%time.Second != 0 || s.Loads%time.Second != 0 ||
			s.Loads < 0 || s.Until != 0 && s.From+s.Loads >= s.Until {
			return fmt.Errorf("invalid stay %d of simulated devices: from %s until %s, after a stay until %s", i, s.From, s.Until, last)
		}
		last = s.Until
	}
	return nil
}

// span is a time during which a device follows one script.
type span struct {
	from     time.Duration
	stay     int // index of the stay; -1: none
	timeline *timeline
	before   sums // sums of all earlier spans, minus what the timeline had summed up until from
}

// settle makes the device follow its script during its stays, and be idle otherwise.
func (g *gpu) settle(stays []Stay) {
	g.stays = stays
	empty := simulate(g.model, g.key, 0, func(second int) load { return vacant(g.key, second) })
	var total sums // up to the start of the next span
	add := func(from time.Duration, stay int, t *timeline) {
		if n := len(g.spans); n > 0 {
			last := g.spans[n-1]
			_, sum := last.timeline.at(from)
			total = last.before.plus(1, sum)
		}
		_, sum := t.at(from)
		g.spans = append(g.spans, span{from, stay, t, total.plus(-1, sum)})
	}
	end := time.Duration(0)
	for i, s := range stays {
		if s.From > end {
			add(end, -1, empty)
		}
		if s.Loads > 0 {
			add(s.From, i, empty)
		}
		add(s.From+s.Loads, i, g.timeline)
		if end = s.Until; end == 0 {
			return
		}
	}
	add(end, -1, empty)
}

// span returns the span that contains up.
func (g *gpu) span(up time.Duration) span {
	for _, s := range slices.Backward(g.spans) {
		if s.from <= up {
			return s
		}
	}
	return span{stay: 0, timeline: g.timeline}
}

// stay returns the index of the stay at up, or 0 if the device has no stays.
func (g *gpu) stay(up time.Duration) int { return max(0, g.span(up).stay) }

// at returns the moment at up, and the sums since boot.
func (g *gpu) at(up time.Duration) (*moment, sums) {
	s := g.span(up)
	now, sum := s.timeline.at(up)
	return now, s.before.plus(1, sum)
}

// back returns the moment n seconds before up.
func (g *gpu) back(up time.Duration, n int) *moment {
	return g.span(max(0, up-time.Duration(n)*time.Second)).timeline.back(up, n)
}
