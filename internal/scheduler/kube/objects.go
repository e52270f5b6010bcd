package kube

import (
	"maps"
	"sync"

	"github.com/gpumeter/gpumeter/internal/scheduler/kube/dra"
	"github.com/gpumeter/gpumeter/internal/scheduler/kube/gang"
	"github.com/gpumeter/gpumeter/internal/workload/podgroup"
)

// Limits of the further objects that are kept.
const (
	maxClaims  = 100_000
	maxSlices  = 50_000
	maxClasses = 1_000
	maxGroups  = 50_000
)

// Kind is a kind of object that a Cluster understands and that not every API server has. Each has a permission of its own.
type Kind struct {
	Group    string
	Versions []string // that are understood, best first
	Kind     string
	// Sink takes the objects as JSON.
	Sink interface {
		Begin() (add func(object []byte), commit func())
		Put(object []byte)
		Delete(object []byte)
	}
	// Lost says whether the server no longer tells what there is. Then nothing is known, until it does again.
	Lost func(bool)
	// Concerns reports whether the objects may say why a pod waits.
	Concerns func(*Pod) bool
}

// Kinds returns the further kinds of objects, to be kept current beside the pods and nodes.
func (c *Cluster) Kinds() []Kind {
	versions := []string{"v1", "v1beta2", "v1beta1"}
	claiming := func(p *Pod) bool { return len(p.claims.refs) > 0 }
	list := []Kind{
		{"resource.k8s.io", versions, "ResourceClaim", &c.claims, c.claims.lose, claiming},
		{"resource.k8s.io", versions, "ResourceSlice", &c.slices, c.slices.lose, claiming},
		{"resource.k8s.io", versions, "DeviceClass", &c.classes, c.classes.lose, claiming},
		{"kueue.x-k8s.io", []string{"v1beta2", "v1beta1"}, "Workload", &c.kueue, c.kueue.lose, func(p *Pod) bool { return p.kueue }},
	}
	for _, g := range groupKinds {
		o := c.podGroups[g.system]
		list = append(list, Kind{g.group, g.versions, "PodGroup", o, o.lose, func(p *Pod) bool { return p.member.group.System == g.system }})
	}
	return list
}

// groupKinds are the kinds of groups whose pods are placed as a whole.
var groupKinds = []struct {
	system   podgroup.System
	group    string
	versions []string
}{
	{podgroup.Volcano, "scheduling.volcano.sh", []string{"v1beta1"}},
	{podgroup.KAI, "scheduling.run.ai", []string{"v2alpha2"}},
	{podgroup.Coscheduling, "scheduling.x-k8s.io", []string{"v1alpha1"}},
	{podgroup.Kubernetes, "scheduling.k8s.io", []string{"v1alpha2"}}, // since 1.36
}

// refusedKinds counts objects beyond a limit, or not understood.
func (c *Cluster) refusedKinds() int {
	n := c.claims.refused + c.slices.refused + c.classes.refused + c.kueue.refused
	for _, o := range c.podGroups {
		n += o.refused
	}
	return n
}

// objects are the objects of a Kind.
type objects[T any] struct {
	mu      *sync.Mutex // of the Cluster
	parse   func([]byte) (key string, object T, err error)
	limit   int
	all     map[string]T // nil: never listed
	lost    bool
	refused int
	changes int // so far
	// picks says which objects are also in picked, to be found without a walk of all; nil: none.
	picks  func(*T) bool
	picked map[string]T
	// seen is told of each object that is new, old being nil, has changed, or is gone, next being nil, before it is so. first says
	// that it is in the first list. listing is told when a list begins and ends. Nil: nobody is told.
	seen    func(old, next *T, first bool)
	listing func(bool)
}

// tell tells of the next state of the object of a key.
func (o *objects[T]) tell(key string, next *T) {
	if o.seen == nil {
		return
	}
	var old *T
	if was, ok := o.all[key]; ok {
		old = &was
	}
	o.seen(old, next, o.all == nil)
}

