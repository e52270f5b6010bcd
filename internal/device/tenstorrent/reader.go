//go:build linux

// Package tenstorrent reads Tenstorrent chips (Grayskull, Wormhole, Blackhole) through the
// files of their kernel driver, tt-kmd: /sys/class/tenstorrent, the hwmon of the PCI device
// and /proc/driver/tenstorrent. It needs no privilege except to find the processes of other
// users, and it opens no device file, so workloads are not disturbed.
//
// The firmware reports clocks, power, temperature and a heartbeat. It reports neither
// utilization nor used memory, so these stay absent. Chips that are reached through another
// chip's Ethernet (the second chip of an n300, most of a Galaxy) are not on PCIe and not in
// sysfs, and are not covered.
package tenstorrent

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/sysfs"
)

// Options configure a Reader.
type Options struct {
	// Root is where the host's file system is mounted; empty means /.
	Root string
	// Machine identifies this machine in the UUIDs of devices without one of their own; see
	// device.Derive.
	Machine string
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

func (o Options) dir(path ...string) sysfs.Dir {
	root := o.Root
	if root == "" {
		root = "/"
	}
	return sysfs.Dir(root).Join(path...)
}

// Reader reads every chip that the driver lists.
type Reader struct {
	opts Options

	mu    sync.Mutex
	chips map[string]*chip // by UUID
}

// Open returns a Reader. The error is device.ErrAbsent on a machine without a chip or its
// driver.
func Open(_ context.Context, o Options) (*Reader, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if len(nodes(o)) == 0 {
		return nil, fmt.Errorf("no Tenstorrent chip in /sys/class/tenstorrent: %w", device.ErrAbsent)
	}
	return &Reader{opts: o, chips: map[string]*chip{}}, nil
}

// Close implements device.Reader. No file stays open between calls.
func (r *Reader) Close() error { return nil }

// node is one entry of the driver's class.
type node struct {
	dir    sysfs.Dir
	number int
}

// nodes returns the driver's chips by number. In sysfs the device file tenstorrent/0
// appears as tenstorrent!0.
func nodes(o Options) []node {
	var list []node
	for _, d := range o.dir("sys/class/tenstorrent").Glob("tenstorrent!*") {
		if n, err := strconv.Atoi(strings.TrimPrefix(d.Base(), "tenstorrent!")); err == nil && n >= 0 {
			list = append(list, node{d, n})
		}
	}
	return list
}

// Devices implements device.Reader.
func (r *Reader) Devices(_ context.Context) ([]device.Device, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var (
		list  []device.Device
		errs  []error
		found = map[string]*chip{}
	)
	for _, n := range nodes(r.opts) {
		id, err := r.identify(n)
		if err != nil {
			errs = append(errs, fmt.Errorf("tenstorrent %d: %w", n.number, err))
			continue
		}
		if other := found[id.UUID]; other != nil {
			errs = append(errs, fmt.Errorf("tenstorrent %d: has the same serial number and chip id as tenstorrent %d", n.number, other.id.Index))
			continue
		}
		c := r.chips[id.UUID]
		if c == nil || c.id != id {
			c = &chip{opts: r.opts, id: id, dir: n.dir, number: n.number}
		}
		found[id.UUID] = c
		list = append(list, c)
	}
	if len(errs) > 0 { // chips that could not be identified may come back
		for uuid, c := range r.chips {
			if found[uuid] == nil {
				found[uuid] = c
			}
		}
	}
	r.chips = found
	return list, errors.Join(errs...)
}

// identify returns the identity of a chip. The firmware does not answer during a reset; a
// chip that is already known then keeps its identity.
func (r *Reader) identify(n node) (device.ID, error) {
	pci := address(n.dir)
	serial, err1 := n.dir.Text("tt_serial")
	asic, err2 := n.dir.Text("tt_asic_id")
	card, err3 := n.dir.Text("tt_card_type")
	for _, err := range []error{err1, err2, err3} {
		switch {
		case errors.Is(err, unix.ENODEV):
			return device.ID{}, fmt.Errorf("the driver released the chip: %w", device.ErrLost)
		case silent(err):
			for _, c := range r.chips {
				if c.dir == n.dir && c.id.PCI == pci && pci != "" {
					return c.id, nil
				}
			}
			return device.ID{}, errors.New("the chip is being reset and cannot be identified yet")
		case err != nil && !sysfs.Absent(err):
			return device.ID{}, fmt.Errorf("cannot identify the chip: %w", err)
		}
	}
	model := "Tenstorrent"
	if arch := architecture(n.dir); arch != "" {
		model += " " + strings.ToUpper(arch[:1]) + arch[1:]
	}
	if card != "" && card != "unknown" {
		model += " " + card
	}
	return device.ID{Vendor: Facts.Name, UUID: r.uuid(serial, asic, pci), Index: n.number, Model: model, PCI: pci}, nil
}

// silent reports whether the firmware does not answer for the moment.
func silent(err error) bool { return errors.Is(err, unix.ENODATA) || errors.Is(err, unix.EAGAIN) }

// uuid returns a stable identifier. The serial number belongs to the board, and a p300 has
// two chips with the same one. Firmware without tag telemetry reports neither serial number
// nor chip id.
func (r *Reader) uuid(serial, asic, pci string) string {
	if serial == "" {
		return device.Derive(Facts.Name, r.opts.Machine, pci)
	}
	if asic == "" {
		asic = pci
	}
	return strings.ToLower(strings.Join([]string{Facts.Name, serial, asic}, "-"))
}

// address returns the PCI address of the chip.
func address(dir sysfs.Dir) string {
	if s, err := dir.Link("device"); err == nil {
		return strings.ToLower(s)
	}
	s, _ := dir.Text("device/uevent") // on failure the address is unknown
	return strings.ToLower(parseUevent(s)["PCI_SLOT_NAME"])
}

// architectures maps PCI device ids of vendor 0x1e52 to chips.
var architectures = map[uint64]string{0xfaca: "grayskull", 0x401e: "wormhole", 0xb140: "blackhole"}

// architecture returns the kind of chip, from its PCI device id or the name of its hwmon.
func architecture(dir sysfs.Dir) string {
	if id, err := dir.Uint("device/device"); err == nil && architectures[id] != "" {
		return architectures[id]
	}
	for _, h := range dir.Glob("device/hwmon/hwmon*") {
		name, _ := h.Text("name") // on failure the name is unknown
		for _, arch := range architectures {
			if name == arch {
				return arch
			}
		}
	}
	return ""
}
