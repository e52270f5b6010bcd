//go:build linux

package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/tracer/live"
	"github.com/gpumeter/gpumeter/internal/tracer/probe"
)

// agentDoctor examines what an agent needs besides devices: its state folder, its port, and the
// kernel's support for tracing.
type agentDoctor struct {
	state  string // the state folder; empty: none
	listen string // the address of the Prometheus page
	proc   string // the host's proc file system

	// trace loads the tracer's programs into the kernel and returns how functions would be probed
	// and what is missing.
	trace func(proc string) (mode string, features []probe.Feature, err error)
}

func (d *agentDoctor) diagnose(ctx context.Context) []device.Check {
	return []device.Check{d.stateFolder(), d.page(ctx), d.tracing()}
}

// stateFolder reports whether the agent can keep its state. It writes nothing.
func (d *agentDoctor) stateFolder() device.Check {
	c := device.Check{Subject: "state folder", State: device.CheckLimited}
	if d.state == "" {
		c.Detail, c.Fix = "none: counts start at 0 with each start, and unsent telemetry is queued in memory", "set --state-dir"
		return c
	}
	folder := d.state
	info, err := os.Stat(folder)
	for errors.Is(err, fs.ErrNotExist) && filepath.Dir(folder) != folder { // the agent creates it
		folder = filepath.Dir(folder)
		info, err = os.Stat(folder)
	}
	const write = 2 | 1 // W_OK, X_OK
	switch {
	case err != nil:
		c.Detail = err.Error()
	case !info.IsDir():
		c.Detail = folder + " is not a folder"
	default:
		if err := syscall.Access(folder, write); err != nil {
			c.Detail = "cannot write to " + folder + ": " + err.Error()
		}
	}
	switch {
	case c.Detail != "":
		c.Fix = "run the agent as a user who may write there, or set another --state-dir; without one counts start at 0 with each start"
		return c
	case folder != d.state:
		c.Detail = d.state + " will be created"
	default:
		c.Detail = d.state + " is writable"
	}
	c.State = device.CheckOK
	return c
}

// page reports whether the port of the Prometheus page is free, or served by an agent.
func (d *agentDoctor) page(ctx context.Context) device.Check {
	c := device.Check{Subject: "prometheus page", State: device.CheckOK}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", d.listen)
	switch {
	case err == nil:
		l.Close()
		c.Detail = d.listen + " is free"
	case errors.Is(err, syscall.EADDRINUSE) && servesAgent(ctx, d.listen):
		c.Detail = "an agent serves http://" + d.listen + "/metrics"
	case errors.Is(err, syscall.EADDRINUSE):
		c.State, c.Detail = device.CheckLimited, "another program uses "+d.listen+", as dcgm-exporter does by default: an agent cannot start there"
		c.Fix = "set another address with --listen"
	default:
		c.State, c.Detail, c.Fix = device.CheckLimited, "an agent cannot listen there: "+err.Error(), "set another address with --listen"
	}
	return c
}

// servesAgent reports whether the page at an address is that of a gpumeter agent.
func servesAgent(ctx context.Context, address string) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/", nil)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	start := make([]byte, 4096)
	n, _ := resp.Body.Read(start)
	return resp.StatusCode == http.StatusOK && strings.Contains(string(start[:n]), "gpumeter")
}

// tracing reports whether the kernel and the privileges of this user allow --trace. Tracing is
// opt-in, so a machine without it is not broken.
func (d *agentDoctor) tracing() device.Check {
	c := device.Check{Subject: "tracing (--trace)", State: device.CheckAbsent}
	mode, features, err := d.trace(d.proc)
	if err != nil {
		c.Detail = oneLine(err)
		if os.Geteuid() != 0 {
			c.Fix = "run doctor and the agent as root or with these capabilities, if you want to trace CUDA and NCCL calls"
		}
		return c
	}
	var lack []string
	for _, f := range features {
		if !f.OK {
			lack = append(lack, f.Name+": "+f.Reason)
		}
	}
	c.State, c.Detail = device.CheckOK, "possible, with probes of type "+mode
	if len(lack) > 0 {
		c.State, c.Detail = device.CheckLimited, fmt.Sprintf("%s; missing: %s", c.Detail, strings.Join(lack, "; "))
	}
	return c
}

func openTracing(proc string) (string, []probe.Feature, error) {
	t, err := live.Open(live.Options{Proc: proc, RAS: "off"})
	if err != nil {
		return "", nil, err
	}
	mode, features := t.Mode(), t.Features()
	return mode, features, t.Close()
}