// pick puts an object into the picked ones, or removes it from there.
func (o *objects[T]) pick(key string, object *T) {
	if delete(o.picked, key); o.picks != nil && o.picks(object) {
		if o.picked == nil {
			o.picked = map[string]T{}
		}
		o.picked[key] = *object
	}
}

func newObjects[T any](c *Cluster, limit int, parse func([]byte) (string, T, error)) objects[T] {
	return objects[T]{mu: &c.mu, limit: limit, parse: parse}
}

// known returns the objects, nil if they are not known now.
func (o *objects[T]) known() map[string]T {
	if o == nil || o.lost {
		return nil
	}
	return o.all
}

// copied is known for a Snapshot.
func (o *objects[T]) copied() map[string]T { return maps.Clone(o.known()) }

func (o *objects[T]) lose(lost bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.lost != lost {
		o.changes++
	}
	o.lost = lost
}

// Begin starts a list of all objects.
func (o *objects[T]) Begin() (add func(object []byte), commit func()) {
	all, refused := map[string]T{}, 0
	add = func(b []byte) {
		key, object, err := o.parse(b)
		if err != nil || len(all) >= o.limit {
			refused++
			return
		}
		all[key] = object
	}
	commit = func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.listing != nil {
			o.listing(true)
			defer o.listing(false)
		}
		for key := range o.all {
			if _, ok := all[key]; !ok {
				o.tell(key, nil)
			}
		}
		for key, object := range all {
			o.tell(key, &object)
		}
		o.all, o.refused, o.changes = all, refused, o.changes+1
		o.picked = nil
		for key, object := range all {
			o.pick(key, &object)
		}
	}
	return add, commit
}

// Put adds or replaces an object.
func (o *objects[T]) Put(b []byte) {
	key, object, err := o.parse(b)
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, here := o.all[key]; err != nil || o.all == nil || !here && len(o.all) >= o.limit {
		o.refused++
		return
	}
	o.tell(key, &object)
	o.all[key] = object
	o.pick(key, &object)
	o.changes++
}

// Delete removes an object.
func (o *objects[T]) Delete(b []byte) {
	key, _, err := o.parse(b)
	if err != nil {
		return // it was never here
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.tell(key, nil)
	delete(o.all, key)
	delete(o.picked, key)
	o.changes++
}

// further makes the tables of a Cluster for the further kinds.
func (c *Cluster) further() {
	c.claims = newObjects(c, maxClaims, func(b []byte) (string, dra.Claim, error) {
		v, err := dra.ParseClaim(b)
		return v.Key(), v, err
	})
	c.slices = newObjects(c, maxSlices, func(b []byte) (string, dra.Slice, error) {
		v, err := dra.ParseSlice(b, func(driver string) string { return c.vendors.Resource(driver).ModelAttribute })
		return v.Name, v, err
	})
	c.kueue = newObjects(c, maxGroups, func(b []byte) (string, gang.Workload, error) {
		v, err := gang.ParseWorkload(b)
		return v.Key(), v, err
	})
	c.workload = map[string]string{}
	c.kueue.seen = c.seenWorkload
	c.kueue.listing = c.listWorkloads
	c.kueue.picks = func(w *gang.Workload) bool { return w.Evicted != "" }
	c.podGroups = map[podgroup.System]*objects[gang.PodGroup]{}
	for _, g := range groupKinds {
		o := newObjects(c, maxGroups, func(b []byte) (string, gang.PodGroup, error) {
			v, err := gang.ParsePodGroup(b)
			return v.Key(), v, err
		})
		c.podGroups[g.system] = &o
	}
	c.classes = newObjects(c, maxClasses, func(b []byte) (string, dra.Class, error) {
		v, err := dra.ParseClass(b)
		return v.Name, v, err
	})
}
