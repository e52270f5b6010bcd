// Package cloud detects the cloud provider, region, zone and instance type of the machine,
// and returns them as OpenTelemetry resource attributes.
//
// The provider comes from the DMI strings that the firmware publishes in sysfs; no
// privilege is needed. The rest comes from that provider's metadata server (AWS IMDSv2,
// Google, Azure). On a machine whose firmware names no known cloud, no packet is sent.
// Detection is best effort: a failed one is retried at most twice and never reported as an
// error.
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
	limit   = time.Second // deadline of one detection, all requests together
	again   = time.Minute // between a failed detection and the next
	maxTry  = 3
	maxBody = 1 << 16
)

// provider is one cloud.
type provider struct {
	name string // value of cloud.provider
	base string // base URL of the metadata server
	ask  func(context.Context, *server) (map[string]string, error)
}

var providers = map[string]provider{
	"aws":   {"aws", "http://169.254.169.254", askAWS},
	"gcp":   {"gcp", "http://metadata.google.internal", askGCE},
	"azure": {"azure", "http://169.254.169.254", askAzure},
}

// Detector detects the attributes once, in the background. It is safe for concurrent use.
type Detector struct {
	sys  string // mount point of sysfs
	base string // overrides the metadata server's base URL if not empty
	now  func() time.Time

	mu    sync.Mutex
	found map[string]string
	tries int
	last  time.Time
	busy  bool
}

// New returns a Detector for the machine whose sysfs is at sys.
func New(sys string) *Detector { return &Detector{sys: sys, now: time.Now} }

// Attributes returns the attributes detected so far, keyed by OpenTelemetry's semantic
// conventions, or nil. It never blocks: it starts a detection in the background if one is
// due.
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
			d.tries = maxTry // not a cloud: never try again
		}
	}()
	return nil
}

// detect queries the metadata server. known is false if the firmware names no known cloud.
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
	if len(found) < 3 { // only provider and platform: something other than a metadata server answered
		return nil, true
	}
	return found, true
}

// newClient returns a client that connects directly: no proxy, no redirects.
func newClient() *http.Client {
	return &http.Client{
		Transport:     &http.Transport{DialContext: (&net.Dialer{Timeout: limit}).DialContext},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// plausible rejects values that cannot be names, such as the page of a captive portal.
func plausible(value string) bool {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.=/+:"
	return len(value) <= 255 && strings.Trim(value, letters) == ""
}

// firmware returns the cloud that the machine's firmware names, or "".
func firmware(sys string) string {
	read := func(name string) string {
		b, _ := os.ReadFile(filepath.Join(sys, "class/dmi/id", name)) // a missing file means no cloud
		return strings.TrimSpace(string(b))
	}
	vendor := read("sys_vendor")
	switch {
	case strings.HasPrefix(vendor, "Amazon"), strings.Contains(read("bios_version"), "amazon"): // Nitro and bare metal; Xen
		return "aws"
	case vendor == "Google", read("product_name") == "Google Compute Engine":
		return "gcp"
	case read("chassis_asset_tag") == "7783-7084-3265-9085-8269-3286-77": // other Hyper-V hosts have a different tag
		return "azure"
	}
	return ""
}
