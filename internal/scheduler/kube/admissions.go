package kube

import (
	"slices"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/scheduler/kube/gang"
	"github.com/gpumeter/gpumeter/internal/scheduler/kube/tally"
)

// seenWorkload keeps the index of the Workloads of Kueue, and counts how long they waited.
func (c *Cluster) seenWorkload(old, next *gang.Workload, first bool) {
	if old != nil {
		for _, uid := range old.Owners {
			delete(c.workload, old.Namespace+"/"+uid)
		}
	}
	if next == nil {
		return
	}
	for _, uid := range next.Owners {
		c.workload[next.Namespace+"/"+uid] = next.Key()
	}
	accelerator := func(resource string) bool {
		r := c.vendors.Resource(resource)
		return r.Name != "" && r.Unit != device.NoDevice
	}
	if c.waits != nil && slices.ContainsFunc(next.Resources, accelerator) {
		c.waits.admit(old, next, first)
	}
}

func (c *Cluster) listWorkloads(begins bool) {
	if c.waits != nil {
		c.waits.listWorkloads(begins, time.Now())
	}
}

// admit counts the first admission of a Workload. One that was evicted before has waited for something else, too.
func (w *Waits) admit(old, next *gang.Workload, first bool) {
	if next.AdmittedAt.IsZero() || next.Created.IsZero() || next.EvictedBefore {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	counts, changed := w.admitted.Once(tally.Of(next.UID), next.AdmittedAt, old != nil && old.AdmittedAt.IsZero(), first)
	if changed {
		w.note = ""
	}
	if counts {
		w.totals.Admitted.Add(next.Namespace, next.AdmittedAt.Sub(next.Created))
	}
}

// listWorkloads says that the Workloads of a list follow, or that all have.
func (w *Waits) listWorkloads(begins bool, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.admitted.Listing = begins; !begins {
		w.admitted.Listed(now)
		w.note = ""
	}
}
