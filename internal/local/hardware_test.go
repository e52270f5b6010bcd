//go:build linux

package local

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/receiver/receivertest"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/device/devicetest"
	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/receiver/gpureceiver"
)

var update = flag.Bool("update", false, "rewrite docs/hardware.md")

// onPartitions lists the fields that a vendor reports for partitions only. They become
// gpu.partition metrics.
var onPartitions = map[string][]string{
	"amd":    {"Profile.EngineActive"},
	"neuron": {"Resets.Count", "Runtime.Executions.Count", "Runtime.Operations"},
}

// noLifetime lists the vendors whose drivers count memory errors only since they were loaded.
var noLifetime = []string{"amd", "neuron"}

// metricsOf returns the metrics that each field of a vendor's samples becomes.
func metricsOf(t *testing.T, vendor string) map[string][]string {
	t.Helper()
	all := emitted(t, "")
	for field, list := range emitted(t, "GPU-0") {
		if slices.Contains(onPartitions[vendor], field) {
			all[field] = list
		}
	}
	if slices.Contains(noLifetime, vendor) {
		all["ECC.Count"] = slices.DeleteFunc(all["ECC.Count"], func(m string) bool { return m == "gpu.ecc.lifetime.errors" })
	}
	return all
}

// emitted returns the metrics that each field becomes: for a physical device if parent is
// empty, else for a partition of parent.
func emitted(t *testing.T, parent string) map[string][]string {
	t.Helper()
	cfg := gpureceiver.NewFactory().CreateDefaultConfig().(*gpureceiver.Config)
	metrics := reflect.ValueOf(&cfg.Metrics).Elem()
	for _, m := range metrics.Fields() {
		m.FieldByName("Enabled").SetBool(true)
	}
	s, paths := devicetest.Fill()
	s.ID.Parent = parent
	// Lists whose elements become different metrics.
	detail, total := s.ThrottleTimes[0], s.ECC[0]
	detail.Detail, total.Location = true, ""
	lifetime := total
	lifetime.Lifetime = "aggregate"
	s.ThrottleTimes, s.ECC = append(s.ThrottleTimes, detail), append(s.ECC, total, lifetime)
	// The elements that metrics without attributes report.
	s.Powers[0].Scope, s.Powers[0].Limits[0].Type = "gpu", device.LimitEnforced
	s.Temperatures[0].Sensor, s.Clocks[0].Type, s.Voltages[0].Rail = "edge", "sm", "core"
	for i := range s.ThrottleTimes[:1] {
		s.ThrottleTimes[i].Detail = false
	}
	out := map[string][]string{
		"Throttles":          {"gpu.throttle.power_active", "gpu.throttle.thermal_active", "gpu.throttle.sw_active", "gpu.throttle.hw_active", "gpu.throttle.reason"},
		"Runtime.Latencies":  {"gpu.runtime.latency"},
		"Powers.Utilization": {"gpu.power.utilization"}, // for devices that do not report watts
		"Powers.Average":     {"gpu.power.draw"},        // for devices without an instantaneous reading
	}
	for _, f := range devicetest.Fields(s) {
		if strings.HasPrefix(f, "Info.") {
			out[f] = []string{"gpu.info"}
		}
	}
	e := gpureceiver.NewEmitter(cfg, receivertest.NewNopSettings(component.MustNewType("gpu")))
	md := e.Emit(node.Tick{Readings: []node.Reading{{Sample: s, Up: true, Busy: s.Utilization.Compute}}})
	for _, rm := range md.ResourceMetrics().All() {
		for _, sm := range rm.ScopeMetrics().All() {
			for _, m := range sm.Metrics().All() {
				var points pmetric.NumberDataPointSlice
				switch m.Type() {
				case pmetric.MetricTypeGauge:
					points = m.Gauge().DataPoints()
				case pmetric.MetricTypeSum:
					points = m.Sum().DataPoints()
				default:
					continue
				}
				for _, p := range points.All() {
					if path, ok := paths[p.DoubleValue()]; ok && !slices.Contains(out[path], m.Name()) {
						out[path] = append(out[path], m.Name())
					}
				}
			}
		}
	}
	return out
}

