package slurm

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/slurm"
	"github.com/gpumeter/gpumeter/internal/workload"
)

// Source names in a Status.
const (
	fromNode       = "slurm"
	fromController = "slurm_controller"
)

// Statuses implements workload.Source.
func (s *Source) Statuses() []workload.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.node == nil {
		return []workload.Status{{Source: fromNode, Reason: workload.Absent, Detail: "has not answered yet"}}
	}
	if !s.present {
		return []workload.Status{{Source: fromNode, Reason: workload.Absent, Detail: "no slurmd, no slurm.conf, no slurm cgroup"}}
	}
	now := time.Now()
	return slices.Concat(s.nodeStatus(now), s.controllerStatus(now))
}

func (s *Source) nodeStatus(now time.Time) (out []workload.Status) {
	add := func(r workload.Reason, detail string) {
		detail = strings.ReplaceAll(detail, "\n", "; ") // joined errors
		for i, o := range out {
			if o.Reason == r {
				out[i].Detail += "; " + detail
				return
			}
		}
		out = append(out, workload.Status{Source: fromNode, Reason: r, Detail: detail})
	}
	for _, err := range []error{s.site.err, s.mapsErr, s.here.denied, s.view.odd} {
		if err != nil {
			add(reason(err), err.Error())
		}
	}
	if s.unread != nil && now.Sub(s.unreadT) < time.Minute {
		add(reason(s.unread), s.unread.Error())
	}
	if s.site.several {
		add(workload.Failed, "this machine is several nodes; using "+s.site.node+": configure the node name")
	}
	if n := s.here.refused; n > 0 {
		add(workload.Failed, strconv.Itoa(n)+" jobs and steps exceed the limit")
	}
	if n := len(s.view.beyond); n > 0 {
		add(workload.ResourceUnknown, fmt.Sprintf("%d devices are neither in gres.conf nor known to a driver, such as one of job %s", n, s.view.beyond[0]))
	}
	if n := len(s.view.unnamed); n > 0 {
		add(workload.ResourceUnknown, fmt.Sprintf("%d jobs have more GPUs than their tasks are told about, such as job %s: only the controller or a prolog knows the others", n, s.view.unnamed[0]))
	}
	if n := s.view.uncounted; n > 0 {
		add(workload.ResourceUnknown, fmt.Sprintf("%d jobs hold GPUs that Slurm only counts: gres.conf has no File= for them", n))
	}
	if len(out) == 0 {
		add(workload.OK, fmt.Sprintf("node %s, %d jobs", cmp.Or(s.site.node, "unknown"), len(s.here.jobs)))
	}
	return out
}

func (s *Source) controllerStatus(now time.Time) []workload.Status {
	one := func(r workload.Reason, detail string) []workload.Status {
		return []workload.Status{{Source: fromController, Reason: r, Detail: strings.ReplaceAll(detail, "\n", "; ")}}
	}
	switch {
	case s.cfg.Offline:
		return one(workload.Absent, "the controller is not queried")
	case s.ctl == nil && errors.Is(s.ctlErr, fs.ErrNotExist):
		return one(workload.Absent, "no Slurm tools found and no address of slurmrestd configured: jobs that hold a device without using it are unknown")
	case s.ctl == nil:
		return one(workload.Absent, s.ctlErr.Error())
	}
	a := s.ctl.last(now)
	switch a.reason {
	case workload.Absent:
		return one(a.reason, "has not answered yet")
	case workload.Stale:
		return one(a.reason, fmt.Sprintf("its last answer is used until %s: %v", clock(a.at.Add(s.cfg.StaleFor)), a.err))
	case workload.Expired:
		return one(a.reason, fmt.Sprintf("has not answered since %s: %v", clock(a.at), a.err))
	case workload.Failed:
		return one(reason(a.err), a.err.Error())
	}
	if s.view.hidden > 0 && len(a.jobs) == 0 {
		return one(workload.PermissionDenied, fmt.Sprintf("reports none of the %d jobs on this node: PrivateData may hide them from this user", s.view.hidden))
	}
	return one(workload.OK, fmt.Sprintf("%d jobs on this node", len(a.jobs)))
}

// clock formats a time of day.
func clock(t time.Time) string { return t.UTC().Format("15:04:05Z") }

func reason(err error) workload.Reason {
	switch {
	case errors.Is(err, fs.ErrPermission), errors.Is(err, slurm.ErrDenied):
		return workload.PermissionDenied
	case errors.Is(err, fs.ErrNotExist):
		return workload.Absent
	}
	return workload.Failed
}
