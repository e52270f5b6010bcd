//go:build linux

package nvidia

import (
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
)

const (
	kibi = 1024
	mebi = 1024 * kibi
	mega = 1e6
)

// maxLinks is the number of links that NVML can address today.
const maxLinks = 72

// pcieErrors are the error counters of the PCIe link, on Hopper and later. The byte
// counters (fields 197, 198) are 32 bits wide and wrap within 0.1 s at full speed, so they
// are never read.
var pcieErrors = []struct {
	id   uint32
	kind string
}{
	{169, "l0_to_recovery"},
	{173, "correctable"},
	{174, "naks_received"},
	{175, "receiver"},
	{176, "bad_tlp"},
	{177, "naks_sent"},
	{178, "bad_dllp"},
	{179, "non_fatal"},
	{180, "fatal"},
	{181, "unsupported_request"},
	{182, "lcrc"},
	{183, "lane"},
}

func (g *gpu) readPCIe() {
	p := &g.sample.PCIe
	p.Generation = g.U32("nvmlDeviceGetCurrPcieLinkGeneration")
	p.Width = g.U32("nvmlDeviceGetCurrPcieLinkWidth")
	p.Replays = g.U32("nvmlDeviceGetPcieReplayCounter")

	ask := make([]field, len(pcieErrors))
	for i, e := range pcieErrors {
		ask[i] = field{e.id, 0}
	}
	got := g.fields(ask...)
	p.Errors = nil
	for _, e := range pcieErrors {
		if v := got[field{e.id, 0}]; v.OK() {
			p.Errors = append(p.Errors, device.ErrorCount{Type: e.kind, Count: v})
		}
	}
	g.readPCIeThroughput()
}

// readPCIeThroughput measures PCIe traffic on GPUs without profiling counters for it. The
// driver observes the link for 20 ms per direction, so it runs at most every 30 s.
func (g *gpu) readPCIeThroughput() {
	const tx, rx = 0, 1
	now := g.r.opts.Now()
	if g.arch >= archHopper || g.r.opts.NoPCIeThroughput || now.Sub(g.pcieAsked) < 30*time.Second {
		return
	}
	g.pcieAsked = now
	g.pcie.TXRate = g.U32Of("nvmlDeviceGetPcieThroughput", tx).Scale(kibi)
	g.pcie.RXRate = g.U32Of("nvmlDeviceGetPcieThroughput", rx).Scale(kibi)
}

// linkField is an error counter of one NVLink, or of all links with scope allLinks.
type linkField struct {
	id   uint32
	kind string
}

// nvlink4 and nvlink5 are the counters of each generation. NVLink 5, on Blackwell and
// later, counts bytes; earlier generations count KiB.
var (
	nvlink4 = nvlinkFields{tx: 138, rx: 139, unit: kibi, total: []linkField{
		{38, "crc_flit"}, {45, "crc_data"}, {52, "replay"}, {59, "recovery"}, {160, "ecc"},
	}, link: []linkField{
		{161, "replay"}, {162, "recovery"}, {163, "crc"},
	}}
	nvlink5 = nvlinkFields{tx: 202, rx: 204, unit: 1, link: []linkField{
		{206, "malformed_packet"},
		{207, "buffer_overrun"},
		{208, "receive"},
		{211, "link_integrity"},
		{214, "recovery_failed"},
		{215, "recovery"},
		{219, "effective"},
		{221, "symbol"},
	}}
)

type nvlinkFields struct {
	tx, rx      uint32
	unit        float64     // bytes per count
	total, link []linkField // an empty total means the sum over the links
}

func (g *gpu) readNVLink() {
	const state, speed = 165, 164
	gen := &nvlink4
	if g.arch > archHopper {
		gen = &nvlink5
	}
	n := device.Interconnect{Type: "nvlink"}
	for l := range uint32(g.links) {
		ask := []field{{state, l}, {speed, l}, {gen.tx, l}, {gen.rx, l}}
		for _, e := range gen.link {
			ask = append(ask, field{e.id, l})
		}
		got := g.fields(ask...)
		up := got[field{state, l}]
		if !up.OK() {
			continue // the board has fewer links than the chip
		}
		link := device.Link{
			Index: int(l), Up: device.Flag(up == device.Of(1)),
			TX: got[field{gen.tx, l}].Scale(gen.unit), RX: got[field{gen.rx, l}].Scale(gen.unit),
		}
		for _, e := range gen.link {
			if v := got[field{e.id, l}]; v.OK() {
				link.Errors = append(link.Errors, device.ErrorCount{Type: e.kind, Count: v})
			}
		}
		if link.Up == device.Of(1) {
			n.BandwidthLimit = add(n.BandwidthLimit, got[field{speed, l}].Scale(mega))
		}
		n.Links = append(n.Links, link)
	}
	if len(n.Links) == 0 {
		g.nvlink = device.Interconnect{}
		return
	}
	g.totalNVLink(gen, &n)
	g.nvlink = n
}

