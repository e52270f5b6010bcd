//go:build linux

package check

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/sysfs"
)

// port is one port of an InfiniBand or RoCE adapter, from /sys/class/infiniband.
type port struct {
	dir    sysfs.Dir
	device string
	port   int
	layer  string
	state  int     // one of the port constants
	phys   int     // one of the phys constants
	rate   float64 // Gbit/s
	err    error   // why the port could not be read
}

// Port states, from the kernel's rdma/ib_verbs.h.
const (
	portDown     = 1
	portInit     = 2 // waiting for the subnet manager
	portArmed    = 3
	portActive   = 4
	physDisabled = 3
)

// parseState parses "4: ACTIVE".
func parseState(text string) (int, error) {
	number, _, ok := strings.Cut(text, ":")
	n, err := strconv.Atoi(strings.TrimSpace(number))
	if !ok || err != nil || n < 0 {
		return 0, fmt.Errorf("%q is not a port state", shorten(text))
	}
	return n, nil
}

// parseRate parses "400 Gb/sec (4X NDR)" and "2.5 Gb/sec (1X SDR)".
func parseRate(text string) (float64, error) {
	number, unit, _ := strings.Cut(text, " ")
	v, err := strconv.ParseFloat(number, 64)
	if err != nil || !strings.HasPrefix(unit, "Gb/sec") || !(v >= 0 && v < 1e6) {
		return 0, fmt.Errorf("%q is not a port rate", shorten(text))
	}
	return v, nil
}

func (h *host) ports() []port {
	var out []port
	for _, d := range h.sys("class/infiniband").Glob("*/ports/*") {
		n, err := strconv.Atoi(d.Base())
		if err != nil {
			continue
		}
		p := port{dir: d, device: d.Join("..", "..").Base(), port: n}
		var errs [4]error
		text := func(name string) string {
			s, err := d.Text(name)
			errs[3] = errors.Join(errs[3], err)
			return s
		}
		p.layer = text("link_layer")
		state, phys, rate := text("state"), text("phys_state"), text("rate")
		if errs[3] == nil {
			p.state, errs[0] = parseState(state)
			p.phys, errs[1] = parseState(phys)
			p.rate, errs[2] = parseRate(rate)
		}
		p.err = errors.Join(errs[:]...)
		out = append(out, p)
	}
	return out
}

func (p port) String() string { return fmt.Sprintf("%s port %d", p.device, p.port) }

// ibPorts requires the manifest's ports to be present, up and at full rate. Without a
// manifest a port that is down may have no cable, and a disabled port is disabled on purpose.
func ibPorts(_ context.Context, h *host) outcome {
	ports := h.ports()
	var want []Port
	if h.Manifest != nil {
		want = h.Manifest.InfiniBand
	}
	if len(ports) == 0 && len(want) == 0 {
		return skip("no InfiniBand or RoCE adapter")
	}
	var bad []Problem
	expected := map[string]bool{}
	for _, w := range want {
		key := fmt.Sprintf("%s port %d", w.Device, w.Port)
		expected[key] = true
		i := slices.IndexFunc(ports, func(p port) bool { return p.device == w.Device && p.port == w.Port })
		if i < 0 {
			bad = append(bad, Problem{Critical, key, fmt.Sprintf("port is missing; the manifest has %d ports, the machine %d", len(want), len(ports)), "Check the kernel log for the adapter, and check its seating."})
			continue
		}
		p := ports[i]
		switch {
		case p.err != nil:
			bad = append(bad, Problem{Unknown, key, p.err.Error(), "Check the kernel log for the adapter."})
		case p.state != portActive:
			bad = append(bad, Problem{Critical, key, "port is " + stateName(p), "Check the cable, the switch and, for InfiniBand, the subnet manager."})
		case w.Layer != "" && p.layer != w.Layer:
			bad = append(bad, Problem{Critical, key, fmt.Sprintf("link layer is %s, the manifest says %s", shorten(p.layer), w.Layer), "Set the port type with the vendor's tool."})
		case w.Rate > 0 && p.rate < w.Rate:
			bad = append(bad, Problem{Critical, key, fmt.Sprintf("port runs at %g Gbit/s, the manifest says %g", p.rate, w.Rate), "Check the cable and the switch port: multi-node jobs wait for the slowest port."})
		}
	}
	active := 0
	for _, p := range ports {
		if p.state == portActive {
			active++
		}
		if expected[p.String()] {
			continue
		}
		switch {
		case p.err != nil:
			bad = append(bad, Problem{Unknown, p.String(), p.err.Error(), "Check the kernel log for the adapter."})
		case len(want) > 0: // not required by the manifest
		case p.state == portInit || p.state == portArmed:
			bad = append(bad, Problem{Warning, p.String(), "the link is up, but the port is " + stateName(p), "Check that the subnet manager of the fabric runs."})
		case p.state == portDown && p.phys != physDisabled:
			if n, err := p.dir.Uint("counters/link_downed"); err == nil && n > 0 {
				bad = append(bad, Problem{Warning, p.String(), fmt.Sprintf("port is down but was up before: the link went down %s", times(int(min(n, 1<<31)))), "Check the cable and the switch, or write a manifest without this port."})
			}
		}
	}
	return found(capped(bad), "%d of %d ports are active", active, len(ports))
}

