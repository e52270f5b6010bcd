package kubeapi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/internal/workload/podgroup"
)

const (
	// maxDepth bounds a chain of owners. The longest known chain, of KServe on Knative, has
	// 7: ReplicaSet, Deployment, Revision, Configuration, Service, InferenceService.
	maxDepth  = 8
	maxOwners = 1024
	maxQueue  = 1024

	// askAgain is when a lookup is repeated that was denied or whose object did not exist;
	// retryOwner when the server did not answer.
	askAgain   = 10 * time.Minute
	retryOwner = time.Minute
)

// ownerRef refers to the controller of an object. The controller is in the object's
// namespace, or cluster-scoped.
type ownerRef struct {
	APIVersion, Kind, Name, UID string
}

// reference is an owner as an object refers to it.
type reference struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	UID        string `json:"uid"`
	Controller bool   `json:"controller"`
}

func (r ownerRef) group() string {
	group, _, ok := strings.Cut(r.APIVersion, "/")
	if !ok {
		return ""
	}
	return group
}

func (r ownerRef) owner() Owner {
	kind := strings.ToLower(r.Kind)
	if kind == "job" && r.group() == "batch.volcano.sh" {
		kind = "vcjob" // as kubectl calls it: a Job of Kubernetes may have the same name
	}
	return Owner{kind, r.Name}
}

// pod reports whether the owner is a pod: never the workload itself, but the leader of others.
func (r ownerRef) pod() bool { return r.APIVersion == "v1" && r.Kind == "Pod" }

// owners knows the owners of pods' owners.
type owners struct {
	mu     sync.Mutex
	known  lru[string, above] // by UID
	queue  []ownerQuestion
	queued map[string]bool // by UID
	wake   chan struct{}
	denied map[string]refusal // by resource and group
	failed Problem            // of the last lookup, if it failed for another reason
	kinds  lru[string, kinds] // by apiVersion; used only by the goroutine that answers
}

// above is what is known about an owner: its controller and its queue.
type above struct {
	ref   ownerRef
	queue string    // that the owner itself names
	none  bool      // the owner has no controller
	until time.Time // when to look up again; zero: never
}

// refusal is a resource that may not be read.
type refusal struct {
	since time.Time
	asked time.Time // last time
	err   error
}

type ownerQuestion struct {
	namespace string
	ref       ownerRef
}

func (o *owners) init() {
	o.known = newLRU[string, above](maxOwners)
	o.kinds = newLRU[string, kinds](64)
	o.queued, o.denied, o.wake = map[string]bool{}, map[string]refusal{}, make(chan struct{}, 1)
}

// of returns the known owners of p and the queue that the nearest of them names, and queues a lookup of the next one.
func (o *owners) of(p *pod) (chain []Owner, queue string) {
	if p.ref == (ownerRef{}) {
		if p.group != "" {
			chain = []Owner{{"podgroup", p.group}}
		}
		return chain, ""
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for ref, depth := p.ref, 0; depth < maxDepth; depth++ {
		if ref.APIVersion == "v1" && ref.Kind == "Node" {
			return chain, queue // a static pod: its owner, the node, is not a workload
		}
		chain = append(chain, ref.owner())
		a, ok := o.known.get(ref.UID)
		if !ok || !a.until.IsZero() && time.Now().After(a.until) {
			o.ask(ownerQuestion{p.Namespace, ref})
		}
		queue = cmp.Or(queue, a.queue)
		if a.ref == (ownerRef{}) {
			if p.hint != (Owner{}) && (depth == 0 && !a.none || ref.pod()) {
				chain = append(chain, p.hint)
			}
			return chain, queue
		}
		ref = a.ref
	}
	return chain, queue
}

// ask queues q. If the queue is full, the lookup is repeated when the pod is looked up
// again.
func (o *owners) ask(q ownerQuestion) {
	if o.queued[q.ref.UID] || len(o.queue) >= maxQueue {
		return
	}
	o.queued[q.ref.UID] = true
	o.queue = append(o.queue, q)
	poke(o.wake)
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// hint returns the creator of the ReplicaSet ref, derived from the hash label of its pods, or the set that an operator's
// label names.
func hint(ref ownerRef, marks *podgroup.Marks) Owner {
	if group := ref.group(); group != "apps" && group != "batch" {
		return Owner{}
	}
	if ref.Kind != "ReplicaSet" {
		kind, name := marks.Set(ref.Kind, ref.Name)
		return Owner{kind, strings.Clone(name)}
	}
	for _, by := range []struct{ label, kind string }{
		{"pod-template-hash", "deployment"},
		{"rollouts-pod-template-hash", "rollout"},
	} {
		if hash := marks.Labels[by.label]; hash != "" {
			if name, ok := strings.CutSuffix(ref.Name, "-"+hash); ok && name != "" {
				return Owner{by.kind, strings.Clone(name)}
			}
		}
	}
	return Owner{}
}

// problem returns what is wrong with owner lookups: denials first, because they persist.
func (o *owners) problem() (Problem, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.denied) == 0 {
		return o.failed, o.failed.Err != nil
	}
	p := Problem{Part: Owners, Denied: true}
	names := slices.Sorted(maps.Keys(o.denied))
	for _, n := range names {
		if p.Since.IsZero() || o.denied[n].since.Before(p.Since) {
			p.Since = o.denied[n].since
		}
	}
	const most = 5
	more := ""
	if len(names) > most {
		more = fmt.Sprintf(" and %d more", len(names)-most)
		names = names[:most]
	}
	p.Err = fmt.Errorf("cannot get %s%s: %w", strings.Join(names, ", "), more, o.denied[names[0]].err)
	return p, true
}

// answer processes queued lookups, those of claims first because their result is waited
// for.
func (c *Client) answer(ctx context.Context) {
	for ctx.Err() == nil {
		if q, ok := c.claims.next(); ok {
			c.answerClaim(ctx, q)
			continue
		}
		if q, ok := c.owners.next(); ok {
			c.answerOwner(ctx, q)
			continue
		}
		select {
		case <-ctx.Done():
		case <-c.claims.wake:
		case <-c.owners.wake:
		}
	}
}

func (o *owners) next() (q ownerQuestion, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.queue) == 0 {
		return q, false
	}
	q = o.queue[0]
	o.queue = o.queue[1:]
	return q, true
}