// linkSum is one of the counters that are summed over all links: tx, rx, or a kind of error.
type linkSum string

// sum adds up one counter of all links.
func (g *gpu) sum(kind linkSum, links []device.Link, counter func(device.Link) device.Value) device.Value {
	if g.linkSums == nil {
		g.linkSums = map[linkSum]*device.Sum[int]{}
	}
	s := g.linkSums[kind]
	if s == nil {
		s = &device.Sum[int]{}
		g.linkSums[kind] = s
	}
	for _, l := range links {
		s.Add(l.Index, counter(l))
	}
	return s.Total()
}

// totalNVLink fills in the totals over all links: the driver's own where it has them, else
// the sum. A total that came from the driver once is absent when the driver does not answer,
// because the sum may be another number.
func (g *gpu) totalNVLink(gen *nvlinkFields, n *device.Interconnect) {
	n.TX = g.sum("tx", n.Links, func(l device.Link) device.Value { return l.TX })
	n.RX = g.sum("rx", n.Links, func(l device.Link) device.Value { return l.RX })
	if len(gen.total) == 0 {
		for _, e := range gen.link {
			count := g.sum(linkSum(e.kind), n.Links, func(l device.Link) device.Value {
				for _, c := range l.Errors {
					if c.Type == e.kind {
						return c.Count
					}
				}
				return device.Value{}
			})
			if count.OK() {
				n.Errors = append(n.Errors, device.ErrorCount{Type: e.kind, Count: count})
			}
		}
		return
	}
	ask := []field{{gen.tx, allLinks}, {gen.rx, allLinks}}
	for _, e := range gen.total {
		ask = append(ask, field{e.id, 0})
	}
	got := g.fields(ask...)
	tx, rx := got[field{gen.tx, allLinks}].Scale(gen.unit), got[field{gen.rx, allLinks}].Scale(gen.unit)
	if g.ownTotals = g.ownTotals || tx.OK() && rx.OK(); g.ownTotals {
		n.TX, n.RX = tx, rx
	}
	for _, e := range gen.total {
		if v := got[field{e.id, 0}]; v.OK() {
			n.Errors = append(n.Errors, device.ErrorCount{Type: e.kind, Count: v})
		}
	}
}

// readC2C reads the chip-to-chip links between a Grace CPU and its GPU.
func (g *gpu) readC2C() {
	const count, status, maxMBps = 170, 171, 172
	g.c2c = device.Interconnect{}
	n, ok := g.fieldOf(count, 0).Get()
	if !ok || n == 0 {
		return
	}
	c := device.Interconnect{Type: "c2c"}
	for l := range min(uint32(n), maxLinks) {
		got := g.fields(field{status, l}, field{maxMBps, l}, field{231, l}, field{232, l}, field{233, l})
		link := device.Link{Index: int(l), Up: got[field{status, l}]}
		for _, e := range []linkField{{231, "crc"}, {232, "replay"}, {233, "replay_back_to_back"}} {
			if v := got[field{e.id, l}]; v.OK() {
				link.Errors = append(link.Errors, device.ErrorCount{Type: e.kind, Count: v})
			}
		}
		if link.Up == device.Of(1) {
			c.BandwidthLimit = add(c.BandwidthLimit, got[field{maxMBps, l}].Scale(mega))
		}
		c.Links = append(c.Links, link)
	}
	g.c2c = c
}

// joinInterconnects puts the slow counters and the fast rates into the Sample.
func (g *gpu) joinInterconnects() {
	var list []device.Interconnect
	p := g.pcie
	p.Type = "pcie"
	if g.arch >= archHopper {
		p.TXRate, p.RXRate = g.gpm.rate(gpmPCIeTX), g.gpm.rate(gpmPCIeRX)
	}
	if p.TXRate.OK() || p.RXRate.OK() {
		list = append(list, p)
	}
	if n := g.nvlink; n.Type != "" {
		n.TXRate, n.RXRate = g.gpm.rate(gpmNVLinkTX), g.gpm.rate(gpmNVLinkRX)
		list = append(list, n)
	}
	if g.c2c.Type != "" {
		list = append(list, g.c2c)
	}
	g.sample.Interconnects = list
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
