// Package cloud finds out on which cloud this machine runs, in which region and zone,
// and as what type of instance. It asks the metadata server of AWS, Google or Azure,
// and only where the firmware names that cloud: elsewhere no packet is sent.
package cloud

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

const (
	limit   = time.Second // of one detection, whatever it asks
	again   = time.Minute // after one that failed
	maxTry  = 3
	maxBody = 1 << 16
)

// provider is one cloud.
type provider struct {
	name string // as in cloud.provider
	base string // of its metadata server
	ask  func(context.Context, *server) (map[string]string, error)
}

var providers = map[string]provider{
	"aws":   {"aws", "http://169.254.169.254", askAWS},
	"gcp":   {"gcp", "http://metadata.google.internal", askGCE},
	"azure": {"azure", "http://169.254.169.254", askAzure},
}

// Detector finds the attributes once, in the background. It may be used concurrently.
type Detector struct {
	sys  string // where sysfs is mounted
	base string // of the metadata server; empty: the cloud's own
	now  func() time.Time

	mu    sync.Mutex
	found map[string]string
	tries int
	last  time.Time
	busy  bool
}

// New returns a Detector for the machine whose sysfs is at sys.
func New(sys string) *Detector { return &Detector{sys: sys, now: time.Now} }

// Attributes returns what is known, by the names of OpenTelemetry's conventions; nil if
// nothing is yet. It never waits: it starts a detection if one is due.
func (d *Detector) Attributes() map[string]string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.found != nil || d.busy || d.tries >= maxTry || d.tries > 0 && d.now().Sub(d.last) < again {
		return d.found
	}
	d.tries++
	d.last, d.busy = d.now(), true
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		found, known := d.detect(ctx)
		d.mu.Lock()
		defer d.mu.Unlock()
		d.found, d.busy = found, false
		if !known {
			d.tries = maxTry // no cloud stays none
		}
	}()
	return nil
}

// detect asks the cloud's server. known is false on a machine of no cloud we know.
func (d *Detector) detect(ctx context.Context) (found map[string]string, known bool) {
	p, known := providers[firmware(d.sys)]
	if !known {
		return nil, false
	}
	s := &server{base: p.base, client: newClient()}
	if d.base != "" {
		s.base = d.base
	}
	defer s.client.CloseIdleConnections()
	answer, err := p.ask(ctx, s)
	if err != nil {
		return nil, true
	}
	found = map[string]string{"cloud.provider": p.name}
	for key, value := range answer {
		if value != "" && plausible(value) {
			found[key] = value
		}
	}
	if len(found) < 3 { // provider and platform alone: something else answered
		return nil, true
	}
	return found, true
}

// newClient returns a client that goes to the server itself: no proxy, no redirect.
func newClient() *http.Client {
	return &http.Client{
		Transport:     &http.Transport{DialContext: (&net.Dialer{Timeout: limit}).DialContext},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// plausible refuses what is no name: the page of some other server.
func plausible(value string) bool {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.=/+:"
	return len(value) <= 255 && strings.Trim(value, letters) == ""
}

// firmware returns the cloud that the firmware of the machine names, empty if none.
func firmware(sys string) string {
	read := func(name string) string {
		b, _ := os.ReadFile(filepath.Join(sys, "class/dmi/id", name)) // absent is no cloud
		return strings.TrimSpace(string(b))
	}
	vendor := read("sys_vendor")
	switch {
	case strings.HasPrefix(vendor, "Amazon"), strings.Contains(read("bios_version"), "amazon"): // Nitro and metal, Xen
		return "aws"
	case vendor == "Google", read("product_name") == "Google Compute Engine":
		return "gcp"
	case read("chassis_asset_tag") == "7783-7084-3265-9085-8269-3286-77": // Hyper-V elsewhere has another
		return "azure"
	}
	return ""
}
