//go:build linux

package neuron

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/sysfs"
)

// chip is one device: what its cores have in common.
type chip struct {
	r *Reader
	sighting

	ecc   []device.ECC
	power []device.Power
	slow  error // error of the last slow read
}

// ID implements device.Device.
func (c *chip) ID() device.ID { return c.id }

// Read implements device.Device.
func (c *chip) Read(ctx context.Context, tier device.Tier) (device.Sample, error) {
	f := files{}
	if err := begin(ctx, c.dir); err != nil {
		return device.Sample{ID: c.id}, err
	}
	s := device.Sample{ID: c.id, Info: c.info, Aliases: c.alias}
	var parts []device.Value
	for _, core := range c.cores {
		parts = append(parts, f.memory(core))
	}
	s.Memory.Used = total(parts)
	if tier >= device.Slow {
		f.lost = c.readSlow() || f.lost
	}
	s.ECC, s.Powers = c.ecc, c.power
	u := c.r.look(ctx, tier)
	h := c.r.hear(ctx)
	if tier >= device.Slow {
		f.errs = append(f.errs, u.err)
	}
	f.errs = append(f.errs, c.slow, h.err)
	if rep := h.report; rep != nil {
		c.add(&s, rep)
	}
	s.Processes = u.processes(c.r.opts.Root, c.id.Index, h.report, nil)
	if f.lost {
		return device.Sample{ID: c.id}, lost(c.dir)
	}
	return s, errors.Join(f.errs...)
}

// begin checks that the device still exists and that ctx has not ended.
func begin(ctx context.Context, dir sysfs.Dir) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("cannot start reading: %w", err)
	}
	if !dir.Exists() {
		return lost(dir)
	}
	return nil
}

func lost(dir sysfs.Dir) error {
	return fmt.Errorf("the driver no longer lists %s: %w", dir.Base(), device.ErrLost)
}

// add adds what neuron-monitor reports for the device.
func (c *chip) add(s *device.Sample, rep *report) {
	var busy []device.Value
	for place := range c.cores {
		busy = append(busy, rep.utilization(c.id.Index, place, len(c.cores)))
	}
	// The cores run independently, so the device's utilization is their mean.
	s.Utilization.Compute = total(busy).Div(float64(max(1, len(busy))))
	s.Memory.Total = rep.memory
	if all, ok := s.Memory.Total.Get(); ok {
		if used, ok := s.Memory.Used.Get(); ok && used <= all {
			s.Memory.Free = device.Of(all - used)
		}
	}
	s.ECC = append(rep.corrected(c.id.Index), s.ECC...)
}

// readSlow reads values that rarely change, and reports whether the device is gone.
func (c *chip) readSlow() (gone bool) {
	f := files{}
	hardware := c.dir.Join("stats/hardware")
	memory, sram := f.count(hardware, "mem_ecc_uncorrected"), f.count(hardware, "sram_ecc_uncorrected")
	repairable := f.count(hardware, "mem_ecc_repairable_uncorrected")
	c.ecc = eccOf("uncorrected", memory, sram, repairable)
	c.power = nil
	line, err := c.dir.Join("stats/power").Text("utilization")
	f.check(err)
	if err == nil {
		v, err := parsePower(line, c.r.opts.Now())
		if err != nil {
			f.errs = append(f.errs, fmt.Errorf("cannot parse %s: %w", c.dir.Join("stats/power/utilization"), err))
		}
		if v.OK() {
			c.power = []device.Power{{Scope: "gpu", Utilization: v}}
		}
	}
	c.slow = errors.Join(f.errs...)
	return f.lost
}

// eccOf returns the counters of device memory, of on-chip memory, and of repairable memory
// errors, which the first does not include. It adds their sum if the first two are known.
func eccOf(kind string, memory, sram, repairable device.Value) []device.ECC {
	var list []device.ECC
	add := func(location string, v device.Value) {
		if v.OK() {
			list = append(list, device.ECC{Type: kind, Lifetime: "volatile", Location: location, Count: v})
		}
	}
	add("", total([]device.Value{memory, sram, repairable.Or(device.Of(0))}))
	add("memory", memory)
	add("sram", sram)
	add("memory_repairable", repairable)
	return list
}

// powerAge is how old a power reading may be. The driver produces one per minute.
const powerAge = 3 * time.Minute

