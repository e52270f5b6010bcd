package dra

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/gpumeter/gpumeter/internal/device"
)

// Catalog is the devices that all drivers of accelerators offer, and the classes by which claims ask for them.
type Catalog struct {
	vendors device.Vendors
	classes map[string]*kind
	units   map[Address]*unit
}

// kind is a class of accelerators.
type kind struct {
	Class
	driver string
	part   bool // no device of the class is a whole one
}

// Unit is what an allocated device is: a whole one, a part of one with memory and cores of its own, or a share of one that
// several claims have. Of a device that no slice has now, it is not known.
type Unit string

// The units.
const (
	Whole   Unit = "whole"
	Part    Unit = "part"
	Share   Unit = "share"
	Unknown Unit = "unknown"
)

// unit is a device of a Catalog.
type unit struct {
	*Device
	Unit
	driver  string
	vendor  string
	sets    []set
	classes []string
}

// set names a set of counters: those of a physical device, from which it and its parts take.
type set struct{ driver, pool, name string }

// NewCatalog returns the Catalog of the classes and slices of a cluster.
func NewCatalog(v device.Vendors, classes map[string]Class, all map[string]Slice) *Catalog {
	c := &Catalog{vendors: v, classes: map[string]*kind{}, units: map[Address]*unit{}}
	for name, class := range classes {
		if driver := class.driver(v); driver != "" {
			c.classes[name] = &kind{Class: class, driver: driver, part: class.partial(driver, v.Resource(driver).WholeTypes)}
		}
	}
	type pool struct{ driver, name string }
	newest := map[pool]int64{}
	for _, s := range all {
		p := pool{s.Driver, s.Pool}
		if n, ok := newest[p]; !ok || s.Generation > n {
			newest[p] = s.Generation
		}
	}
	totals := map[set]uint64{}
	for _, s := range all {
		for name, n := range s.Sets {
			if s.Generation == newest[pool{s.Driver, s.Pool}] {
				totals[set{s.Driver, s.Pool, name}] = n
			}
		}
	}
	for _, s := range all {
		if claimed(v, s.Driver) == "" || s.Generation < newest[pool{s.Driver, s.Pool}] {
			continue
		}
		for i := range s.Devices {
			c.add(&s, &s.Devices[i], totals)
		}
	}
	c.judge()
	return c
}

func (c *Catalog) add(s *Slice, d *Device, totals map[set]uint64) {
	fact := c.vendors.Resource(s.Driver)
	u := &unit{Device: d, Unit: Whole, driver: s.Driver, vendor: c.vendors.Of(s.Driver)}
	full := true
	for _, used := range d.Sets {
		id := set{s.Driver, s.Pool, used.Set}
		total, known := totals[id]
		full = full && known && total == used.Amount
		u.sets = append(u.sets, id)
	}
	typed := d.Type != "" && len(fact.WholeTypes) > 0
	switch {
	case d.Shared:
		u.Unit = Share
	case d.Parent, typed && !slices.Contains(fact.WholeTypes, d.Type), !typed && !full:
		u.Unit = Part
	}
	for name, k := range c.classes {
		if k.driver == s.Driver && k.selects(s.Driver, fact.ModelAttribute, d) {
			u.classes = append(u.classes, name)
		}
	}
	c.units[Address{s.Driver, s.Pool, d.Name}] = u
}

// judge finds the classes that have devices, none of which is a whole one.
func (c *Catalog) judge() {
	has, whole := map[string]bool{}, map[string]bool{}
	for _, u := range c.units {
		for _, name := range u.classes {
			has[name] = true
			whole[name] = whole[name] || u.Unit == Whole
		}
	}
	for name, k := range c.classes {
		k.part = k.part || has[name] && !whole[name]
	}
}

// class returns a class of accelerators, nil if it is of something else or not known. One that does not exist may be called
// like its driver.
func (c *Catalog) class(name string) *kind {
	if k := c.classes[name]; k != nil {
		return k
	}
	if driver := claimed(c.vendors, name); driver != "" {
		return &kind{Class: Class{Name: name}, driver: driver}
	}
	return nil
}

// Asks is what a claim asks for, of accelerators.
type Asks struct {
	Classes map[string]int64 // devices or parts of devices by class; nil: it asks for no accelerator
	Whole   int64            // whole devices
	Unclear bool             // of some devices it is not known whether they are whole ones
	Node    string           // where they were allocated; empty: nowhere yet, or not on one node
}

// Asks returns what a claim asks for, or was given.
func (c *Catalog) Asks(of *Claim) Asks {
	a := Asks{}
	take := func(class string, n int64, whole bool) {
		if a.Classes == nil {
			a.Classes = map[string]int64{}
		}
		a.Classes[class] += n
		if whole {
			a.Whole += n
		}
	}
	if !of.Allocated {
		for i := range of.Requests {
			r := &of.Requests[i]
			if k := c.class(r.Class); k != nil && !r.Admin {
				take(r.Class, r.Count, !k.part && !r.Part)
			}
		}
		return a
	}
	for i := range of.Results {
		r := &of.Results[i]
		if r.Admin || claimed(c.vendors, r.Device.Driver) == "" {
			continue
		}
		class := of.class(r)
		unit := c.unitOf(r, class)
		take(class, 1, unit == Whole)
		a.Unclear = a.Unclear || unit == Unknown
		if u := c.units[r.Device]; u != nil && u.Node != "" {
			a.Node = u.Node
		}
	}
	return a
}

