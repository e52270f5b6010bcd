//go:build linux

package local

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	nodecheck "github.com/gpumeter/gpumeter/internal/check"

	"github.com/gpumeter/gpumeter/internal/cost"
	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/device/sim"
)

// maxShort is the width of the model column in the terminal and on the page.
const maxShort = 16

// simulatedModels returns the models of the simulator's mixed machine, which has devices of
// every vendor, by vendor.
func simulatedModels(t *testing.T) map[string][]string {
	t.Helper()
	r, err := sim.New(sim.Config{Model: sim.Mixed})
	if err != nil {
		t.Fatal(err)
	}
	list, err := r.Devices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	models := map[string][]string{}
	for _, d := range list {
		if id := d.ID(); id.Parent == "" && !slices.Contains(models[id.Vendor], id.Model) {
			models[id.Vendor] = append(models[id.Vendor], id.Model)
		}
	}
	return models
}

// A vendor with incomplete facts would be read, but unknown to checks, quotas, the bundle,
// Slurm, the terminal or the page.
func TestVendors(t *testing.T) {
	models := simulatedModels(t)
	doc, err := os.ReadFile("../../docs/hardware.md")
	if err != nil {
		t.Fatal(err)
	}
	vendors := Vendors()
	for i := range vendors {
		v := &vendors[i]
		folder := "../device/" + v.Name
		t.Run(v.Name, func(t *testing.T) {
			need := func(ok bool, format string, args ...any) {
				t.Helper()
				if !ok {
					t.Errorf(format, args...)
				}
			}
			need(v.Name != "" && v.Title != "", "%s: Facts need a Name and a Title", folder)
			need(regexp.MustCompile(`^0x[0-9a-f]{4}$`).MatchString(v.PCI), "%s: Facts.PCI %q does not have the format of sysfs, such as 0x10de", folder, v.PCI)
			need(len(v.DeviceFiles) > 0, "%s: Facts.DeviceFiles is empty: gpumeter check would not find the processes that have a device open", folder)
			need(len(v.Modules) > 0, "%s: Facts.Modules is empty: the bundle would contain neither the version nor the log lines of the driver", folder)
			need(slices.ContainsFunc(v.Resources, func(r device.Resource) bool { return r.Unit == device.Whole }),
				"%s: Facts.Resources has no resource for whole devices: quotas would not count them", folder)

			files, _ := filepath.Glob(folder + "/testdata/*") // the only error is a bad pattern
			need(len(files) > 0, "%s/testdata is empty: capture or write a machine for the tests of the reader", folder)
			_, err := os.Stat(folder + "/sources.txt")
			need(err == nil, "%s/sources.txt must list the source of each value: %v", folder, err)
			need(strings.Contains(string(doc), "\n## "+v.Name+"\n"), "docs/hardware.md has no section %s: go test ./internal/local -run Hardware -update", v.Name)
			need(len(models[v.Name]) > 0, "internal/device/sim has no model of %s in its mix", v.Name)
			for _, m := range models[v.Name] {
				short := vendors.ShortModel(m)
				need(short != "" && len(short) <= maxShort, "the short name of %q is %q, longer than %d characters: extend Facts.ModelPrefixes of %s", m, short, maxShort, folder)
			}
			inDevices(t, v)
			inQuotas(t, vendors, v)
			inLogs(t, vendors, v)
			inSlurm(t, v)
		})
	}
}

// inDevices fails unless gpumeter check finds a hung process that has a device open.
func inDevices(t *testing.T, v *device.Vendor) {
	t.Helper()
	for _, prefix := range v.DeviceFiles {
		if !strings.HasPrefix(prefix, "/dev/") {
			t.Errorf("%s: the device file %s is not below /dev", v.Name, prefix)
			continue
		}
		file := prefix + "0"
		root := t.TempDir()
		write := func(name, text string) {
			path := filepath.Join(root, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write("proc/77/stat", "77 (train) D 1 77 77 0 -1 4194304 0 0 0 0 0 0 0 0 20 0 1 0 1000 0 0\n")
		write("proc/77/status", "voluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t1\n")
		write("proc/77/wchan", "0")
		if err := os.Mkdir(filepath.Join(root, "proc/77/fd"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(file, filepath.Join(root, "proc/77/fd/3")); err != nil {
			t.Fatal(err)
		}
		stuck := slices.DeleteFunc(nodecheck.All(), func(c nodecheck.Check) bool { return c.ID != "process.stuck" })
		env := nodecheck.Env{
			Root: root, StuckFor: time.Millisecond, Vendors: Vendors(),
			Devices: func(context.Context) (nodecheck.Machine, error) { return nodecheck.Machine{}, nil },
		}
		results := nodecheck.Run(t.Context(), env, stuck, time.Minute)
		if len(results) != 1 || !strings.Contains(results[0].Reason, "with "+file+" open") {
			t.Errorf("%s: gpumeter check does not report that a process has %s open: %+v", v.Name, file, results)
		}
	}
	for _, m := range v.Messages {
		if _, err := regexp.Compile(m.Pattern); err != nil || m.Contains == "" || !strings.Contains(m.Pattern, m.Contains) || m.Action == "" {
			t.Errorf("%s: the message %+v needs a pattern with the word that it contains, and an action (%v)", v.Name, m, err)
		}
	}
}

// inQuotas fails unless a quota for the vendor's resources counts whole devices, and nothing
// else.
func inQuotas(t *testing.T, vendors device.Vendors, v *device.Vendor) {
	t.Helper()
	for _, r := range v.Resources {
		name := strings.ReplaceAll(r.Name, "*", "x")
		if diff := cmp.Diff(r, vendors.Resource(name)); diff != "" {
			t.Errorf("%s: the resource %s (-want +resolved):\n%s", v.Name, name, diff)
		}
		text := fmt.Sprintf(`{"items":[{"metadata":{"name":"q","namespace":"n"},"spec":{"hard":{"requests.%s":"3"}}}]}`, name)
		list, err := cost.ParseResourceQuotas([]byte(text), vendors.CountsDevices)
		if counted := len(list) == 1 && *list[0].GPUs == 3; err != nil || counted != (r.Unit == device.Whole) {
			t.Errorf("%s: a quota of 3 %s with the unit %q is parsed as %+v, %v", v.Name, name, r.Unit, list, err)
		}
	}
}

// inLogs fails unless lines of the driver in the kernel log are recognized.
func inLogs(t *testing.T, vendors device.Vendors, v *device.Vendor) {
	t.Helper()
	lines := vendors.LogLine()
	for _, word := range slices.Concat(v.Modules, v.LogWords) {
		for _, line := range []string{word + " 0000:01:00.0: it failed", strings.ReplaceAll(word, "_", "-") + ": it failed"} {
			if !lines.MatchString(line) {
				t.Errorf("%s: the bundle omits the line %q", v.Name, line)
			}
		}
	}
}

// inSlurm fails unless devices can be identified by the indexes that Slurm assigns: by minor
// number, or by render node.
func inSlurm(t *testing.T, v *device.Vendor) {
	t.Helper()
	if len(v.Minors) == 0 && !slices.Contains(v.DeviceFiles, "/dev/dri/renderD") {
		t.Errorf("%s: Facts.Minors is empty: without File= in gres.conf Slurm's indexes would not match any device", v.Name)
	}
	for _, m := range v.Minors {
		if !slices.ContainsFunc(v.DeviceFiles, func(f string) bool { return strings.HasSuffix(f, "/"+m) }) {
			t.Errorf("%s: the prefix %s in Facts.Minors matches none of %v", v.Name, m, v.DeviceFiles)
		}
	}
}
