package inferencereceiver

import (
	"context"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gpumeter/gpumeter/internal/inference/discover"
)

const (
	// lookupEvery is the time between two looks at the addresses of listed names.
	lookupEvery = 5 * time.Minute
	// lookupTimeout is how long a look may take: the first tick waits for the first.
	lookupTimeout = 2 * time.Second
)

// lookup returns the addresses of a name.
type lookup func(ctx context.Context, network, name string) ([]netip.Addr, error)

// resolve looks up the names of listed targets, so that an engine that is found, too, is known by its addresses. Names
// that cannot be looked up keep the addresses that they had.
func (r *inferenceReceiver) resolve(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	var all sync.WaitGroup
	for _, t := range r.listed {
		name := t.URL.Hostname()
		if _, err := netip.ParseAddr(name); err == nil || isLocalhost(name) {
			continue
		}
		all.Go(func() {
			if list, err := r.lookup(ctx, "ip", name); err == nil {
				t.addresses.Store(&list)
			}
		})
	}
	all.Wait()
}

// renew looks up the names of listed targets in the background if it is time.
func (r *inferenceReceiver) renew(ctx context.Context, now time.Time) {
	if age := now.Sub(r.resolved); r.find == nil || age >= 0 && age < lookupEvery || !r.resolving.TryLock() {
		return
	}
	r.resolved = now
	r.reading.Go(func() {
		defer r.resolving.Unlock()
		r.resolve(ctx)
	})
}

// listing returns the listed target that is a found engine. An address is one of the agent's network: every pod has
// a localhost of its own.
func (r *inferenceReceiver) listing(e *discover.Engine) *target {
	for _, l := range r.listed {
		if l.URL.Path == e.Target.URL.Path && slices.ContainsFunc(e.Addresses, l.leads) {
			return l
		}
	}
	return nil
}

// leads reports whether the URL of a listed target leads to an address.
func (t *target) leads(to netip.AddrPort) bool {
	if portOf(t.URL) != strconv.Itoa(int(to.Port())) {
		return false
	}
	if isLocalhost(t.URL.Hostname()) {
		return to.Addr().IsLoopback()
	}
	if ip, err := netip.ParseAddr(t.URL.Hostname()); err == nil {
		return ip.Unmap() == to.Addr().Unmap()
	}
	known := t.addresses.Load()
	// A machine may have its own name at a localhost of its own, such as 127.0.1.1.
	return known != nil && slices.ContainsFunc(*known, func(ip netip.Addr) bool {
		return ip.Unmap() == to.Addr().Unmap() || ip.IsLoopback() && to.Addr().IsLoopback()
	})
}

func isLocalhost(name string) bool { return strings.EqualFold(name, "localhost") }

// portOf returns the port of a URL, which may be that of its scheme.
func portOf(u *url.URL) string {
	if port := u.Port(); port != "" {
		return port
	}
	return map[string]string{"http": "80", "https": "443"}[u.Scheme]
}
