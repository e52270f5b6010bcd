package kubeapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Access is how a claim uses a device. A claim with admin access refers to a device that
// others hold, to manage it: monitoring agents use every device of a node that way, and
// hold none.
type Access string

// The kinds of access.
const (
	AccessUnknown Access = "unknown" // the API server may not or cannot tell
	AccessPending Access = "pending" // the lookup was just queued
	AccessHolder  Access = "holder"
	AccessAdmin   Access = "admin"
)

const (
	maxClaims = 1024
	// claimWait bounds AccessPending.
	claimWait = 5 * time.Second
	// claimFresh is how long an answer is valid: a claim can be recreated under its name.
	claimFresh = 5 * time.Minute
)

type claimName struct{ namespace, name string }

type claims struct {
	mu      sync.Mutex
	known   lru[claimName, claim]
	queue   []claimName
	queued  map[claimName]bool
	wake    chan struct{}
	version string // used only by the goroutine that answers
}

// claim is what is known about a ResourceClaim.
type claim struct {
	admin    map[claimed]bool // by allocated device; nil: unknown
	asked    time.Time        // first time
	answered time.Time        // last time, with or without success
}

func (cs *claims) init() {
	cs.known = newLRU[claimName, claim](maxClaims)
	cs.queued, cs.wake = map[claimName]bool{}, make(chan struct{}, 1)
}

// Access returns how a claim uses a device. It does not block: an unknown claim is queued
// for a lookup.
func (c *Client) Access(namespace, name, driver, pool, device string) Access {
	cs := &c.claims
	cs.mu.Lock()
	defer cs.mu.Unlock()
	key, now := claimName{namespace, name}, time.Now()
	k, ok := cs.known.get(key)
	if !ok {
		k.asked = now
		cs.known.put(key, k)
	}
	if (!ok || now.Sub(k.answered) > claimFresh) && !cs.queued[key] && len(cs.queue) < maxQueue {
		cs.queued[key] = true
		cs.queue = append(cs.queue, key)
		poke(cs.wake)
	}
	admin, given := k.admin[claimed{driver, pool, device}]
	switch {
	case given && admin:
		return AccessAdmin
	case given:
		return AccessHolder
	case k.answered.IsZero() && now.Sub(k.asked) < claimWait:
		return AccessPending
	}
	return AccessUnknown
}

func (cs *claims) next() (q claimName, ok bool) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if len(cs.queue) == 0 {
		return q, false
	}
	q = cs.queue[0]
	cs.queue = cs.queue[1:]
	return q, true
}

func (c *Client) answerClaim(ctx context.Context, q claimName) {
	admin, err := c.lookUpClaim(ctx, q)
	if ctx.Err() != nil {
		return
	}
	c.pace.hold(err)
	gone := notFound(err)
	if gone {
		err = nil
	}
	c.health.set(ctx, Claims, err)
	cs := &c.claims
	cs.mu.Lock()
	defer cs.mu.Unlock()
	delete(cs.queued, q)
	k, _ := cs.known.get(q)
	k.answered = time.Now()
	if err != nil && !denied(err) {
		k.answered = k.answered.Add(retryOwner - claimFresh) // retry soon
	}
	if err == nil {
		k.admin = admin
	}
	cs.known.put(q, k)
	c.generation.Add(1)
}

func (c *Client) lookUpClaim(ctx context.Context, q claimName) (admin map[claimed]bool, err error) {
	cs := &c.claims
	if err := c.pace.wait(ctx); err != nil {
		return nil, err
	}
	if cs.version == "" {
		if cs.version, err = c.claimVersion(ctx); err != nil {
			return nil, err
		}
	}
	b, err := c.rest.get(ctx, plainJSON, []string{"apis", "resource.k8s.io", cs.version, "namespaces", q.namespace, "resourceclaims", q.name}, nil)
	if err != nil {
		cs.version = "" // the version may change with an upgrade
		return nil, err
	}
	return parseClaim(b)
}

// parseClaim returns the devices allocated to a ResourceClaim, and whether each is for
// admin access.
func parseClaim(b []byte) (map[claimed]bool, error) {
	var obj struct {
		Kind   string `json:"kind"`
		Status struct {
			Allocation struct {
				Devices struct {
					Results []struct {
						Driver      string `json:"driver"`
						Pool        string `json:"pool"`
						Device      string `json:"device"`
						AdminAccess bool   `json:"adminAccess"`
					} `json:"results"`
				} `json:"devices"`
			} `json:"allocation"`
		} `json:"status"`
	}
	if err := json.Unmarshal(b, &obj); err != nil {
		return nil, fmt.Errorf("cannot parse a ResourceClaim: %w", err)
	}
	if obj.Kind != "ResourceClaim" {
		return nil, errors.New("cannot parse a ResourceClaim: the object is of another kind")
	}
	admin := map[claimed]bool{}
	for _, r := range obj.Status.Allocation.Devices.Results {
		key := claimed{r.Driver, r.Pool, r.Device}
		// A claim may have the same device for both purposes. Then it holds the device.
		old, twice := admin[key]
		admin[key] = r.AdminAccess && (!twice || old)
	}
	return admin, nil
}
