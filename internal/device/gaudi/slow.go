//go:build linux

package gaudi

import (
	"errors"
	"io/fs"
	"slices"
	"strconv"
	"sync"
	"time"
	"unsafe"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/openfiles"
)

// readLink reads the PCI Express link, which the kernel knows without accessing the device.
func (a *aip) readLink() {
	p := &a.sample.PCIe
	p.Generation = parseLinkSpeed(a.attribute(a.pci, "current_link_speed"))
	p.GenerationMax = parseLinkSpeed(a.attribute(a.pci, "max_link_speed"))
	p.Width = width(a.value(a.pci, "current_link_width", 1))
	p.WidthMax = width(a.value(a.pci, "max_link_width", 1))
	// HLML also reports traffic, but without a unit, so it stays absent.
	p.Replays = device.Value{}
	if a.awake() && a.Handle != 0 {
		p.Replays = a.U32("hlml_device_get_pcie_replay_counter")
	}
}

// width drops what the kernel reports for a link that is down: 0, or 255 and above for
// unknown.
func width(v device.Value) device.Value {
	if n, ok := v.Get(); !ok || n <= 0 || n >= 255 {
		return device.Value{}
	}
	return v
}

// readResets reads how often the driver has reset the whole device (hard) or its engines
// (soft).
func (a *aip) readResets() {
	a.sample.Resets = nil
	for _, r := range []struct{ file, kind string }{{"hard_reset_cnt", "hard"}, {"soft_reset_cnt", "soft"}} {
		if n := a.value(a.dir, r.file, 1); n.OK() {
			a.sample.Resets = append(a.sample.Resets, device.ErrorCount{Type: r.kind, Count: n})
		}
	}
}

func (a *aip) readClocks() {
	const mega = 1e6
	a.sample.Clocks = nil
	for i, name := range clockTypes {
		var f device.Value
		if a.Handle != 0 {
			f = a.U32Of("hlml_device_get_clock_info", uint32(i)) // MHz
		}
		limit := a.clocks[i]
		if name == "soc" { // the driver provides this clock, too
			f = f.Or(a.value(a.dir, "clk_cur_freq_mhz", 1))
			limit = limit.Or(a.value(a.dir, "clk_max_freq_mhz", 1).Scale(mega))
		}
		if f.OK() || limit.OK() {
			a.sample.Clocks = append(a.sample.Clocks, device.Clock{Type: name, Frequency: f.Scale(mega), Limit: limit})
		}
	}
}

// sensors are HLML's sensors, by number. Later versions added 3 and above.
var sensors = []struct {
	number uint32
	name   string
}{{0, "edge"}, {1, "board"}, {3, "memory"}, {4, "vreg"}}

func (a *aip) readTemperature() {
	a.sample.Temperatures = nil
	for _, s := range sensors {
		t := a.U32Of("hlml_device_get_temperature", s.number) // °C
		now, ok := t.Get()
		if !ok {
			continue
		}
		caps := map[string][]device.TemperatureCap{"edge": a.edge, "memory": a.hbm}[s.name]
		caps = slices.Clone(caps) // a Sample that was returned must not change
		for i := range caps {
			limit, _ := caps[i].Limit.Get()
			caps[i].Margin = device.Of(limit - now)
		}
		a.sample.Temperatures = append(a.sample.Temperatures, device.Temperature{Sensor: s.name, Value: t, Limits: caps})
	}
}

// ECC counter dimensions, in the order of HLML's enums.
var (
	eccTypes     = [...]string{"corrected", "uncorrected"}
	eccLifetimes = [...]string{"volatile", "aggregate"}
	eccLocations = [...]string{"sram", "dram"}
)