func stateName(p port) string {
	switch p.state {
	case portDown:
		if p.phys == physDisabled {
			return "administratively disabled"
		}
		return "down"
	case portInit:
		return "in state INIT: no subnet manager has answered"
	case portArmed:
		return "in state ARMED"
	}
	return fmt.Sprintf("in state %d", p.state)
}

// ibRates are the accepted errors per hour, on average since the counters started. The limit
// for symbol errors is what the specification allows for a bit error rate of 1e-12 at
// 10 Gbit/s. The other counters record links that failed or retrained, which a restarting
// switch also causes. Congestion discards and dropped management packets are normal and not
// included.
var ibRates = LinkRates{
	"symbol_error": 120, "port_rcv_errors": 120, "link_error_recovery": 10, "local_link_integrity_errors": 10,
	"excessive_buffer_overrun_errors": 10, "link_downed": 1,
}

// ibErrors judges counters over the time since boot, because a single run has no earlier
// values to compare with. It is never critical: the counters still contain old bursts. An
// uptime below one hour counts as one hour.
func ibErrors(_ context.Context, h *host) outcome {
	ports := h.ports()
	if len(ports) == 0 {
		return skip("no InfiniBand or RoCE adapter")
	}
	up, err := h.uptime()
	if err != nil {
		return unknown(err, "")
	}
	up = max(up, time.Hour)
	var bad []Problem
	for _, p := range ports {
		for _, counter := range sortedKeys(ibRates) {
			limit := ibRates[counter]
			if h.Manifest != nil {
				if l, ok := h.Manifest.IBErrors[counter]; ok {
					limit = l
				}
			}
			n, err := p.dir.Uint("counters/" + counter)
			if err != nil {
				continue // not counted by this adapter
			}
			if rate := float64(n) / up.Hours(); rate > limit {
				bad = append(bad, Problem{Warning, p.String(), fmt.Sprintf("%s is %d, %.1f per hour since boot; up to %g is normal", counter, n, rate, limit), "Check the cable, the transceiver and the switch port."})
			}
		}
	}
	return found(capped(bad), "%d ports", len(ports))
}

// nics returns the physical interfaces that are up. Virtual functions are left out: they move
// into pods and return under other names.
func (h *host) nics() []NIC {
	var out []NIC
	for _, d := range h.sys("class/net").Glob("*") {
		if state, _ := d.Text("operstate"); !d.Join("device").Exists() || d.Join("device/physfn").Exists() || state != "up" {
			continue
		}
		n := NIC{Name: d.Base()}
		if v, err := d.Float("speed"); err == nil && v > 0 {
			n.Speed = int(v)
		}
		out = append(out, n)
	}
	return out
}

// netLinks only compares with the manifest: without one it is unknown which interface should
// have a cable.
func netLinks(_ context.Context, h *host) outcome {
	if h.Manifest == nil || len(h.Manifest.Network) == 0 {
		return skip("the manifest names no interfaces")
	}
	var bad []Problem
	for _, w := range h.Manifest.Network {
		d := h.sys("class/net").Join(w.Name)
		if !d.Exists() {
			bad = append(bad, Problem{Critical, w.Name, "interface is missing", "Check the kernel log for the adapter, and check its seating."})
			continue
		}
		state, err := d.Text("operstate")
		if err != nil {
			bad = append(bad, Problem{Unknown, w.Name, err.Error(), ""})
			continue
		}
		speed, err := d.Float("speed") // an interface that is down has no speed
		switch {
		case state != "up":
			bad = append(bad, Problem{Critical, w.Name, "interface is " + shorten(state), "Check the cable and the switch."})
		case err == nil && speed > 0 && int(speed) < w.Speed:
			bad = append(bad, Problem{Warning, w.Name, fmt.Sprintf("interface runs at %.0f Mbit/s, the manifest says %d", speed, w.Speed), "Check the cable and the switch port."})
		}
	}
	return found(bad, "%d interfaces are up", len(h.Manifest.Network))
}