func (c *Client) answerOwner(ctx context.Context, q ownerQuestion) {
	resource, a, err := c.lookUp(ctx, q)
	if ctx.Err() != nil {
		return
	}
	c.pace.hold(err)
	now := time.Now()
	switch {
	case err == nil:
	case notFound(err) || errors.Is(err, errNoKind) || errors.Is(err, errReplaced):
		a, err = above{none: true, until: now.Add(askAgain)}, nil
	case denied(err):
		a = above{until: now.Add(askAgain)}
	default:
		a = above{until: now.Add(retryOwner)}
	}
	o := &c.owners
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.queued, q.ref.UID)
	if old, ok := o.known.get(q.ref.UID); ok && err != nil {
		a.ref, a.queue, a.none = old.ref, old.queue, old.none // the previous result still holds
	}
	o.known.put(q.ref.UID, a)
	switch {
	case err == nil:
		delete(o.denied, resource)
		o.failed = Problem{}
	case denied(err):
		r, known := o.denied[resource]
		if !known && len(o.denied) < maxDenied {
			o.denied[resource] = refusal{since: now, asked: now, err: shorten(err)}
		} else if known && now.Sub(r.asked) >= askAgain {
			o.denied[resource] = refusal{since: r.since, asked: now, err: shorten(err)}
		}
	default:
		if o.failed.Err == nil {
			o.failed = Problem{Part: Owners, Since: now}
		}
		o.failed.Err = shorten(err)
	}
	c.generation.Add(1)
}

// maxDenied bounds the number of kinds remembered as denied.
const maxDenied = 100

// lookUp requests the controller of an owner. resource is what it requested, in RBAC
// notation.
func (c *Client) lookUp(ctx context.Context, q ownerQuestion) (resource string, a above, err error) {
	k, err := c.kind(ctx, q.ref)
	if err != nil {
		return "discovery", a, err
	}
	resource = k.Resource
	if g := q.ref.group(); g != "" {
		resource += "." + g
	}
	if err := c.owners.recentlyDenied(resource); err != nil {
		return resource, a, err // one denial applies to all objects of a kind
	}
	path := groupPath(q.ref.APIVersion)
	if k.Namespaced {
		path = append(path, "namespaces", q.namespace)
	}
	if err := c.pace.wait(ctx); err != nil {
		return resource, a, err
	}
	b, err := c.rest.get(ctx, metadataOnly, append(path, k.Resource, q.ref.Name), nil)
	if err != nil {
		return resource, a, err
	}
	a, err = parseOwner(b, q.ref.UID)
	return resource, a, err
}

// recentlyDenied returns the error if a resource was denied less than askAgain ago.
func (o *owners) recentlyDenied(resource string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if r, ok := o.denied[resource]; ok && time.Since(r.asked) < askAgain {
		return r.err
	}
	return nil
}

// errReplaced means that another object now has the name of an owner. The controller of the
// old object can no longer be determined.
var errReplaced = errors.New("the owner was replaced")

// parseOwner returns the controller and the queue of the object in b, which must have the given UID.
func parseOwner(b []byte, uid string) (above, error) {
	var obj struct {
		Metadata struct {
			UID             string               `json:"uid"`
			Labels          map[string]string    `json:"labels"`
			Annotations     podgroup.Annotations `json:"annotations"`
			OwnerReferences []reference          `json:"ownerReferences"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(b, &obj); err != nil {
		return above{}, fmt.Errorf("cannot parse an owner: %w", err)
	}
	if obj.Metadata.UID == "" {
		return above{}, errors.New("cannot parse an owner: no UID")
	}
	if obj.Metadata.UID != uid {
		return above{}, errReplaced
	}
	marks := podgroup.Marks{Labels: obj.Metadata.Labels, Annotations: &obj.Metadata.Annotations, Spec: &podgroup.Spec{}}
	queue := strings.Clone(marks.Queue())
	for _, r := range obj.Metadata.OwnerReferences {
		if r.Controller && r.Kind != "" && r.Name != "" && r.UID != "" && r.UID != uid {
			return above{ref: ownerRef{r.APIVersion, r.Kind, r.Name, r.UID}, queue: queue}, nil
		}
	}
	return above{none: true, queue: queue}, nil
}
