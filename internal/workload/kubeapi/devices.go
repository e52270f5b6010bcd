package kubeapi

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	devicesEvery = time.Minute
	devicesSoon  = 5 * time.Second // shortest interval, for an unknown device
	// devicesIdle is how long after the last lookup polling stops.
	devicesIdle = 10 * time.Minute
	maxDevices  = 20000
)

// claimed is a device as the kubelet names it in a claim.
type claimed struct{ driver, pool, device string }

// devices are those that the DRA drivers of this node offer.
type devices struct {
	mu      sync.Mutex
	ids     map[claimed][]string
	asked   time.Time // last lookup
	wake    chan struct{}
	version string // used only by the polling goroutine
}

func (d *devices) init() { d.wake = make(chan struct{}, 1) }

// Claimed returns the other names of a claimed device, most certain first. It reports false
// until the API server has answered.
func (c *Client) Claimed(driver, pool, device string) (ids []string, ok bool) {
	d := &c.devices
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked = time.Now()
	ids, ok = d.ids[claimed{driver, pool, device}]
	if !ok {
		poke(d.wake)
	}
	return ids, ok
}

// pollDevices polls the devices while they are being looked up.
func (c *Client) pollDevices(ctx context.Context) {
	d := &c.devices
	var b backoff
	for {
		select { // a lookup of an unknown device
		case <-ctx.Done():
			return
		case <-d.wake:
		}
		for idle := false; !idle; {
			err := c.askDevices(ctx)
			c.health.set(ctx, Slices, err)
			soon := max(devicesSoon, b.next(err))
			if !sleep(ctx, soon) {
				return
			}
			t := time.NewTimer(max(0, devicesEvery-soon))
			select {
			case <-ctx.Done():
				t.Stop()
				return
			case <-d.wake:
			case <-t.C:
			}
			t.Stop()
			d.mu.Lock()
			idle = time.Since(d.asked) > devicesIdle
			d.mu.Unlock()
		}
	}
}

func (c *Client) askDevices(ctx context.Context) (err error) {
	d := &c.devices
	if d.version == "" {
		if d.version, err = c.claimVersion(ctx); err != nil {
			return err
		}
	}
	b, err := c.rest.get(ctx, plainJSON, []string{"apis", "resource.k8s.io", d.version, "resourceslices"},
		url.Values{"fieldSelector": {"spec.nodeName=" + c.cfg.Node}})
	if notFound(err) {
		d.version = "" // the cluster was upgraded
	}
	if err != nil {
		return err
	}
	ids, err := parseSlices(b)
	if ids == nil {
		return err
	}
	d.mu.Lock()
	same := maps.EqualFunc(d.ids, ids, slices.Equal)
	d.ids = ids
	d.mu.Unlock()
	if !same {
		c.generation.Add(1)
	}
	return err
}

// attributes are those of a device. Each has one of several typed fields set; only strings
// can name a device.
type attributes map[string]struct {
	String *string `json:"string"`
}

// parseSlices returns the names of the devices in a list of ResourceSlices. If a pool has
// several generations, a driver is replacing the older ones.
//
// https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/resource-slice-v1/
func parseSlices(b []byte) (map[claimed][]string, error) {
	var list struct {
		Items []struct {
			Spec struct {
				Driver string `json:"driver"`
				Pool   struct {
					Name       string `json:"name"`
					Generation int64  `json:"generation"`
				} `json:"pool"`
				Devices []struct {
					Name       string     `json:"name"`
					Attributes attributes `json:"attributes"`
					Basic      struct {   // v1beta1
						Attributes attributes `json:"attributes"`
					} `json:"basic"`
				} `json:"devices"`
			} `json:"spec"`
		} `json:"items"`
	}
	if err := json.Unmarshal(b, &list); err != nil {
		return nil, fmt.Errorf("cannot parse ResourceSlices: %w", err)
	}
	newest := map[[2]string]int64{}
	for _, s := range list.Items {
		pool := [2]string{s.Spec.Driver, s.Spec.Pool.Name}
		if n, ok := newest[pool]; !ok || s.Spec.Pool.Generation > n {
			newest[pool] = s.Spec.Pool.Generation
		}
	}
	ids := map[claimed][]string{}
	for _, s := range list.Items {
		if s.Spec.Pool.Generation < newest[[2]string{s.Spec.Driver, s.Spec.Pool.Name}] {
			continue
		}
		for _, d := range s.Spec.Devices {
			if len(ids) >= maxDevices {
				return ids, fmt.Errorf("ResourceSlices of this node have more than %d devices; the rest is unknown", maxDevices)
			}
			a := d.Attributes
			if a == nil {
				a = d.Basic.Attributes
			}
			ids[claimed{s.Spec.Driver, s.Spec.Pool.Name, d.Name}] = a.names(s.Spec.Driver, d.Name)
		}
	}
	return ids, nil
}

// names returns the names of a device from its attributes, followed by those from its name
// in the claim.
func (a attributes) names(driver, device string) []string {
	var out []string
	add := func(attribute string) {
		for _, name := range []string{attribute, driver + "/" + attribute} { // an attribute without a domain belongs to the driver
			if v := a[name].String; v != nil && *v != "" && !slices.Contains(out, *v) {
				out = append(out, *v)
			}
		}
	}
	add("uuid")
	if a.partition() {
		// A partition has the address and serial number of the whole device and must not be
		// mistaken for it.
		return append(out, device)
	}
	for _, name := range []string{"resource.kubernetes.io/pciBusID", "pciBusID", "pciAddr", "pciAddress", "serial"} {
		add(name)
	}
	for _, name := range Names(device) {
		if !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// partition reports whether the device is a part of another: NVIDIA sets parentUUID, AMD
// parentPciAddr.
func (a attributes) partition() bool {
	for name := range a {
		if i := strings.LastIndexByte(name, '/'); strings.HasPrefix(name[i+1:], "parent") {
			return true
		}
	}
	return false
}

var byAddress = regexp.MustCompile(`^([0-9a-f]{4})-([0-9a-f]{2})-([0-9a-f]{2})-([0-7])-0x[0-9a-f]+$`)

// Names returns the names of a claimed device that can be derived from its name in the
// claim: the PCI address in names such as 0000-0f-00-0-0x1020, followed by the name itself,
// which readers list among the aliases of their devices.
func Names(device string) []string {
	var out []string
	if m := byAddress.FindStringSubmatch(device); m != nil {
		out = append(out, fmt.Sprintf("%s:%s:%s.%s", m[1], m[2], m[3], m[4]))
	}
	return append(out, device)
}
