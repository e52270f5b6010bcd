//go:build linux

package check

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpumeter/gpumeter/internal/sysfs"
)

// parseMeminfo reads lines of "MemTotal:  123 kB", and returns bytes.
func parseMeminfo(text []byte) map[string]uint64 {
	out := map[string]uint64{}
	for line := range bytes.Lines(text) {
		key, value, ok := strings.Cut(string(line), ":")
		f := strings.Fields(value)
		if !ok || len(f) != 2 || f[1] != "kB" {
			continue
		}
		if n, err := strconv.ParseUint(f[0], 10, 54); err == nil {
			out[key] = n << 10
		}
	}
	return out
}

func (h *host) meminfo() (map[string]uint64, error) {
	text, err := readText(string(h.proc("meminfo")))
	if err != nil {
		return nil, err
	}
	info := parseMeminfo(text)
	if info["MemTotal"] == 0 {
		return nil, fmt.Errorf("%s does not say how much memory there is", h.proc("meminfo"))
	}
	return info, nil
}

const (
	memoryThere = 0.97 // of the manifest: kernels keep a little more or less for themselves
	memoryLeft  = 0.02
)

// memory: jobs may use all but a little of it, which is a warning and not critical.
func memory(_ context.Context, h *host) outcome {
	info, err := h.meminfo()
	if err != nil {
		return unknown(err, "")
	}
	total, free := info["MemTotal"], info["MemAvailable"]
	var bad []Problem
	if h.Manifest != nil && float64(total) < memoryThere*float64(h.Manifest.MemoryBytes) {
		bad = append(bad, Problem{Critical, "", fmt.Sprintf("the machine has %s, the manifest says %s", gib(total), gib(h.Manifest.MemoryBytes)), "A memory module is gone: look at the board's own log of events."})
	}
	if _, known := info["MemAvailable"]; known && float64(free) < memoryLeft*float64(total) {
		bad = append(bad, Problem{Warning, "", fmt.Sprintf("%s of %s are left", gib(free), gib(total)), "Look for what uses it; in an epilog, for what a job left in /dev/shm."})
	}
	return found(bad, "%s, %s are free", gib(total), gib(free))
}

// governors returns how many processors have each governor.
func (h *host) governors() map[string]int {
	out := map[string]int{}
	for _, d := range h.sys("devices/system/cpu").Glob("cpu[0-9]*/cpufreq") {
		if g, err := d.Text("scaling_governor"); err == nil && g != "" {
			out[g]++
		}
	}
	return out
}

// governor: powersave keeps the lowest clock, but not with drivers that manage the clock
// themselves, where it is the usual one.
func governor(_ context.Context, h *host) outcome {
	list := h.governors()
	if len(list) == 0 {
		return skip("the kernel does not set clocks here")
	}
	var words []string
	for _, g := range sortedKeys(list) {
		words = append(words, fmt.Sprintf("%s on %d", shorten(g), list[g]))
	}
	text := strings.Join(words, ", ") + " processors"
	const action = "Set it with cpupower frequency-set -g, or in tuned."
	if h.Manifest != nil && h.Manifest.Governor != "" {
		if len(list) > 1 || list[h.Manifest.Governor] == 0 {
			return found([]Problem{{Warning, "", fmt.Sprintf("the governor is %s, the manifest says %s", text, h.Manifest.Governor), action}}, "")
		}
		return fine("%s", text)
	}
	driver, _ := h.sys("devices/system/cpu/cpu0/cpufreq").Text("scaling_driver")
	managed := driver == "intel_pstate" || strings.HasPrefix(driver, "amd-pstate-epp") || driver == "amd_pstate_epp"
	if list["powersave"] > 0 && !managed {
		return found([]Problem{{Warning, "", "the governor is " + text + ", which keeps the lowest clock", action}}, "")
	}
	return fine("%s", text)
}

// slowClocks are what the kernel falls back to when it does not trust the processor's
// counter. Reading one costs a microsecond, and programs read it all the time.
var slowClocks = []string{"hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit"}

func clockSource(_ context.Context, h *host) outcome {
	s, err := h.sys("devices/system/clocksource/clocksource0").Text("current_clocksource")
	if sysfs.Absent(err) {
		return skip("the kernel does not say")
	}
	if err != nil {
		return unknown(err, "")
	}
	const action = "Look for tsc in the kernel's log: why it was found unstable. Often a reboot or new firmware helps."
	if h.Manifest != nil && h.Manifest.ClockSource != "" && s != h.Manifest.ClockSource {
		return found([]Problem{{Warning, "", fmt.Sprintf("the clock is %s, the manifest says %s", shorten(s), h.Manifest.ClockSource), action}}, "")
	}
	if slices.Contains(slowClocks, s) {
		return found([]Problem{{Warning, "", "the clock is " + s + ", which is slow to read", action}}, "")
	}
	return fine("%s", shorten(s))
}

