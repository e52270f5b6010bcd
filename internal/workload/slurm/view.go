package slurm

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/natural"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// view is the combined knowledge of all sources.
type view struct {
	cluster string
	jobs    map[string]workload.Workload
	grants  []workload.Grant
	reason  workload.Reason // state of the controller when the view was built
	// Gaps, for Statuses.
	uncounted int      // jobs that hold devices which Slurm does not number
	beyond    []string // jobs with a device that is in no list
	hidden    int      // jobs on this node that the controller does not report
	unnamed   []string // jobs with more GPUs than their processes name
	odd       error    // GRES that cannot be parsed
}

func (s *Source) rebuild() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.build()
}

// build combines what the node, the prolog and the controller report. The caller holds
// s.mu.
func (s *Source) build() {
	now := time.Now()
	a := s.ctl.last(now)
	v := view{jobs: map[string]workload.Workload{}, reason: a.reason, cluster: s.site.cluster}
	b := builder{site: s.site, minors: s.cfg.Minors, view: &v}

	here := map[string]nodeJob{}
	maps.Copy(here, s.here.other)
	maps.Copy(here, s.here.jobs)
	jobs := map[string]Job{} // from the node
	for id, j := range here {
		jobs[id] = j.job(id)
	}
	for _, m := range s.maps {
		if _, over := s.gone[m.Job.ID]; !over { // an epilog may have failed
			jobs[m.Job.ID] = m.Job.or(jobs[m.Job.ID])
		}
	}
	for id, j := range jobs {
		if said, ok := a.jobs[id]; ok {
			jobs[id] = said.or(j)
		} else if s.ctl != nil && here[id] != nil && s.ctl.want(id) {
			v.hidden++
		}
	}
	for id, j := range a.jobs {
		if _, ok := jobs[id]; !ok && !s.over(id, a.at) && !j.Ambiguous { // an ambiguous one may be on any node
			jobs[id] = j
		}
	}
	if v.cluster == "" { // without slurm.conf, use the first job's
		for _, id := range slices.SortedFunc(maps.Keys(jobs), natural.Compare) {
			v.cluster = cmp.Or(v.cluster, jobs[id].Cluster)
		}
	}
	for _, id := range slices.SortedFunc(maps.Keys(jobs), natural.Compare) {
		w := jobs[id].workload(v.cluster, s.cfg.Teams)
		w.Job = jobs[id].run(v.cluster, s.site.node)
		v.jobs[id] = w
		said, ok := a.jobs[id]
		v.odd = cmp.Or(v.odd, said.unreadable)
		switch {
		case ok && len(said.GRES) > 0:
			b.stale = a.reason == workload.Stale
			b.resources(w, said)
			b.stale = false
		case ok && said.unreadable == nil: // it has none, whatever its environment says
		case here[id] != nil && agree(here[id], id, s.maps): // the environment also has the share of a device
			b.indexes(w, here[id])
		case b.mapped(w, s.maps):
		case here[id] != nil && here[id].unnamed() && len(a.before[id].GRES) > 0:
			// The GRES of a job that is still here have not changed since the last answer.
			b.stale = true
			b.resources(w, a.before[id])
			b.stale = false
		case here[id] != nil:
			b.indexes(w, here[id])
		}
	}
	s.view = v
}

// over reports whether the control group of a job disappeared after the given time: the job
// has ended here, and an answer from before that did not know it.
func (s *Source) over(id string, said time.Time) bool {
	t, ok := s.gone[id]
	return ok && !said.After(t)
}

// builder creates grants.
type builder struct {
	site   site
	minors []string // as in Config
	view   *view
	stale  bool // of the grants being added
}

func (b *builder) grant(w workload.Workload, resource string, ids []string, held, of uint64) {
	g := workload.Grant{Workload: w, Device: workload.Ref{Resource: "gres/" + resource, IDs: ids}, Held: 1, Replicas: 1, Stale: b.stale}
	if of > 0 && held < of {
		g.Held, g.Replicas = int(held), int(of)
	}
	b.view.grants = append(b.view.grants, g)
}

// device returns the names of the device at a position. Without gres.conf and driver, the
// position is its minor number.
func (b *builder) device(place int) device {
	if len(b.site.devices) == 0 {
		return numbered(b.minors, place)
	}
	if place < len(b.site.devices) {
		return b.site.devices[place]
	}
	return nil
}

// resources adds the grants of a job according to the controller.
func (b *builder) resources(w workload.Workload, j Job) {
	for _, g := range j.GRES {
		if g.Name != "gpu" && g.Name != "shard" && g.Name != "mps" {
			continue
		}
		if len(g.Parts) == 0 && len(g.Index) == 0 && g.Count > 0 {
			b.view.uncounted++
		}
		for place, p := range g.Parts {
			if p.Held > 0 {
				b.one(w, g.Name, place, p.Held, p.Of)
			}
		}
		if len(g.Parts) > 0 {
			continue
		}
		for _, place := range g.Index {
			var held, of uint64
			if g.Name != "gpu" {
				held, of = b.shared(g.Name, g.Count, len(g.Index), place)
			}
			b.one(w, g.Name, place, held, of)
		}
	}
}

// shared returns the held and offered replicas per device if count is held over several
// devices. If Slurm does not report the distribution, an even one is assumed.
func (b *builder) shared(name string, count uint64, devices, place int) (held, of uint64) {
	of = b.site.gres.replicas(name, b.device(place), len(b.site.devices))
	return count, of * uint64(devices)
}

func (b *builder) one(w workload.Workload, name string, place int, held, of uint64) {
	d := b.device(place)
	if len(d) == 0 {
		b.view.beyond = append(b.view.beyond, w.Attributes["slurm.job.id"])
		return
	}
	b.grant(w, name, d, held, of)
}

// indexes adds the grants of a job according to its processes.
func (b *builder) indexes(w workload.Workload, j nodeJob) {
	list, shards, missing := j.gpus()
	if missing > 0 {
		b.view.unnamed = append(b.view.unnamed, w.Attributes["slurm.job.id"])
	}
	for _, place := range list {
		name := "gpu"
		var held, of uint64
		if shards > 0 {
			name = "shard"
			held, of = b.shared(name, shards, len(list), place)
		}
		b.one(w, name, place, held, of)
	}
}

// agree reports whether a job's processes and the prolog name the same devices.
func agree(j nodeJob, id string, list []mapped) bool {
	said, _, _ := j.gpus()
	var written []int
	for _, m := range list {
		if m.Job.ID == id {
			written = append(written, m.Index)
		}
	}
	slices.Sort(written)
	return len(written) > 0 && slices.Equal(said, written)
}

// mapped adds the grants of a job according to the prolog, and reports whether there are
// any.
func (b *builder) mapped(w workload.Workload, list []mapped) bool {
	found := false
	for _, m := range list {
		if m.Job.ID != w.Attributes["slurm.job.id"] {
			continue
		}
		found = true
		if m.ID != "" {
			b.grant(w, "gpu", []string{m.ID}, 0, 0)
			continue
		}
		// If several jobs have the same device, it is sharded, but the shares are not
		// recorded.
		sharing := uint64(0)
		for _, o := range list {
			if o.Index == m.Index && o.ID == m.ID {
				sharing++
			}
		}
		b.one(w, "gpu", m.Index, 1, sharing)
	}
	return found
}
