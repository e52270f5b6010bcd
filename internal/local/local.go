//go:build linux

// Package local is the composition root: the explicit list of everything this machine
// can be read by. A new vendor is one line in vendors.go.
package local

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/gpumeter/gpumeter/internal/cloud"
	"github.com/gpumeter/gpumeter/internal/device/nvidia"
	"github.com/gpumeter/gpumeter/internal/device/sim"
	"github.com/gpumeter/gpumeter/internal/node"
)

// Config says what to read, where and how often.
type Config struct {
	Interval     time.Duration
	SlowInterval time.Duration
	Host         string // name of this machine; empty: the kernel's
	Root         string // where the host's file system is mounted; empty: /

	NVIDIALibrary    string   // path of libnvidia-ml.so.1; empty: search
	LibraryDirs      []string // searched first
	NoPCIeThroughput bool     // see nvidia.Options
	GaudiLibrary     string   // path of libhlml.so; empty: search
	TPUExporter      string   // address of the page of GKE's device plugin; empty: on this node
	NeuronMonitor    string   // file or socket with what neuron-monitor writes; empty: none
	Simulate         string   // model to simulate instead of reading hardware; empty: none
	// Sim is a node to simulate in the same way, with a clock of its own; nil: none.
	Sim *sim.Config

	Expected int    // how many devices there should be; 0: nobody said
	StateDir string // folder of what outlives the process; empty: nothing does

	Workloads Workloads

	Resource map[string]string // more attributes of this machine
	Cloud    bool              // ask the cloud's metadata server for some more
}

// DefaultInterval and DefaultSlowInterval are how often devices are read unless
// somebody says otherwise.
const (
	DefaultInterval     = 10 * time.Second
	DefaultSlowInterval = 30 * time.Second
)

// Validate checks what can be checked without touching the machine. Its messages name
// the keys of the gpu extension.
func (c Config) Validate() error {
	var errs []error
	if c.Interval < node.MinInterval || c.Interval > node.MaxInterval {
		errs = append(errs, fmt.Errorf("interval must be between %s and %s, is %s", node.MinInterval, node.MaxInterval, c.Interval))
	}
	if c.Expected < 0 {
		errs = append(errs, fmt.Errorf("expected_devices must be 0 or more, is %d", c.Expected))
	}
	if c.SlowInterval <= 0 {
		errs = append(errs, fmt.Errorf("slow_interval must be above 0, is %s", c.SlowInterval))
	}
	if c.simulated() {
		if _, err := sim.New(c.sim()); err != nil {
			errs = append(errs, fmt.Errorf("simulate: %w", err))
		}
	}
	for _, key := range []string{"", "host.name", "gpumeter.simulated"} {
		if _, ok := c.Resource[key]; ok {
			errs = append(errs, fmt.Errorf("resource must not have the attribute %q", key))
		}
	}
	return errors.Join(errs...)
}

// resource returns a function with all attributes known so far.
func (c Config) resource() func() map[string]string {
	if !c.Cloud {
		return func() map[string]string { return c.Resource }
	}
	return merged(c.Resource, cloud.New(filepath.Join("/", c.Root, "sys")).Attributes)
}

// merged returns a function that adds to the attributes somebody set those that come
// late, or never, and lose against them.
func merged(set map[string]string, late func() map[string]string) func() map[string]string {
	var all map[string]string
	return func() map[string]string {
		if all == nil {
			found := late()
			if found == nil {
				return set
			}
			all = maps.Clone(found)
			maps.Copy(all, set)
		}
		return all
	}
}

// beside returns a function with the attributes of first, and those of second that first
// has not. Both may come late and change; nobody changes a map.
func beside(first, second func() map[string]string) func() map[string]string {
	var a, b, all map[string]string
	return func() map[string]string {
		x, y := first(), second()
		if all == nil || !maps.Equal(x, a) || !maps.Equal(y, b) {
			a, b, all = x, y, maps.Clone(y)
			if all == nil {
				all = map[string]string{}
			}
			maps.Copy(all, x)
		}
		return all
	}
}

// simulated reports whether no hardware is read.
func (c Config) simulated() bool { return c.Simulate != "" || c.Sim != nil }

// sim returns a node that has run for a day. Its devices have the same UUIDs whenever
// it is simulated on this machine, and others elsewhere.
func (c Config) sim() sim.Config {
	if c.Sim != nil {
		return *c.Sim
	}
	seed := fnv.New64a()
	_, _ = io.WriteString(seed, c.Host) // never fails
	return sim.Config{Model: c.Simulate, Seed: seed.Sum64(), Now: time.Now, Start: time.Now().Add(-24 * time.Hour)}
}

func (c Config) nvidia() nvidia.Options {
	return nvidia.Options{
		Library: c.NVIDIALibrary, LibraryDirs: c.LibraryDirs, Root: c.Root, NoPCIeThroughput: c.NoPCIeThroughput,
	}
}

// Open returns the View of this machine. A library named by the user must be one: that
// is the only thing which can fail, whatever the machine is like.
func Open(c Config, notify func(node.Notice)) (*node.View, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if c.NVIDIALibrary != "" && !c.simulated() {
		if err := nvidia.CheckLibrary(c.NVIDIALibrary); err != nil {
			return nil, err
		}
	}
	if c.simulated() {
		c.StateDir = "" // it is for what happened
	}
	if c.Host == "" {
		c.Host, _ = os.Hostname() // empty is a name like any other
	}
	who, err := c.whose()
	if err != nil {
		return nil, err
	}
	cfg := node.Config{
		Learn:        who.learn(),
		Sources:      Sources(c),
		Interval:     c.Interval,
		SlowInterval: c.SlowInterval,
		ProcessName:  processName(filepath.Join(cmp.Or(c.Root, "/"), "proc")),
		StateDir:     c.StateDir,
		Expected:     c.Expected,
		BootID:       bootID(),
		Notify:       notify,
		Host:         c.Host,
		Simulated:    c.simulated(),
		Resource:     c.resource(),
	}
	if who != nil {
		cfg.Owners, cfg.Ask = who, who.ask
		if who.place != nil { // what the cloud or somebody says wins
			cfg.Resource = beside(cfg.Resource, who.place)
		}
	}
	return node.New(cfg), nil
}

// bootID returns what tells this boot of the kernel from others. It is the same in every
// container, wherever the host's file system is.
func bootID() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id") // empty is no boot we know
	return string(bytes.TrimSpace(b))
}

// processName returns a function that names processes by the kernel's short name of
// them, of at most 15 characters.
func processName(proc string) func(uint32) string {
	return func(pid uint32) string {
		b, err := os.ReadFile(filepath.Join(proc, strconv.FormatUint(uint64(pid), 10), "comm"))
		if err != nil {
			return "" // gone, or in another pid namespace
		}
		return string(bytes.TrimSpace(b))
	}
}

// HasDevices reports whether the machine has an accelerator that can be read. One whose
// driver hangs has.
func HasDevices(ctx context.Context, c Config) bool {
	found := make(chan bool, 1)
	go func() {
		for _, s := range Sources(c) {
			r, err := s.Open(ctx)
			if err != nil {
				continue
			}
			devices, _ := r.Devices(ctx)
			_ = r.Close() // it only looked
			if len(devices) > 0 {
				found <- true
				return
			}
		}
		found <- false
	}()
	select {
	case has := <-found:
		return has
	case <-time.After(10 * time.Second):
		return true
	}
}
