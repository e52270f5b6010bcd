//go:build linux

package amd

import (
	"fmt"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/sysfs"
)

// pcieCounters are the table's PCIe link counters, from v1.4 on. Traffic is not read
// because the unit of pcie_bandwidth_acc and _inst is not settled.
var pcieCounters = [...]struct{ column, kind string }{
	{"pcie_l0_to_recov_count_acc", "l0_to_recovery"},
	{"pcie_replay_rover_count_acc", "replay_rollover"},
	{"pcie_nak_sent_count_acc", "naks_sent"},
	{"pcie_nak_rcvd_count_acc", "naks_received"},
	{"pcie_lc_perf_other_end_recovery", "other_end_recovery"},
}

// generation returns a PCIe generation, or absent for 0.
func generation(n int) device.Value {
	if n == 0 {
		return device.Value{}
	}
	return device.Of(float64(n))
}

// readPCIe prefers the table: a Radeon sits behind its own switch, and the sysfs files
// describe the link between the two.
func (g *gpu) readPCIe() {
	const tenths = 10 // the table's unit is 0.1 GT/s
	var p device.PCIe
	rate, _ := g.m.get("pcie_link_speed").Div(tenths).Get()
	p.Generation = generation(sysfs.Generation(rate))
	if !p.Generation.OK() {
		p.Generation = generation(sysfs.LinkGeneration(g.text(g.dir, "current_link_speed")))
	}
	p.Width = lanes(g.m.get("pcie_link_width"))
	if !p.Width.OK() {
		p.Width = lanes(g.number(g.dir, "current_link_width", 1))
	}
	p.GenerationMax = generation(sysfs.LinkGeneration(g.text(g.dir, "max_link_speed")))
	p.WidthMax = lanes(g.number(g.dir, "max_link_width", 1))
	p.Replays = g.m.get("pcie_replay_count_acc")
	if !p.Replays.OK() {
		p.Replays = g.number(g.dir, "pcie_replay_count", 1)
	}
	for i, c := range pcieCounters {
		if raw, ok := g.m.raw(c.column, 0, 0); ok {
			total := g.naks[i].add(raw, g.m.columns[c.column].kind)
			p.Errors = append(p.Errors, device.ErrorCount{Type: c.kind, Count: device.Of(float64(total))})
		}
	}
	p.Errors = append(p.Errors, g.aer...)
	g.sample.PCIe = p
}

// lanes drops invalid widths: a driver reports an unknown width as 0, and the kernel as
// 255.
func lanes(v device.Value) device.Value {
	if n, ok := v.Get(); !ok || n < 1 || n > 32 {
		return device.Value{}
	}
	return v
}

// aerFiles are the kernel's link error counters, and the line that holds the total.
var aerFiles = []struct{ file, line, kind string }{
	{"aer_dev_correctable", "TOTAL_ERR_COR", "correctable"},
	{"aer_dev_nonfatal", "TOTAL_ERR_NONFATAL", "non_fatal"},
	{"aer_dev_fatal", "TOTAL_ERR_FATAL", "fatal"},
}

func (g *gpu) readAER() {
	g.aer = nil
	for _, f := range aerFiles {
		text := g.text(g.dir, f.file)
		if text == "" {
			continue
		}
		n, ok := parseProperties(text)[f.line]
		if !ok {
			g.fail(fmt.Errorf("cannot parse %s: no line %s", g.dir.Join(f.file), f.line))
			continue
		}
		g.aer = append(g.aer, device.ErrorCount{Type: f.kind, Count: device.Of(float64(n))})
	}
}

// readXGMI reads the links between GPUs: KiB transferred, from v1.4 on, and whether they
// are up, from v1.7 on. The file xgmi_error is never read because reading clears it.
func (g *gpu) readXGMI() {
	const kibi, bitsPerByte, giga = 1024, 8, 1e9
	const up, none = 1, 2
	x := device.Interconnect{Type: "xgmi"}
	lane, _ := g.m.get("xgmi_link_speed").Get() // Gbit/s
	width, _ := g.m.get("xgmi_link_width").Get()
	for i := range max(g.m.count("xgmi_read_data_acc"), g.m.count("xgmi_link_status")) {
		l := device.Link{
			Index: i,
			TX:    g.m.at("xgmi_write_data_acc", 0, i).Scale(kibi),
			RX:    g.m.at("xgmi_read_data_acc", 0, i).Scale(kibi),
		}
		status, known := g.m.at("xgmi_link_status", 0, i).Get()
		if known && status == none || !known && !l.TX.OK() && !l.RX.OK() {
			continue // the board has fewer links than the table
		}
		if known {
			l.Up = device.Flag(status == up)
		}
		if status == up && lane*width > 0 {
			x.BandwidthLimit = add(x.BandwidthLimit, device.Of(lane*width*giga/bitsPerByte))
		}
		g.xgmiTX.Add(i, l.TX)
		g.xgmiRX.Add(i, l.RX)
		x.Links = append(x.Links, l)
	}
	x.TX, x.RX = g.xgmiTX.Total(), g.xgmiRX.Total()
	g.sample.Interconnects = nil
	if len(x.Links) > 0 {
		g.sample.Interconnects = []device.Interconnect{x}
	}
}

// add returns the sum of the present values, absent if both are.
func add(v, w device.Value) device.Value {
	a, ok1 := v.Get()
	b, ok2 := w.Get()
	if !ok1 && !ok2 {
		return device.Value{}
	}
	return device.Of(a + b)
}