func (a *aip) readECC() {
	var current, pending uint32
	a.sample.Modes.ECC = device.Value{}
	if a.Do("hlml_device_get_ecc_mode", 0, a.Handle, uintptr(unsafe.Pointer(&current)), uintptr(unsafe.Pointer(&pending))) {
		a.sample.Modes.ECC = device.Flag(current != 0)
	}
	a.sample.ECC = nil
	for t, kind := range eccTypes {
		for l, lifetime := range eccLifetimes {
			var n uint64
			sel := uint64(t)<<8 | uint64(l)
			if a.Do("hlml_device_get_total_ecc_errors", sel, a.Handle, uintptr(t), uintptr(l), uintptr(unsafe.Pointer(&n))) {
				a.sample.ECC = append(a.sample.ECC, device.ECC{Type: kind, Lifetime: lifetime, Count: device.Of(float64(n))})
			}
			for p, place := range eccLocations {
				var n uint64
				if a.Do("hlml_device_get_memory_error_counter", sel<<8|uint64(p), a.Handle, uintptr(t), uintptr(l), uintptr(p), uintptr(unsafe.Pointer(&n))) {
					a.sample.ECC = append(a.sample.ECC, device.ECC{Type: kind, Lifetime: lifetime, Location: place, Count: device.Of(float64(n))})
				}
			}
		}
	}
}

// readRows reads how many HBM rows were replaced: for repeated single-bit errors, and for a
// double-bit error. Without an address list the call only counts.
func (a *aip) readRows() {
	rows := func(cause uint32) device.Value {
		var n uint32
		if !a.Do("hlml_device_get_replaced_rows", uint64(cause), a.Handle, uintptr(cause), uintptr(unsafe.Pointer(&n)), 0) {
			return device.Value{}
		}
		return device.Of(float64(n))
	}
	m := device.RowRemap{Corrected: rows(0), Uncorrected: rows(1)}
	if v, ok := a.U32("hlml_device_get_replaced_rows_pending_status").Get(); ok {
		m.Pending = device.Flag(v != 0)
	}
	a.sample.RowRemap = m
}

// readPorts reads which Ethernet ports are up, both inside the server and external. Traffic
// counters are not read: each port costs the firmware 100 ms, more than two seconds per
// accelerator, and users observed that one reading in ten is off by multiples of 4 GiB.
func (a *aip) readPorts() {
	var all, external ports
	a.sample.Interconnects = nil
	if !a.Do("hlml_get_mac_addr_info", 0, a.Handle, uintptr(unsafe.Pointer(&all)), uintptr(unsafe.Pointer(&external))) {
		return
	}
	var links []device.Link
	for _, port := range all.list() {
		var up [8]byte // a C bool, with padding
		if a.Do("hlml_nic_get_link", uint64(port), a.Handle, uintptr(port), uintptr(unsafe.Pointer(&up))) {
			links = append(links, device.Link{Index: port, Up: device.Flag(up[0] != 0)})
		}
	}
	if links != nil {
		a.sample.Interconnects = []device.Interconnect{{Type: "ethernet", Links: links}}
	}
}

// readProcesses finds the processes that have the device file open. A fast Read only checks
// which of them still exist.
func (a *aip) readProcesses(tier device.Tier) {
	if tier >= device.Slow {
		holders, err := a.r.current.of(a.file)
		a.fail(err)
		a.holders = holders
	}
	a.sample.Processes = nil
	for _, pid := range a.holders {
		name, err := a.r.opts.dir("proc", strconv.Itoa(int(pid))).Text("comm")
		if err != nil {
			continue // exited since it was found
		}
		a.sample.Processes = append(a.sample.Processes, device.Process{PID: pid, Name: name, Type: "compute"})
	}
}

// users finds the processes that have a Gaudi device file open. All accelerators share one
// scan of /proc.
type users struct {
	opts Options

	mu     sync.Mutex
	at     time.Time
	byFile map[string][]uint32
	err    error
	denied int // processes whose files may not be read
}

// of returns the processes that have file open, by PID.
func (u *users) of(file string) ([]uint32, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if now := u.opts.Now(); u.byFile == nil || now.Sub(u.at) >= time.Second {
		u.at, u.byFile = now, map[string][]uint32{}
		var files []openfiles.File
		files, u.denied, u.err = openfiles.Below(string(u.opts.dir("proc")), Facts.DeviceFiles...)
		for _, f := range files {
			u.byFile[f.Path] = append(u.byFile[f.Path], f.PID)
		}
		for path, pids := range u.byFile {
			slices.Sort(pids)
			u.byFile[path] = slices.Compact(pids)
		}
		if errors.Is(u.err, fs.ErrNotExist) {
			u.err = nil // the doctor reports a missing /proc
		}
	}
	return u.byFile[file], u.err
}

// hidden returns the number of processes whose files could not be read.
func (u *users) hidden() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.denied
}
