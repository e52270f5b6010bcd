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
	state  int     // see the constants
	phys   int     // likewise
	rate   float64 // Gbit/s
	err    error   // of a file that could not be read
}

// States of a port, of the kernel's rdma/ib_verbs.h.
const (
	portDown     = 1
	portInit     = 2 // waits for the subnet manager
	portArmed    = 3
	portActive   = 4
	physDisabled = 3
)

// parseState reads "4: ACTIVE".
func parseState(text string) (int, error) {
	number, _, ok := strings.Cut(text, ":")
	n, err := strconv.Atoi(strings.TrimSpace(number))
	if !ok || err != nil || n < 0 {
		return 0, fmt.Errorf("%q is no state of a port", shorten(text))
	}
	return n, nil
}

// parseRate reads "400 Gb/sec (4X NDR)" and "2.5 Gb/sec (1X SDR)".
func parseRate(text string) (float64, error) {
	number, unit, _ := strings.Cut(text, " ")
	v, err := strconv.ParseFloat(number, 64)
	if err != nil || !strings.HasPrefix(unit, "Gb/sec") || !(v >= 0 && v < 1e6) {
		return 0, fmt.Errorf("%q is no rate of a port", shorten(text))
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

// ibPorts: what the manifest names has to be there, up and fast. Without one a port that
// is down may have no cable, and one that was turned off is meant to be.
func ibPorts(_ context.Context, h *host) outcome {
	ports := h.ports()
	var want []Port
	if h.Manifest != nil {
		want = h.Manifest.InfiniBand
	}
	if len(ports) == 0 && len(want) == 0 {
		return skip("no adapter")
	}
	var bad []Problem
	expected := map[string]bool{}
	for _, w := range want {
		key := fmt.Sprintf("%s port %d", w.Device, w.Port)
		expected[key] = true
		i := slices.IndexFunc(ports, func(p port) bool { return p.device == w.Device && p.port == w.Port })
		if i < 0 {
			bad = append(bad, Problem{Critical, key, fmt.Sprintf("it is not there; the manifest has %d ports, the machine %d", len(want), len(ports)), "Look at the kernel's log for the adapter, and at its seat."})
			continue
		}
		p := ports[i]
		switch {
		case p.err != nil:
			bad = append(bad, Problem{Unknown, key, p.err.Error(), "Look at the kernel's log for the adapter."})
		case p.state != portActive:
			bad = append(bad, Problem{Critical, key, "it is " + stateName(p), "Look at the cable, the switch and, of InfiniBand, the subnet manager."})
		case w.Layer != "" && p.layer != w.Layer:
			bad = append(bad, Problem{Critical, key, fmt.Sprintf("its link layer is %s, the manifest says %s", shorten(p.layer), w.Layer), "Set the type of the port with the maker's tool."})
		case w.Rate > 0 && p.rate < w.Rate:
			bad = append(bad, Problem{Critical, key, fmt.Sprintf("it runs at %g Gbit/s, the manifest says %g", p.rate, w.Rate), "Look at the cable and the port of the switch: jobs over several nodes wait for it."})
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
			bad = append(bad, Problem{Unknown, p.String(), p.err.Error(), "Look at the kernel's log for the adapter."})
		case len(want) > 0: // more than the manifest asks for
		case p.state == portInit || p.state == portArmed:
			bad = append(bad, Problem{Warning, p.String(), "its link is up, and it is " + stateName(p), "Look whether the subnet manager of the fabric runs."})
		case p.state == portDown && p.phys != physDisabled:
			if n, err := p.dir.Uint("counters/link_downed"); err == nil && n > 0 {
				bad = append(bad, Problem{Warning, p.String(), fmt.Sprintf("it is down, and was up: its link went down %s", times(int(min(n, 1<<31)))), "Look at the cable and the switch, or write a manifest without it."})
			}
		}
	}
	return found(capped(bad), "%d of %d ports are active", active, len(ports))
}

func stateName(p port) string {
	switch p.state {
	case portDown:
		if p.phys == physDisabled {
			return "down, because somebody disabled it"
		}
		return "down"
	case portInit:
		return "in state INIT: no subnet manager has answered"
	case portArmed:
		return "in state ARMED"
	}
	return fmt.Sprintf("in state %d", p.state)
}

// ibRates are how many errors an hour, on average since the counters began, are too many.
// Symbol errors are what the specification allows for a bit error rate of 1e-12 at
// 10 Gbit/s; the others end or retrain a link, and a switch that restarts causes some.
// Discards by congestion and dropped management packets are normal, and not among them.
var ibRates = LinkRates{
	"symbol_error": 120, "port_rcv_errors": 120, "link_error_recovery": 10, "local_link_integrity_errors": 10,
	"excessive_buffer_overrun_errors": 10, "link_downed": 1,
}

// ibErrors judges counters over the time since boot, because one look has nothing else to
// compare them with, and never finds them critical: an old burst is still in them. A
// machine that has just started is judged as one that runs for an hour.
func ibErrors(_ context.Context, h *host) outcome {
	ports := h.ports()
	if len(ports) == 0 {
		return skip("no adapter")
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
				continue // this adapter does not count it
			}
			if rate := float64(n) / up.Hours(); rate > limit {
				bad = append(bad, Problem{Warning, p.String(), fmt.Sprintf("%s is %d, %.1f an hour since boot; %g are normal", counter, n, rate, limit), "Look at the cable, the transceiver and the port of the switch."})
			}
		}
	}
	return found(capped(bad), "%d ports", len(ports))
}

// nics returns the physical interfaces that are up. Virtual functions are left out: they
// move into pods and come back under other names.
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

// netLinks compares with the manifest only: without one nobody can say which interface
// should have a cable.
func netLinks(_ context.Context, h *host) outcome {
	if h.Manifest == nil || len(h.Manifest.Network) == 0 {
		return skip("the manifest names no interface")
	}
	var bad []Problem
	for _, w := range h.Manifest.Network {
		d := h.sys("class/net").Join(w.Name)
		if !d.Exists() {
			bad = append(bad, Problem{Critical, w.Name, "it is not there", "Look at the kernel's log for the adapter, and at its seat."})
			continue
		}
		state, err := d.Text("operstate")
		if err != nil {
			bad = append(bad, Problem{Unknown, w.Name, err.Error(), ""})
			continue
		}
		speed, err := d.Float("speed") // an interface that is down has none
		switch {
		case state != "up":
			bad = append(bad, Problem{Critical, w.Name, "it is " + shorten(state), "Look at the cable and the switch."})
		case err == nil && speed > 0 && int(speed) < w.Speed:
			bad = append(bad, Problem{Warning, w.Name, fmt.Sprintf("it runs at %.0f Mbit/s, the manifest says %d", speed, w.Speed), "Look at the cable and the port of the switch."})
		}
	}
	return found(bad, "%d interfaces are up", len(h.Manifest.Network))
}
