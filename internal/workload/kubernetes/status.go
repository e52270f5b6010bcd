package kubernetes

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/workload"
	"github.com/gpumeter/gpumeter/internal/workload/kubeapi"
	"github.com/gpumeter/gpumeter/internal/workload/kubelet"
)

// Source names in a Status.
const (
	fromKubelet = "kubelet"
	fromAPI     = "kubernetes_api"
	fromCgroup  = "cgroup"
	fromHAMi    = "hami"
)

// Statuses implements workload.Source. It returns one Status per source and reason.
func (s *Source) Statuses() []workload.Status {
	now := time.Now()
	list := slices.Concat(s.kubeletStatus(now), s.apiStatus(now), s.sliceStatus(), s.cgroupStatus(now))
	var out []workload.Status
	for _, st := range list {
		i := slices.IndexFunc(out, func(o workload.Status) bool { return o.Source == st.Source && o.Reason == st.Reason })
		if i < 0 {
			out = append(out, st)
			continue
		}
		out[i].Detail += "; " + st.Detail
	}
	slices.SortFunc(out, func(a, b workload.Status) int {
		return cmp.Or(cmp.Compare(a.Source, b.Source), cmp.Compare(a.Reason, b.Reason))
	})
	return out
}

func (s *Source) kubeletStatus(now time.Time) []workload.Status {
	one := func(r workload.Reason, detail string) []workload.Status {
		return []workload.Status{{Source: fromKubelet, Reason: r, Detail: detail}}
	}
	if s.cfg.Kubelet == nil {
		return one(workload.Absent, "the kubelet is not queried")
	}
	_, from := s.kubelet(now)
	snapshot, ok, err := s.cfg.Kubelet.Last()
	switch {
	case from.kubelet == workload.Stale:
		return one(workload.Stale, fmt.Sprintf("its last answer is used until %s: %v", clock(snapshot.Time.Add(s.cfg.StaleFor)), err))
	case from.kubelet == workload.Expired:
		return one(workload.Expired, fmt.Sprintf("has not answered since %s: %v", clock(snapshot.Time), err))
	case !ok && (err == nil || errors.Is(err, kubelet.ErrNotAsked)):
		return one(workload.Absent, "has not answered yet")
	case !ok:
		return one(reason(err), err.Error())
	case snapshot.Refused > 0:
		return one(workload.Failed, fmt.Sprintf("%d containers and devices exceed the limit", snapshot.Refused))
	case snapshot.OfferedErr != nil:
		return one(workload.Failed, fmt.Sprintf("the number of replicas per device is unknown: %v", snapshot.OfferedErr))
	}
	return one(workload.OK, "")
}

// clock formats a time of day.
func clock(t time.Time) string { return t.UTC().Format("15:04:05Z") }

func reason(err error) workload.Reason {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return workload.Absent
	case errors.Is(err, fs.ErrPermission):
		return workload.PermissionDenied
	}
	return workload.Failed
}

// lost is what is unknown without a part of the API.
var lost = map[kubeapi.Part]string{
	kubeapi.Pods:   "owners, labels, teams, UIDs and ended pods",
	kubeapi.Nodes:  "zone and region",
	kubeapi.Owners: "the owners of pods' owners",
	kubeapi.Slices: "which device a claim refers to",
	kubeapi.Claims: "which claims have admin access only",
}

func (s *Source) apiStatus(now time.Time) (out []workload.Status) {
	add := func(r workload.Reason, detail ...string) {
		out = append(out, workload.Status{Source: fromAPI, Reason: r, Detail: strings.Join(detail, "")})
	}
	if s.cfg.API == nil {
		if s.cfg.APIErr != nil {
			r := workload.Failed
			if errors.Is(s.cfg.APIErr, kubeapi.ErrNotInCluster) {
				r = workload.Absent
			}
			add(r, s.cfg.APIErr.Error())
		} else {
			add(workload.Absent, "the API server is not queried")
		}
		return out
	}
	st := s.cfg.API.State()
	for _, p := range st.Problems {
		switch {
		case p.Part == kubeapi.Pods && st.Synced && now.Sub(p.Since) > s.cfg.APIStaleFor:
			add(workload.Expired, "has not answered since ", clock(p.Since), "; unknown: ", lost[p.Part])
		case p.Part == kubeapi.Pods && st.Synced && !p.Denied:
			add(workload.Stale, "its last answer is used until ", clock(p.Since.Add(s.cfg.APIStaleFor)), ": ", p.Err.Error())
		case p.Denied:
			add(workload.PermissionDenied, string(p.Part), "; unknown: ", lost[p.Part], ": ", p.Err.Error())
		default:
			add(workload.Failed, string(p.Part), "; unknown: ", lost[p.Part], ": ", p.Err.Error())
		}
	}
	if st.Refused > 0 {
		add(workload.Failed, fmt.Sprintf("%d pods exceed the limit", st.Refused))
	}
	switch {
	case len(out) > 0:
	case !st.Synced:
		add(workload.Absent, "has not answered yet")
	default:
		add(workload.OK)
	}
	return out
}

func (s *Source) cgroupStatus(now time.Time) []workload.Status {
	one := func(r workload.Reason, detail string) []workload.Status {
		return []workload.Status{{Source: fromCgroup, Reason: r, Detail: detail}}
	}
	if s.cfg.Cgroups == nil {
		return one(workload.Absent, "processes are not inspected")
	}
	host, err := s.cfg.Cgroups.HostPIDNamespace()
	switch {
	case err != nil:
		return one(reason(err), err.Error())
	case !host:
		return one(workload.NoPIDNamespace, "the processes of other containers are not visible")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unread != nil && now.Sub(s.unreadAt) < time.Minute {
		return one(reason(s.unread), s.unread.Error())
	}
	return one(workload.OK, "")
}