// maxClockError is what the clock may be off by the kernel's own estimate. Jobs over
// several nodes and Munge's five minutes allow for more.
const maxClockError = time.Second

func clockSync(_ context.Context, h *host) outcome {
	state, t, err := h.Clock()
	if err != nil {
		return skip("the kernel does not say: %v", err)
	}
	const action = "Start chrony or another time service, and look whether it reaches its servers."
	if state == unix.TIME_ERROR || t.Status&unix.STA_UNSYNC != 0 {
		return found([]Problem{{Warning, "", "no time service has set the clock", action}}, "")
	}
	if off := time.Duration(t.Maxerror) * time.Microsecond; off > maxClockError {
		return found([]Problem{{Warning, "", fmt.Sprintf("it may be off by %s", off.Round(time.Millisecond)), action}}, "")
	}
	return fine("by at most %s", (time.Duration(t.Maxerror) * time.Microsecond).Round(time.Microsecond))
}

// Corrected errors of memory that a day may have on average, since boot.
const correctedADay = 1000

// sensors reads EDAC's counters and those alarms of hwmon that mean something everywhere.
// Boards report others, of voltages and of fans that are not there, all the time.
func sensors(_ context.Context, h *host) outcome {
	var bad []Problem
	seen := 0
	up, _ := h.uptime() // 0 is judged as a day
	days := max(up.Hours()/24, 1)
	for _, d := range h.sys("devices/system/edac/mc").Glob("mc[0-9]*") {
		if n, err := d.Uint("ue_count"); err == nil {
			seen++
			if n > 0 {
				bad = append(bad, Problem{Warning, "memory controller " + d.Base(), fmt.Sprintf("%d errors that were not corrected since boot", n), "Find the module in the board's own log of events and replace it."})
			}
		}
		if n, err := d.Uint("ce_count"); err == nil && float64(n)/days > correctedADay {
			bad = append(bad, Problem{Warning, "memory controller " + d.Base(), fmt.Sprintf("%d corrected errors since boot, %.0f a day", n, float64(n)/days), "Plan to replace the module."})
		}
	}
	for _, d := range h.sys("class/hwmon").Glob("hwmon[0-9]*") {
		chip, _ := d.Text("name")
		for _, pattern := range []string{"temp*_crit_alarm", "temp*_emergency_alarm", "fan*_fault"} {
			for _, f := range d.Glob(pattern) {
				v, err := d.Uint(f.Base())
				if err != nil {
					continue
				}
				seen++
				if v != 0 {
					bad = append(bad, Problem{Warning, shorten(chip), f.Base() + " is set", "Look at the fans and the air to the machine."})
				}
			}
		}
	}
	if seen == 0 && len(bad) == 0 {
		return skip("neither EDAC nor hwmon has anything")
	}
	return found(capped(bad), "%d counters and alarms", seen)
}

// usualServices are written into a manifest if they run, and so are device.Vendor.Services.
var usualServices = []string{
	"slurmd.service", "munge.service", "kubelet.service", "containerd.service", "crio.service", "docker.service", "sshd.service", "ssh.service",
	"chronyd.service", "chrony.service", "gpumeter.service",
}

// runs reports whether a unit of systemd has a process, by its control group. It needs
// neither D-Bus nor systemctl.
func (h *host) runs(unit string) bool {
	for _, tree := range []string{"fs/cgroup", "fs/cgroup/systemd", "fs/cgroup/unified"} {
		dirs := []sysfs.Dir{h.sys(tree).Join("system.slice", unit)}
		for _, d := range append(dirs, h.sys(tree).Glob("*.slice/"+unit)...) {
			// Version 2 says it of all below; version 1 has a list.
			if text, err := d.Text("cgroup.events"); err == nil && slices.Contains(strings.Split(text, "\n"), "populated 1") {
				return true
			}
			if text, err := d.Text("cgroup.procs"); err == nil && text != "" {
				return true
			}
		}
	}
	return false
}

func services(_ context.Context, h *host) outcome {
	if h.Manifest == nil || len(h.Manifest.Services) == 0 {
		return skip("the manifest names none")
	}
	if !slices.ContainsFunc([]string{"fs/cgroup/system.slice", "fs/cgroup/systemd/system.slice", "fs/cgroup/unified/system.slice"}, func(p string) bool { return h.sys(p).Exists() }) {
		return skip("systemd does not run here, or its control groups cannot be seen")
	}
	missing := map[string]bool{}
	for _, unit := range h.Manifest.Services {
		if !strings.Contains(unit, ".") {
			unit += ".service"
		}
		if !h.runs(unit) {
			missing[unit] = true
		}
	}
	var bad []Problem
	for _, unit := range slices.Sorted(maps.Keys(missing)) {
		bad = append(bad, Problem{Critical, unit, "it has no process", "systemctl status says why; start it."})
	}
	return found(bad, "%d run", len(h.Manifest.Services))
}
