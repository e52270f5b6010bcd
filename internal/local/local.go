//go:build linux

// Package local is the composition root: the explicit list of everything this machine
// can be read by. A new vendor is one line in Sources.
package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
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
	Simulate         string   // model to simulate instead of reading hardware; empty: none
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
	if c.SlowInterval <= 0 {
		errs = append(errs, fmt.Errorf("slow_interval must be above 0, is %s", c.SlowInterval))
	}
	if c.Simulate != "" {
		if _, err := sim.New(c.sim()); err != nil {
			errs = append(errs, fmt.Errorf("simulate: %w", err))
		}
	}
	return errors.Join(errs...)
}

// sim returns a node that has run for a day. Its devices have the same UUIDs whenever
// it is simulated on this machine, and others elsewhere.
func (c Config) sim() sim.Config {
	seed := fnv.New64a()
	_, _ = io.WriteString(seed, c.Host) // never fails
	return sim.Config{Model: c.Simulate, Seed: seed.Sum64(), Now: time.Now, Start: time.Now().Add(-24 * time.Hour)}
}

func (c Config) nvidia() nvidia.Options {
	return nvidia.Options{
		Library: c.NVIDIALibrary, LibraryDirs: c.LibraryDirs, Root: c.Root, NoPCIeThroughput: c.NoPCIeThroughput,
	}
}

// Sources returns the readers this machine may need.
func Sources(c Config) []node.Source {
	if c.Simulate != "" {
		s := c.sim()
		return []node.Source{{Name: "sim", Open: func(context.Context) (device.Reader, error) { return sim.New(s) }}}
	}
	return []node.Source{
		{Name: "nvidia", Open: func(ctx context.Context) (device.Reader, error) { return nvidia.Open(ctx, c.nvidia()) }},
	}
}

// Open returns the View of this machine. A library named by the user must be one: that
// is the only thing which can fail, whatever the machine is like.
func Open(c Config, notify func(node.Notice)) (*node.View, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if c.NVIDIALibrary != "" && c.Simulate == "" {
		if err := nvidia.CheckLibrary(c.NVIDIALibrary); err != nil {
			return nil, err
		}
	}
	if c.Host == "" {
		c.Host, _ = os.Hostname() // empty is a name like any other
	}
	return node.New(node.Config{
		Sources:      Sources(c),
		Interval:     c.Interval,
		SlowInterval: c.SlowInterval,
		ProcessName:  processName(filepath.Join("/", c.Root, "proc")),
		Notify:       notify,
		Host:         c.Host,
		Simulated:    c.Simulate != "",
	}), nil
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

// Diagnose returns what every reader found and misses.
func Diagnose(ctx context.Context, c Config) []device.Check {
	return nvidia.Diagnose(ctx, c.nvidia())
}

// HasDevices reports whether the machine has an accelerator that can be read.
func HasDevices(ctx context.Context, c Config) bool {
	for _, s := range Sources(c) {
		r, err := s.Open(ctx)
		if err != nil {
			continue
		}
		devices, _ := r.Devices(ctx)
		_ = r.Close() // it only looked
		if len(devices) > 0 {
			return true
		}
	}
	return false
}