// unitOf returns what was allocated.
func (c *Catalog) unitOf(r *Result, class string) Unit {
	switch u := c.units[r.Device]; {
	case r.Part:
		return Share
	case u != nil:
		return u.Unit
	}
	if k := c.class(class); k != nil && k.part {
		return Part
	}
	return Unknown
}

// Node is the accelerators of a node that claims can ask for.
type Node struct {
	Model string // empty: no device says it, or they differ
	mixed bool   // they differ
	// Vendors are whole devices by vendor.
	Vendors map[string]Devices
	// Classes are the devices and parts of devices of each class. A device may be of several classes.
	Classes map[string]Offer
	// Resources are the same, by the resource that stands for a class.
	Resources map[string]Offer
}

// Devices counts whole devices.
type Devices struct {
	All    int64 // that claims have or can have
	Taken  int64 // that claims have, or parts of
	Broken int64 // that nobody can have, because of a taint
}

// Offer is how many devices of a class there are, and are left.
type Offer struct{ All, Left int64 }

// Nodes returns the accelerators of the nodes, and what claims have left of them.
func (c *Catalog) Nodes(claims map[string]Claim) map[string]*Node {
	given, sets, whole := map[*unit]bool{}, map[set]bool{}, map[set]bool{}
	for _, claim := range claims {
		for i := range claim.Results {
			u := c.units[claim.Results[i].Device]
			if u == nil || claim.Results[i].Admin {
				continue
			}
			given[u] = true
			for _, id := range u.sets {
				sets[id] = true
				whole[id] = whole[id] || u.Unit == Whole
			}
		}
	}
	nodes := map[string]*Node{}
	for _, u := range c.units {
		if u.Node == "" {
			continue
		}
		n := nodes[u.Node]
		if n == nil {
			n = &Node{Vendors: map[string]Devices{}, Classes: map[string]Offer{}, Resources: map[string]Offer{}}
			nodes[u.Node] = n
		}
		n.models(u.Model)
		// A whole device is taken with any part of it, and a part with the whole.
		by := whole
		if u.Unit == Whole {
			by = sets
		}
		taken := given[u] || slices.ContainsFunc(u.sets, func(id set) bool { return by[id] })
		n.count(u, taken)
		for _, name := range u.classes {
			if u.Tainted && !taken {
				continue
			}
			left := int64(1)
			if taken && u.Unit != Share { // how much of a shared device is left is not computed
				left = 0
			}
			offer(n.Classes, name, left)
			if r := c.classes[name].Resource; r != "" {
				offer(n.Resources, r, left)
			}
		}
	}
	return nodes
}

func (n *Node) models(name string) {
	n.mixed = n.mixed || n.Model != "" && name != "" && n.Model != name
	if n.Model = cmp.Or(n.Model, name); n.mixed {
		n.Model = ""
	}
}

func (n *Node) count(u *unit, taken bool) {
	if u.Unit != Whole {
		return
	}
	d := n.Vendors[u.vendor]
	switch {
	case taken:
		d.All, d.Taken = d.All+1, d.Taken+1
	case u.Tainted:
		d.Broken++
	default:
		d.All++
	}
	n.Vendors[u.vendor] = d
}

func offer(to map[string]Offer, name string, left int64) {
	o := to[name]
	to[name] = Offer{o.All + 1, o.Left + left}
}

// States of a claim.
const (
	Pending   = "pending"
	Allocated = "allocated"
)

// Group is what claims, or the devices of claims, have in common.
type Group struct {
	State         string
	Class, Driver string // of a claim with several requests: all of them, separated by commas
	Unit          Unit   // of devices
}

// Count counts the claims of accelerators, and the devices that they have or ask for. Each claim and each device counts once,
// however many pods use it.
func (c *Catalog) Count(claims map[string]Claim) (count, devices map[Group]int64) {
	count, devices = map[Group]int64{}, map[Group]int64{}
	for _, claim := range claims {
		classes, drivers := map[string]bool{}, map[string]bool{}
		g := Group{State: Pending}
		add := func(class, driver string, unit Unit, n int64) {
			classes[class], drivers[driver] = true, true
			devices[Group{g.State, class, driver, unit}] += n
		}
		if claim.Allocated {
			g.State = Allocated
			for i := range claim.Results {
				r := &claim.Results[i]
				if class := claim.class(r); !r.Admin && claimed(c.vendors, r.Device.Driver) != "" {
					add(class, r.Device.Driver, c.unitOf(r, class), 1)
				}
			}
		} else {
			for i := range claim.Requests {
				r := &claim.Requests[i]
				k := c.class(r.Class)
				switch {
				case k == nil || r.Admin:
				case r.Part:
					add(r.Class, k.driver, Share, r.Count)
				case k.part:
					add(r.Class, k.driver, Part, r.Count)
				default:
					add(r.Class, k.driver, Whole, r.Count)
				}
			}
		}
		if len(classes) > 0 {
			g.Class, g.Driver = joined(classes), joined(drivers)
			count[g]++
		}
	}
	return count, devices
}

func joined(set map[string]bool) string { return strings.Join(slices.Sorted(maps.Keys(set)), ",") }
