//go:build linux

package tpu

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/sysfs"
)

// findNode finds the device files through which processes use the chip. The file's number
// is in id.Index until number runs; -1 is unknown.
func (s *sighting) findNode() error {
	if s.gen.vfio {
		group, err := s.dir.Link("iommu_group")
		if err != nil && !sysfs.Absent(err) {
			return err
		}
		if n, err := strconv.Atoi(group); err == nil && n >= 0 {
			s.id.Index = n
			s.nodes = append(s.nodes, "/dev/vfio/"+group)
			s.alias = append(s.alias, numbered(group)...) // names used by the DRA driver and the device plugin
		}
		for _, d := range s.dir.Glob("vfio-dev/vfio[0-9]*") { // the newer VFIO interface
			s.nodes = append(s.nodes, "/dev/vfio/devices/"+d.Base())
		}
		return nil
	}
	for _, d := range s.dir.Glob("accel/accel[0-9]*") {
		if n, err := strconv.Atoi(strings.TrimPrefix(d.Base(), "accel")); err == nil {
			s.useAccel(n)
			return nil
		}
	}
	return nil
}

func (s *sighting) useAccel(n int) {
	name := "accel" + strconv.Itoa(n)
	s.id.Index = n
	s.nodes = []string{"/dev/" + name, "/dev/accel/" + name}
	s.alias = append([]string{name}, numbered(strconv.Itoa(n))...)
}

// number sorts the chips by the number of their device file and assigns each its index. An
// accel device without a link from the PCI device is numbered in bus order, as Google's
// tools do. IOMMU group numbers may start anywhere, so the index is the position among
// them.
func number(found []sighting) {
	for i := range found {
		if s := &found[i]; !s.gen.vfio && s.id.Index < 0 {
			s.useAccel(i)
		}
	}
	slices.SortStableFunc(found, func(a, b sighting) int {
		if (a.id.Index < 0) != (b.id.Index < 0) { // unknown numbers come last
			return cmp.Compare(b.id.Index, a.id.Index)
		}
		return cmp.Compare(a.id.Index, b.id.Index)
	})
	for i := range found {
		if s := &found[i]; s.gen.vfio {
			s.id.Index = i
		}
	}
}

// chip is one TPU chip. The runtime shows v2, v3 and 7x chips as two devices, but they
// share one file, one owner and one duty cycle, so the chip is the device here.
type chip struct {
	r *Reader
	sighting
	info device.Info
	told bool // info was read
}

// ID implements device.Device.
func (c *chip) ID() device.ID { return c.id }

// Read implements device.Device. It sends no request itself: it returns the last answer
// that the Reader's goroutines received from the process that uses the chip.
func (c *chip) Read(ctx context.Context, tier device.Tier) (device.Sample, error) {
	if err := ctx.Err(); err != nil {
		return device.Sample{ID: c.id}, fmt.Errorf("cannot start reading: %w", err)
	}
	if !c.dir.Exists() {
		return device.Sample{ID: c.id}, fmt.Errorf("%s is no longer on the PCI bus: %w", c.id.PCI, device.ErrLost)
	}
	var errs []error
	if tier >= device.Static || !c.told {
		var err error
		c.info, err = readInfo(c.dir, c.gen)
		c.told = err == nil
		errs = append(errs, err)
	}
	if tier >= device.Slow {
		c.r.look(ctx, lookAge)
	}
	users := c.users()
	if !users.alive(c.r.opts.Root) {
		// A process exited: the new owner must not wait for the next slow read.
		c.r.look(ctx, 0)
		users = c.users()
	}
	s := device.Sample{ID: c.id, Info: c.info, Aliases: c.alias}
	if tier >= device.Slow {
		errs = append(errs, users.err)
	}
	v, err := c.values(ctx, users)
	v.fill(&s)
	s.Processes = users.processes(v.used)
	return s, errors.Join(append(errs, err)...)
}

func readInfo(d sysfs.Dir, gen generation) (device.Info, error) {
	info := device.Info{Architecture: gen.name}
	numa, err := d.Text("numa_node")
	if err != nil && !sysfs.Absent(err) {
		return info, err
	}
	if numa != "-1" { // the kernel's value for a machine without NUMA
		info.NUMA = numa
	}
	return info, nil
}

// users are the processes that have one chip open.
type users struct {
	holders []holder
	service *poller[report] // of the process that reports on the chip; nil: none does
	pid     uint32          // PID of that process
	place   int             // position of the chip among those of the process
	err     error
}

func (c *chip) users() users {
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	u := users{err: c.r.machine.err}
	for _, h := range c.r.machine.holders {
		i := slices.Index(h.chips, c.id.PCI)
		if i < 0 {
			continue
		}
		u.holders = append(u.holders, h)
		if h.service != nil && u.service == nil {
			u.service, u.pid, u.place = c.r.services[h.service.key], h.pid, i
		}
	}
	return u
}

func (u users) alive(root string) bool {
	return !slices.ContainsFunc(u.holders, func(h holder) bool { return !h.alive(root) })
}

// processes returns the users. used is the memory of the process whose runtime answered,
// and of no other.
func (u users) processes(used device.Value) []device.Process {
	var list []device.Process
	for _, h := range u.holders {
		p := device.Process{PID: h.pid, Name: h.name, Type: "compute"}
		if u.service != nil && h.pid == u.pid {
			p.MemoryUsed = used
		}
		list = append(list, p)
	}
	return list
}

// values returns what is known about the chip now: from the runtime of its process, else
// from the exporter, which is also the fallback for a runtime that does not answer.
func (c *chip) values(ctx context.Context, u users) (values, error) {
	var failed error
	if u.service != nil {
		rep, ok, err := u.service.get(ctx)
		if err != nil {
			failed = fmt.Errorf("runtime of process %d: %w", u.pid, err)
		}
		if ok && u.place < len(rep.chips) {
			v := rep.chips[u.place]
			if u.place == 0 {
				// Latencies that belong to the process rather than to a chip are reported
				// once.
				v.latencies = slices.Concat(v.latencies, rep.latencies)
			}
			return v, failed
		}
	}
	page := c.r.exporterPage()
	if page == nil {
		return values{}, failed
	}
	all, ok, err := page.get(ctx)
	if !ok {
		if err != nil && c.r.opts.Exporter != "" { // the exporter was configured explicitly
			failed = errors.Join(failed, fmt.Errorf("exporter: %w", err))
		}
		return values{}, failed
	}
	v, err := c.onPage(all)
	if err != nil {
		return values{}, errors.Join(failed, fmt.Errorf("exporter: %w", err))
	}
	return v, nil
}

// onPage returns what the exporter reports for this chip.
func (c *chip) onPage(all map[string]values) (values, error) {
	c.r.mu.Lock()
	n, mine := len(c.r.order), slices.Index(c.r.order, c)
	c.r.mu.Unlock()
	if mine < 0 {
		return values{}, nil // a discovery replaced this Device meanwhile
	}
	return pick(all, n, c.gen.perChip, mine)
}

// numbered returns the aliases of a chip that the device plugin and the DRA driver know by
// a bare number. The prefix distinguishes it from other vendors' numbers.
func numbered(n string) []string { return []string{"google.com/" + n, "tpu.google.com/" + n} }