// parsePower parses status,time,min,max,avg: the time in seconds since 1970, the others in
// percent of the device's maximum power, over a minute.
func parsePower(line string, now time.Time) (device.Value, error) {
	f := strings.Split(line, ",")
	status := strings.TrimSpace(f[0])
	switch status {
	case "POWER_STATUS_VALID":
	case "POWER_STATUS_NO_DATA", "POWER_STATUS_INVALID":
		return device.Value{}, nil
	default:
		return device.Value{}, fmt.Errorf("%.40q is not a status", status)
	}
	if len(f) < 5 {
		return device.Value{}, fmt.Errorf("%d fields, want 5", len(f))
	}
	seconds, err := strconv.ParseInt(strings.TrimSpace(f[1]), 10, 64)
	if err != nil {
		return device.Value{}, fmt.Errorf("%.40q is not a time", f[1])
	}
	avg, err := strconv.ParseFloat(strings.TrimSpace(f[4]), 64)
	if err != nil || !(avg >= 0 && avg <= 200) { // a short peak above the limit is real
		return device.Value{}, fmt.Errorf("%.40q is not a percentage", f[4])
	}
	if now.Sub(time.Unix(seconds, 0)) > powerAge {
		return device.Value{}, nil
	}
	return device.Of(avg).Div(100), nil
}

// core is one NeuronCore.
type core struct {
	r     *Reader
	chip  *chip
	place int
	id    device.ID
	files coreFiles

	resets []device.ErrorCount
	slow   error
}

// ID implements device.Device.
func (p *core) ID() device.ID { return p.id }

// Read implements device.Device.
func (p *core) Read(ctx context.Context, tier device.Tier) (device.Sample, error) {
	f := files{}
	if err := begin(ctx, p.files.dir); err != nil {
		return device.Sample{ID: p.id}, err
	}
	n := len(p.chip.cores)
	s := device.Sample{ID: p.id, Info: p.chip.info, Slice: device.Slice{Held: 1, Of: n}}
	s.Memory.Used = f.memory(p.files)
	s.Runtime.Operations = f.count(p.files.dir, p.files.operations)
	for _, name := range p.files.statuses {
		if v := f.count(p.files.dir.Join("stats/status", name), "total"); v.OK() {
			s.Runtime.Executions = append(s.Runtime.Executions, device.ErrorCount{Type: name, Count: v})
		}
	}
	if tier >= device.Slow {
		slow := files{}
		p.resets = nil
		for _, kind := range []struct{ name, file string }{{"requested", p.files.resets}, {"failed", p.files.failedResets}} {
			if v := slow.count(p.files.dir, kind.file); v.OK() {
				p.resets = append(p.resets, device.ErrorCount{Type: kind.name, Count: v})
			}
		}
		p.slow = errors.Join(slow.errs...)
		f.lost = slow.lost || f.lost
	}
	s.Resets = p.resets
	u, h := p.r.look(ctx, tier), p.r.hear(ctx)
	if h.report != nil {
		s.Utilization.Compute = h.report.utilization(p.id.Index, p.place, n)
	}
	s.Aliases = p.aliases(h.report)
	s.Processes = u.processes(p.r.opts.Root, p.id.Index, h.report, &corePlace{p.place, n})
	if f.lost {
		return device.Sample{ID: p.id}, lost(p.files.dir)
	}
	return s, errors.Join(append(f.errs, p.slow)...)
}

// aliases returns the device plugin's name for the core: its number over all devices. If
// the plugin may offer two cores as one, which neuron-monitor reports but the driver does
// not, it returns none, because a wrong guess would name another core.
func (p *core) aliases(rep *report) []string {
	n := len(p.chip.cores)
	if rep != nil && rep.perDevice != 0 {
		if rep.perDevice != n {
			return nil
		}
	} else if n >= 8 { // Trn2 and later: two physical cores are one logical core by default
		return nil
	}
	return []string{"aws.amazon.com/neuroncore/" + strconv.Itoa(p.id.Index*n+p.place)}
}

// files reads attributes and collects errors.
type files struct {
	errs []error
	lost bool
}

func (f *files) check(err error) {
	switch {
	case err == nil || sysfs.Absent(err):
	case errors.Is(err, unix.ENODEV):
		f.lost = true
	default:
		f.errs = append(f.errs, err)
	}
}

// count reads a counter or a size. An empty name is absent.
func (f *files) count(d sysfs.Dir, name string) device.Value {
	if name == "" {
		return device.Value{}
	}
	v, err := d.Uint(name)
	if err != nil {
		f.check(err)
		return device.Value{}
	}
	return device.Of(float64(v))
}

// memory returns the bytes of device memory in use by a core, of all kinds. In these files,
// unlike in others, "total" is the current value.
func (f *files) memory(c coreFiles) device.Value {
	var parts []device.Value
	for _, name := range c.memory {
		v, err := c.dir.Uint(name)
		if sysfs.Absent(err) {
			continue // this kind of memory disappeared
		}
		f.check(err)
		if err != nil {
			return device.Value{} // a partial sum would be a different quantity
		}
		parts = append(parts, device.Of(float64(v)))
	}
	return total(parts)
}

// total returns the sum of parts, or absent if there is none or one is absent.
func total(parts []device.Value) device.Value {
	sum := 0.0
	for _, p := range parts {
		v, ok := p.Get()
		if !ok {
			return device.Value{}
		}
		sum += v
	}
	if len(parts) == 0 {
		return device.Value{}
	}
	return device.Of(sum)
}
