//go:build linux

package intel

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/sysfs"
)

// findLink finds the PCI device at the card's end of the link to the host. Arc and Flex
// cards have their own switch, and behind it a virtual link that always reports 2.5 GT/s
// and one lane. The first device upstream that reports anything else has the real link.
func (g *gpu) findLink() {
	const deepest = 3 // the port to the GPU, the port to the slot, the slot
	g.link = ""
	dir := g.dir
	for range deepest + 1 {
		speed, err := g.text(dir, "max_link_speed")
		if err != nil {
			return
		}
		width, err := g.text(dir, "max_link_width")
		if err != nil {
			return
		}
		if !strings.HasPrefix(speed, "2.5 ") || width != "1" {
			g.link = dir
			return
		}
		dir = sysfs.Dir(filepath.Dir(string(dir)))
	}
}

func (g *gpu) readLink() {
	p := &g.sample.PCIe
	p.Generation, p.GenerationMax, p.Width, p.WidthMax = device.Value{}, device.Value{}, device.Value{}, device.Value{}
	if g.link == "" {
		return
	}
	speed := func(name string) device.Value {
		s, err := g.text(g.link, name)
		if err != nil {
			g.fail(err)
			return device.Value{}
		}
		v, err := generation(s)
		if err != nil {
			g.fail(fmt.Errorf("cannot parse %s: %w", g.link.Join(name), err))
		}
		return v
	}
	p.Generation, p.GenerationMax = speed("current_link_speed"), speed("max_link_speed")
	p.Width, p.WidthMax = lanes(g.number(g.link, "current_link_width")), lanes(g.number(g.link, "max_link_width"))
}

// generation parses a speed such as "16.0 GT/s PCIe". The speed is "Unknown" while the link
// is down.
func generation(s string) (device.Value, error) {
	if gen := sysfs.LinkGeneration(s); gen > 0 {
		return device.Of(float64(gen)), nil
	}
	if number, _, _ := strings.Cut(s, " "); number == "Unknown" {
		return device.Value{}, nil
	}
	return device.Value{}, fmt.Errorf("%.64q is not a link speed", s)
}

// lanes drops 0 and 63, which the kernel reports for a link that is down.
func lanes(v device.Value) device.Value {
	if n, _ := v.Get(); n < 1 || n > 32 {
		return device.Value{}
	}
	return v
}

// aer are the kernel's PCI Express Advanced Error Reporting counters.
var aer = []struct{ file, name, kind string }{
	{"aer_dev_correctable", "TOTAL_ERR_COR", "correctable"},
	{"aer_dev_correctable", "RxErr", "receiver"},
	{"aer_dev_correctable", "BadTLP", "bad_tlp"},
	{"aer_dev_correctable", "BadDLLP", "bad_dllp"},
	{"aer_dev_nonfatal", "TOTAL_ERR_NONFATAL", "non_fatal"},
	{"aer_dev_fatal", "TOTAL_ERR_FATAL", "fatal"},
}

// readErrors adds the errors that the GPU reported to those of the port with the link to
// the host, if there is one. Each device sees only its own errors.
func (g *gpu) readErrors() {
	g.sample.PCIe.Errors = nil
	places := []sysfs.Dir{g.dir}
	if g.link != "" && g.link != g.dir {
		places = append(places, g.link)
	}
	for _, dir := range places {
		for _, file := range []string{"aer_dev_correctable", "aer_dev_nonfatal", "aer_dev_fatal"} {
			text, err := g.text(dir, file)
			if err != nil {
				g.fail(err)
				continue
			}
			counts := parseAER(text)
			if len(counts) == 0 {
				g.fail(fmt.Errorf("cannot parse %s: no counters found", dir.Join(file)))
			}
			for name, n := range counts {
				if g.aer == nil {
					g.aer = map[string]*device.Sum[sysfs.Dir]{}
				}
				if g.aer[file+name] == nil {
					g.aer[file+name] = &device.Sum[sysfs.Dir]{}
				}
				g.aer[file+name].Add(dir, device.Of(float64(n)))
			}
		}
	}
	for _, e := range aer {
		sum := g.aer[e.file+e.name]
		if sum == nil {
			continue
		}
		if v := sum.Total(); v.OK() {
			g.sample.PCIe.Errors = append(g.sample.PCIe.Errors, device.ErrorCount{Type: e.kind, Count: v})
		}
	}
}

// parseAER parses lines of a name and a count.
func parseAER(s string) map[string]uint64 {
	counts := map[string]uint64{}
	for line := range strings.Lines(s) {
		if f := strings.Fields(line); len(f) == 2 {
			if n, err := strconv.ParseUint(f[1], 10, 64); err == nil {
				counts[f[0]] = n
			}
		}
	}
	return counts
}
