package kube

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/scheduler"
	"github.com/gpumeter/gpumeter/internal/scheduler/kube/dra"
)

// ClaimRef is a claim of a pod.
type ClaimRef struct {
	Name  string // in the pod
	Claim string // of the ResourceClaim; empty: it has not been created yet
}

// byClaim is what a pod asks for by claims of devices.
type byClaim struct {
	refs []ClaimRef
	// listed are the devices of the pod without those of claims.
	listed map[string]int64
	// found reports whether a claim is for accelerators.
	found bool
}

// accelerated reports whether a pod asks for accelerators, as far as its claims are known.
func (p *Pod) accelerated() bool { return len(p.Devices) > 0 || p.claims.found }

// parseClaims reads which claims a pod has.
func (o *podObject) parseClaims() []ClaimRef {
	var list []ClaimRef
	for _, c := range o.Spec.Claims[:min(len(o.Spec.Claims), maxClaimsOfPod)] {
		ref := ClaimRef{Name: c.Name, Claim: c.Claim}
		for _, s := range o.Status.Claims {
			if s.Name == c.Name {
				ref.Claim = cmp.Or(ref.Claim, s.Claim)
			}
		}
		list = append(list, ref)
	}
	return list
}

// maxClaimsOfPod bounds the claims of a pod. The API allows 32.
const maxClaimsOfPod = 64

// key returns the key of a claim of a pod.
func (r *ClaimRef) key(p *Pod) string { return p.Namespace + "/" + r.Claim }

// catalogNow returns what is known of devices for claims, nil unless claims, slices and classes are all known: without one of
// them parts would count as whole devices, or claims for accelerators as those for something else.
func (c *Cluster) catalogNow() *dra.Catalog {
	if c.claims.known() == nil || c.slices.known() == nil || c.classes.known() == nil {
		return nil
	}
	if changes := [2]int{c.slices.changes, c.classes.changes}; c.catalog == nil || changes != c.cataloged {
		c.catalog, c.cataloged = dra.NewCatalog(c.vendors, c.classes.known(), c.slices.known()), changes
	}
	return c.catalog
}

// resolve returns a pod with what its claims ask for. old is the same pod as it was known, or nil. Claims of a pod that has
// ended are gone before the pod, and a driver that is replaced may take its slices away for a while: what was known stays.
func (c *Cluster) resolve(p, old *Pod) *Pod {
	if len(p.claims.refs) == 0 {
		return p
	}
	out, gone := *p, false
	out.Devices, out.Claimed, out.At, out.claims.found = maps.Clone(p.claims.listed), 0, "", false
	catalog := c.catalogNow()
	for i := range p.claims.refs {
		ref := &p.claims.refs[i]
		claim, ok := c.claims.known()[ref.key(p)]
		if !ok || catalog == nil {
			gone = true
			continue
		}
		asks := catalog.Asks(&claim)
		gone = gone || asks.Unclear
		if asks.Classes == nil {
			continue
		}
		out.claims.found = true
		if owner := c.owners[ref.key(p)]; owner == "" || owner == p.UID {
			out.Claimed += asks.Whole
		}
		if claim.Allocated && p.State.Waits() {
			out.At = cmp.Or(asks.Node, out.At) // the devices are there already
			continue
		}
		if out.Devices == nil {
			out.Devices = map[string]int64{}
		}
		for class, n := range asks.Classes {
			out.Devices[class] = sum(out.Devices[class], n)
		}
	}
	if gone && old != nil && old.claims.found {
		out.Devices, out.Claimed, out.At, out.claims.found = old.Devices, old.Claimed, "", true
	}
	return &out
}

// learnClaims resolves the claims of the pods that were listed before their claims were known, before news of one of them.
func (c *Cluster) learnClaims(now time.Time) {
	if c.synced.pods && !c.synced.claims && c.catalogNow() != nil {
		c.resolveAll(now)
	}
}

