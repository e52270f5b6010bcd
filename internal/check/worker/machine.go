//go:build linux

package worker

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/gpumeter/gpumeter/internal/check"
	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/health"
	"github.com/gpumeter/gpumeter/internal/local"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/slurm"
)

// env returns the environment of the checks.
func (o *Options) env() check.Env {
	env := check.Env{
		Root: o.Local.Root, Expect: o.Expect, Window: o.Window, StuckFor: 3 * time.Second, Vendors: local.Vendors(),
		Devices: func(ctx context.Context) (check.Machine, error) {
			return readMachine(ctx, o.Local, min(5*time.Second, o.Timeout/3))
		},
	}
	if o.Profile == check.Prolog || o.Profile == check.Epilog {
		env.StuckFor = time.Second
		env.Mine = ofJob(o.JobGPUs, env.Vendors.Minors())
	}
	if o.Manifest != "" {
		m, err := readManifest(o.Manifest)
		if err != nil {
			env.ManifestErr = fmt.Errorf("%s: %w", o.Manifest, err)
		} else {
			env.Manifest = &m
		}
	}
	return env
}

// ofJob returns a function that reports whether Slurm allocated a device to the job. list holds
// the numbers of the device files, minors their prefixes as in device.Vendor. If list is not
// valid, ofJob returns nil, which stands for all devices.
func ofJob(list string, minors []string) func(*device.Sample) bool {
	indexes, err := slurm.ParseRanges(list)
	if err != nil {
		return nil
	}
	return func(s *device.Sample) bool {
		for _, alias := range s.Aliases {
			for _, prefix := range minors {
				if minor, ok := strings.CutPrefix(alias, prefix); ok {
					if n, err := slurm.ParseIndex(minor); err == nil {
						return slices.Contains(indexes, n)
					}
				}
			}
		}
		return slices.Contains(indexes, s.ID.Index)
	}
}

// maxManifest is the maximum size of a manifest in bytes, more than any needs.
const maxManifest = 1 << 20

func readManifest(path string) (m check.Manifest, err error) {
	f, err := os.Open(path)
	if err != nil {
		return m, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxManifest))
	if err != nil {
		return m, err
	}
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true) // a misspelled key would check nothing
	if err := d.Decode(&m); err != nil {
		if errors.Is(err, io.EOF) {
			return m, errors.New("the manifest is empty")
		}
		return m, err
	}
	if err := d.Decode(&yaml.Node{}); !errors.Is(err, io.EOF) {
		return m, errors.New("the manifest has a second document, which nothing would check")
	}
	return m, m.Validate()
}

// readMachine reads the devices. It retries for up to patience while a device does not respond
// or has memory in use without a process, because a job may just have ended. It does not
// release the drivers, because the process exits.
func readMachine(ctx context.Context, cfg local.Config, patience time.Duration) (check.Machine, error) {
	view, err := local.Open(cfg, nil)
	if err != nil {
		return check.Machine{}, err
	}
	vendors := local.Vendors()
	for begin := time.Now(); ; {
		m := machineOf(view.Tick(ctx, time.Now()))
		if ctx.Err() != nil {
			return m, ctx.Err()
		}
		if time.Since(begin) >= patience || !slices.ContainsFunc(m.Devices, func(d health.Device) bool { return !d.Up || check.Orphaned(&d, vendors) }) &&
			!slices.ContainsFunc(m.Drivers, func(d check.Driver) bool { return d.State == "opening" }) {
			return m, nil
		}
		select {
		case <-ctx.Done():
			return m, ctx.Err()
		case <-time.After(min(time.Second, patience)):
		}
	}
}

func machineOf(t node.Tick) check.Machine {
	m := check.Machine{Findings: t.Findings}
	for i := range t.Readings {
		r := &t.Readings[i]
		m.Devices = append(m.Devices, health.Device{Sample: r.Sample, Up: r.Up, Problem: r.Problem, Reset: r.NeedsReset, Since: r.Since})
	}
	for _, s := range t.Sources {
		m.Drivers = append(m.Drivers, check.Driver{Name: s.Name, State: cmp.Or(s.State, "opening"), Problem: s.Problem})
	}
	return m
}