// The hardware page is generated from the sources that the vendors' own tests verify.
func TestHardwareDocument(t *testing.T) {
	files, err := filepath.Glob("../device/*/sources.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range Vendors() {
		if file := "../device/" + v.Name + "/sources.txt"; !slices.Contains(files, file) {
			t.Errorf("%s is missing: it lists the source of each value of %s", file, v.Title)
		}
	}
	has := map[string]map[string]bool{} // metric, vendor
	var names []string
	var each bytes.Buffer
	for _, file := range files {
		vendor := filepath.Base(filepath.Dir(file))
		names = append(names, vendor)
		metrics := metricsOf(t, vendor)
		list, err := devicetest.ReadSources(file)
		if err != nil {
			t.Fatal(err)
		}
		var there, absent []string
		for _, s := range list {
			if len(metrics[s.Field]) == 0 {
				t.Errorf("%s: %s is not a field, or does not become a metric", file, s.Field)
			}
			line := fmt.Sprintf("| %s | %s |", strings.Join(called(metrics, s.Field), ", "), s.Text)
			if s.Absent {
				absent = append(absent, line)
				continue
			}
			there = append(there, line)
			for _, m := range metrics[s.Field] {
				if has[m] == nil {
					has[m] = map[string]bool{}
				}
				has[m][vendor] = true
			}
		}
		facts := Vendors().ByName(vendor)
		if facts.Name == "" {
			t.Errorf("%s: internal/local/vendors.go does not list %s", file, vendor)
		}
		fmt.Fprintf(&each, "\n## %s\n\n%s\n| metric | from |\n|---|---|\n%s\n", vendor, factsTable(facts), strings.Join(joined(there), "\n"))
		if len(absent) > 0 {
			fmt.Fprintf(&each, "\n| absent | because |\n|---|---|\n%s\n", strings.Join(joined(absent), "\n"))
		}
	}
	var all bytes.Buffer
	all.WriteString(hardwareIntro)
	fmt.Fprintf(&all, "\n| metric | %s |\n|---|%s\n", strings.Join(names, " | "), strings.Repeat(":-:|", len(names)))
	for _, m := range slices.Sorted(maps.Keys(has)) {
		row := "| " + m + " |"
		for _, v := range names {
			if has[m][v] {
				row += " x |"
			} else {
				row += " |"
			}
		}
		all.WriteString(row + "\n")
	}
	all.Write(each.Bytes())
	const path = "../../docs/hardware.md"
	if *update {
		if err := os.WriteFile(path, all.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, all.Bytes()) {
		t.Errorf("docs/hardware.md is out of date, rewrite it with go test ./internal/local -run Hardware -update (%v)", err)
	}
}

const hardwareIntro = `[comment]: <> (Written by go test ./internal/local -run Hardware -update from internal/device/*/sources.txt. Do not edit.)

# Hardware

Which values are read from each vendor's devices, and where they come from. A value that a driver does not provide is absent, never 0.
Each line is tested: a test of the vendor's reader fails if it reads a value that is not listed, or does not read one that is.
Metrics that are off by default are listed, too; see ` + "`receiver/gpureceiver/documentation.md`" + `. gpu.up, gpu.health,
gpu.workload.*, gpu.allocation and gpu.unallocated are derived for every vendor. A partition has its own values under
gpu.partition.*, from the same sources.
`

// factsTable returns a table of the facts about a vendor.
func factsTable(v device.Vendor) string {
	code := func(list []string) string { return "`" + strings.Join(list, "`, `") + "`" }
	var files, resources []string
	for _, f := range v.DeviceFiles {
		files = append(files, f+"*")
	}
	for _, r := range v.Resources {
		resources = append(resources, fmt.Sprintf("`%s` (%s)", r.Name, r.Unit))
	}
	return fmt.Sprintf("| | %s |\n|---|---|\n| device files | %s |\n| kernel modules | %s |\n| Kubernetes resources | %s |\n",
		v.Title, code(files), code(v.Modules), strings.Join(resources, ", "))
}

// called returns the metrics of a field, with the last element of its path if a metric has
// several fields: gpu.engine.utilization (memory).
func called(metrics map[string][]string, field string) []string {
	var out []string
	for _, m := range metrics[field] {
		fields := 0
		for _, list := range metrics {
			if slices.Contains(list, m) {
				fields++
			}
		}
		if fields > 1 {
			m += " (" + strings.ToLower(field[strings.LastIndex(field, ".")+1:]) + ")"
		}
		out = append(out, m)
	}
	return out
}

// joined joins lines that state the same for two metrics.
func joined(lines []string) []string {
	var out []string
	for _, line := range lines {
		parts := strings.SplitN(line, " | ", 2)
		if i := slices.IndexFunc(out, func(o string) bool { return strings.HasSuffix(o, " | "+parts[1]) }); i >= 0 {
			before, _, _ := strings.Cut(out[i], " | ")
			if name := strings.TrimPrefix(parts[0], "| "); !slices.Contains(strings.Split(strings.TrimPrefix(before, "| "), ", "), name) {
				out[i] = before + ", " + name + " | " + parts[1]
			}
			continue
		}
		out = append(out, line)
	}
	return out
}