// resolveAll resolves the claims of all pods again: they change on their own.
func (c *Cluster) resolveAll(now time.Time) {
	if c.waits != nil {
		c.waits.list()
		defer c.waits.resolved()
	}
	defer func() { c.synced.claims = c.synced.claims || c.synced.pods && c.catalogNow() != nil }()
	c.owners = c.owned()
	for uid, p := range c.pods.own {
		if len(p.claims.refs) == 0 {
			continue
		}
		if next := c.resolve(p, p); next.claims.found != p.claims.found || next.key() != p.key() {
			c.pods.own[uid] = next
			switch {
			case !next.accelerated():
			case !p.accelerated():
				c.seen(p, next, now, true)
			default:
				c.history.seen(p, next, now)
			}
		}
	}
}

// owned returns, for each claim of several pods, the UID of the one for which its devices count: one that has them rather
// than one that waits, and then the oldest.
func (c *Cluster) owned() map[string]string {
	best := map[string]*Pod{}
	for _, p := range c.pods.own {
		for i := range p.claims.refs {
			key := p.claims.refs[i].key(p)
			if b := best[key]; b == nil || prior(p, b) {
				best[key] = p
			}
		}
	}
	owners := make(map[string]string, len(best))
	for key, p := range best {
		owners[key] = p.UID
	}
	return owners
}

func prior(a, b *Pod) bool {
	rank := func(p *Pod) int {
		switch {
		case p.State.Has():
			return 0
		case p.State == scheduler.Finished:
			return 2
		}
		return 1
	}
	return cmp.Or(cmp.Compare(rank(a), rank(b)), a.Created.Compare(b.Created), cmp.Compare(a.UID, b.UID)) < 0
}

// addClaimable adds the devices that a node has for claims, beside those of device plugins. If both offer the devices of a
// vendor, they are the same.
func (s *Snapshot) addClaimable(n *Node, d *dra.Node) {
	n.Model = cmp.Or(n.Model, d.Model)
	for vendor, count := range d.Vendors {
		if slices.Contains(n.plugins, vendor) {
			n.free = max(0, n.free-count.Taken)
			continue
		}
		n.whole += count.All
		n.free += count.All - count.Taken
		n.Broken += count.Broken
	}
	all, left := maps.Clone(n.Allocatable.Devices), maps.Clone(n.Left.Devices)
	if all == nil {
		all = map[string]int64{}
	}
	if left == nil {
		left = map[string]int64{}
	}
	for class, o := range d.Classes {
		all[class], left[class] = o.All, o.Left
	}
	for resource, o := range d.Resources {
		if all[resource] == 0 {
			all[resource], left[resource] = o.All, o.Left
		}
	}
	n.Allocatable.Devices, n.Left.Devices = all, left
}

// saysClaims says which claims a pod waits for, empty if it has none.
func (s *Snapshot) saysClaims(p *Pod) string {
	if len(p.claims.refs) == 0 {
		return ""
	}
	list := make([]string, 0, len(p.claims.refs))
	for i := range p.claims.refs {
		list = append(list, s.saysClaim(p, &p.claims.refs[i]))
	}
	return "Claims: " + strings.Join(list, "; ") + "."
}

// clear reports whether it is known what the claims of a pod are for.
func (s *Snapshot) clear(p *Pod) bool {
	return s.catalog != nil && !slices.ContainsFunc(p.claims.refs, func(r ClaimRef) bool { _, ok := s.claims[r.key(p)]; return !ok })
}

func (s *Snapshot) saysClaim(p *Pod, r *ClaimRef) string {
	if r.Claim == "" {
		return r.Name + " has not been created yet"
	}
	claim, ok := s.claims[r.key(p)]
	switch {
	case s.claims == nil:
		return r.Claim + " is not known"
	case !ok:
		return r.Claim + " does not exist"
	case claim.Allocated:
		text := r.Claim + " is allocated"
		if s.catalog != nil {
			if at := s.catalog.Asks(&claim).Node; at != "" {
				text += " on " + at
			}
		}
		if n := int64(len(claim.Users)); n > 0 {
			text += " and reserved for " + scheduler.Plural(n, "pod")
		}
		return text
	}
	wants := make([]string, 0, len(claim.Requests))
	for i := range claim.Requests {
		wants = append(wants, fmt.Sprintf("%d of %s", claim.Requests[i].Count, claim.Requests[i].Class))
	}
	return r.Claim + " waits for " + scheduler.Enumerate(wants)
}
