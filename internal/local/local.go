//go:build linux

// Package local is the composition root of the node side: it lists every vendor reader and
// workload source explicitly, configures them for this machine or for a simulated one, and
// returns the node.View on top of them. A new vendor is one line in vendors.go. It needs
// whatever the readers and sources need, and degrades without it: Diagnose reports what is
// missing.
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

// Config states what to read, where and how often.
type Config struct {
	Interval     time.Duration
	SlowInterval time.Duration
	Host         string // host name; empty: from the kernel
	Root         string // where the host's file system is mounted; empty means /

	NVIDIALibrary    string   // path of libnvidia-ml.so.1; empty: search
	LibraryDirs      []string // searched first
	NoPCIeThroughput bool     // see nvidia.Options
	GaudiLibrary     string   // path of libhlml.so; empty: search
	TPUExporter      string   // URL of GKE's device plugin; empty: the default on this node
	NeuronMonitor    string   // file or socket with neuron-monitor's output; empty: none
	Simulate         string   // model to simulate instead of reading hardware; empty: none
	// Sim is a node to simulate with its own clock, instead of Simulate; nil means none.
	Sim *sim.Config

	Expected int    // number of devices that there should be; 0: unspecified
	StateDir string // directory for persistent state; empty: none is kept

	Workloads Workloads

	Resource map[string]string // additional resource attributes
	Cloud    bool              // query the cloud's metadata server for more
}

// DefaultInterval and DefaultSlowInterval are how often devices are read by default.
const (
	DefaultInterval     = 10 * time.Second
	DefaultSlowInterval = 30 * time.Second
)

// Validate checks what can be checked without accessing the machine. Its messages use the
// configuration keys of the gpu extension.
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

// resource returns a function that returns all attributes known so far.
func (c Config) resource() func() map[string]string {
	if !c.Cloud {
		return func() map[string]string { return c.Resource }
	}
	return merged(c.Resource, cloud.New(filepath.Join("/", c.Root, "sys")).Attributes)
}

// merged returns a function that returns the attributes in set plus those that become known
// late, if ever. Attributes in set take precedence.
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

// beside returns a function that returns the attributes of first, and those of second that
// first does not have. Both may become known late and change; the maps are read-only.
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

// simulated reports whether the node is simulated and no hardware is read.
func (c Config) simulated() bool { return c.Simulate != "" || c.Sim != nil }

// sim returns the configuration of a node that has been up for a day. Its devices always
// have the same UUIDs on this machine, and different ones elsewhere.
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

// Open returns the View of this machine. The only possible failures are an invalid
// configuration and a library named by the user that cannot be loaded; missing hardware is
// not an error.
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
		c.StateDir = "" // a simulated node keeps no state
	}
	if c.Host == "" {
		c.Host, _ = os.Hostname() // on failure the name is empty
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
		BootID:       BootID(),
		Notify:       notify,
		Host:         c.Host,
		Simulated:    c.simulated(),
		Resource:     c.resource(),
	}
	if who != nil {
		cfg.Owners, cfg.Ask = who, who.ask
		if who.place != nil { // explicit and cloud attributes take precedence
			cfg.Resource = beside(cfg.Resource, who.place)
		}
	}
	return node.New(cfg), nil
}

// BootID returns the identifier of this boot of the kernel. It is the same in every
// container, whatever Root is.
func BootID() string {
	b, _ := os.ReadFile("/proc/sys/kernel/random/boot_id") // on failure the boot is unknown
	return string(bytes.TrimSpace(b))
}

// processName returns a function that returns the kernel's short name of a process, at most
// 15 characters.
func processName(proc string) func(uint32) string {
	return func(pid uint32) string {
		b, err := os.ReadFile(filepath.Join(proc, strconv.FormatUint(uint64(pid), 10), "comm"))
		if err != nil {
			return "" // exited, or in another PID namespace
		}
		return string(bytes.TrimSpace(b))
	}
}

// HasDevices reports whether the machine has a readable accelerator. It returns true if a
// driver hangs.
func HasDevices(ctx context.Context, c Config) bool {
	found := make(chan bool, 1)
	go func() {
		for _, s := range Sources(c) {
			r, err := s.Open(ctx)
			if err != nil {
				continue
			}
			devices, _ := r.Devices(ctx)
			_ = r.Close() // nothing was changed
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
