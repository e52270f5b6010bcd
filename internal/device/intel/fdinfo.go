//go:build linux

package intel

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
)

// fdinfo is what the driver reports for one client.
//
// https://docs.kernel.org/gpu/drm-usage-stats.html
type fdinfo struct {
	pdev       string
	client     uint64
	identified bool // a client number was present
	engines    map[string]engine
	vram       device.Value // bytes in the GPU's own memory now
}

// engine is the usage of all engines of one class.
type engine struct {
	counted  bool   // busy is set
	busy     uint64 // xe: cycles, i915: ns
	cycles   bool   // busy is in cycles, out of total
	total    uint64 // cycles of the GPU's clock
	hasTotal bool
	capacity uint64 // engines in the class; 0 means 1
}

// parseFdinfo parses the DRM keys in a /proc/PID/fdinfo file.
func parseFdinfo(s string) (fdinfo, error) {
	info := fdinfo{engines: map[string]engine{}}
	resident := region{}
	memory := region{}
	for line := range strings.Lines(s) {
		key, value, ok := strings.Cut(line, ":")
		key, drm := strings.CutPrefix(key, "drm-")
		if value = strings.TrimSpace(value); !ok || !drm {
			continue
		}
		var err error
		switch what, of, _ := strings.Cut(key, "-"); {
		case key == "pdev":
			info.pdev = strings.ToLower(value)
		case key == "client-id":
			info.client, err = strconv.ParseUint(value, 10, 64)
			info.identified = err == nil
		case strings.HasPrefix(key, "engine-capacity-"):
			err = info.set(strings.TrimPrefix(key, "engine-capacity-"), value, func(e *engine, n uint64) { e.capacity = n })
		case what == "engine":
			err = info.set(of, strings.TrimSuffix(value, " ns"), func(e *engine, n uint64) { e.busy, e.counted = n, true })
		case strings.HasPrefix(key, "total-cycles-"):
			name := strings.TrimPrefix(key, "total-cycles-")
			err = info.set(name, value, func(e *engine, n uint64) { e.total, e.hasTotal = n, true })
		case what == "cycles":
			err = info.set(of, value, func(e *engine, n uint64) { e.busy, e.counted, e.cycles = n, true, true })
		case what == "resident" && local(of):
			err = resident.add(value)
		case what == "memory" && local(of): // the name before Linux 6.5
			err = memory.add(value)
		}
		if err != nil {
			return fdinfo{}, fmt.Errorf("%.64s: %w", key, err)
		}
	}
	info.vram = resident.Or(memory.Value)
	return info, nil
}

func (f *fdinfo) set(class, value string, put func(*engine, uint64)) error {
	n, err := strconv.ParseUint(value, 10, 64)
	if err != nil {
		return fmt.Errorf("%.64q is not a count", value)
	}
	e := f.engines[class]
	put(&e, n)
	f.engines[class] = e
	return nil
}

// local reports whether a region is GPU memory: vram0 in xe, local0 in i915.
func local(region string) bool {
	return strings.HasPrefix(region, "vram") || strings.HasPrefix(region, "local")
}

// region is a sum of memory sizes, in bytes.
type region struct{ device.Value }

func (r *region) add(value string) error {
	number, unit, _ := strings.Cut(value, " ")
	n, err := strconv.ParseUint(number, 10, 53)
	scale, ok := map[string]float64{"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}[unit]
	if err != nil || !ok {
		return fmt.Errorf("%.64q is not a size", value)
	}
	sum, _ := r.Get()
	r.Value = device.Of(sum + float64(n)*scale)
	return nil
}

// classes are the engines that count as GPU utilization: those that run kernels and
// shaders. Copy engines move data; video engines (vcs) encode and decode, and the driver
// does not say which.
var classes = []string{"rcs", "ccs", "render", "compute"}

// idle reports whether the client never used such an engine.
func (f *fdinfo) idle() bool {
	for _, class := range classes {
		if f.engines[class].busy > 0 {
			return false
		}
	}
	return f.counts()
}

// counts reports whether the driver counts engine time at all. xe does not for clients of a
// virtual function.
func (f *fdinfo) counts() bool {
	for _, class := range classes {
		if f.engines[class].counted {
			return true
		}
	}
	return false
}

// computes distinguishes a process that computes from one that renders or transcodes. A
// process that has done neither yet counts as computing.
func (f *fdinfo) computes() bool {
	if f.engines["ccs"].busy > 0 || f.engines["compute"].busy > 0 {
		return true
	}
	for class, e := range f.engines {
		if e.busy > 0 && class != "bcs" && class != "copy" {
			return false
		}
	}
	return true
}

// keep takes the larger of two counts, because they may briefly go backwards.
func (f *fdinfo) keep(before *fdinfo) {
	for class, e := range f.engines {
		if b := before.engines[class]; b.counted && e.counted && b.cycles == e.cycles {
			e.busy = max(e.busy, b.busy)
			f.engines[class] = e
		}
	}
}

// busy returns the ratio of time since before during which the client kept the render and
// compute engines busy; 1 means all of them. Engines of different classes share the same
// execution units, so the sum is capped at 1.
func (f *fdinfo) busy(before *fdinfo, elapsed time.Duration) device.Value {
	if !f.counts() {
		return device.Value{}
	}
	var ratio float64
	for _, class := range classes {
		e, b := f.engines[class], before.engines[class]
		if !e.counted {
			continue
		}
		if !b.counted || b.cycles != e.cycles {
			return device.Value{}
		}
		if e.busy <= b.busy {
			continue // nothing ran, however long the interval
		}
		of := float64(elapsed.Nanoseconds())
		if e.cycles {
			if !e.hasTotal || !b.hasTotal || e.total < b.total {
				return device.Value{}
			}
			of = float64(e.total - b.total)
		}
		if of <= 0 {
			return device.Value{}
		}
		ratio += float64(e.busy-b.busy) / (of * float64(max(e.capacity, 1)))
	}
	return device.Of(math.Min(ratio, 1))
}
