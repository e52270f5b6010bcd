//go:build linux

package amd

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpumeter/gpumeter/internal/device"
)

// eccTypes are the counters in a file of the RAS driver.
var eccTypes = [...]struct{ key, kind string }{
	{"ce", "corrected"},
	{"ue", "uncorrected"},
	{"de", "deferred"},
}

// readRAS reads the error counters of each GPU block, and their sums. The counters start at
// driver load. A block without a file is not covered by RAS.
func (g *gpu) readRAS() {
	const suffix = "_err_count"
	g.sample.ECC, g.sample.Modes.ECC = nil, g.memoryECC()
	var blocks []device.ECC
	for _, f := range g.dir.Glob("ras/*" + suffix) {
		text, err := f.Text(g.at(f, ""))
		if err != nil {
			g.fail(err)
			continue
		}
		counts, err := parseRAS(text)
		if err != nil {
			g.fail(fmt.Errorf("cannot parse %s: %w", f, err))
			continue
		}
		for i, t := range eccTypes {
			if v, ok := counts[t.key]; ok {
				n := device.Of(float64(v))
				g.eccSums[i].Add(f.Base(), n)
				blocks = append(blocks, device.ECC{
					Type: t.kind, Lifetime: "volatile", Location: strings.TrimSuffix(f.Base(), suffix), Count: n,
				})
			}
		}
	}
	for i, t := range eccTypes {
		if sum := g.eccSums[i].Total(); sum.OK() {
			g.sample.ECC = append(g.sample.ECC, device.ECC{Type: t.kind, Lifetime: "volatile", Count: sum})
		}
	}
	g.sample.ECC = append(g.sample.ECC, blocks...)
}

// parseRAS parses lines such as "ue: 0".
func parseRAS(text string) (map[string]uint64, error) {
	counts := map[string]uint64{}
	for line := range strings.Lines(text) {
		key, number, _ := strings.Cut(strings.TrimSpace(line), ":")
		v, err := strconv.ParseUint(strings.TrimSpace(number), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%q is not a count", short(line))
		}
		counts[key] = v
	}
	return counts, nil
}

func short(s string) string { return strings.TrimSpace(s[:min(len(s), 64)]) }

// memoryECC reads whether memory errors are corrected, which is bit 0 of the feature mask.
func (g *gpu) memoryECC() device.Value {
	text := g.text(g.dir, "ras/features")
	if text == "" {
		return device.Value{}
	}
	_, mask, _ := strings.Cut(text, "feature mask:")
	mask, _, _ = strings.Cut(strings.TrimSpace(mask), "\n")
	v, err := strconv.ParseUint(mask, 0, 64)
	if err != nil {
		g.fail(fmt.Errorf("cannot parse %s: %q has no feature mask", g.dir.Join("ras/features"), short(text)))
		return device.Value{}
	}
	return device.Flag(v&1 != 0)
}

// maxBadPages bounds the list of bad pages in bytes. The driver asks for a replacement GPU
// long before.
const maxBadPages = 1 << 20

// readBadPages reads the list of retired memory pages. Pages are retired for uncorrectable
// errors.
func (g *gpu) readBadPages() {
	g.sample.PageRetirement = device.PageRetirement{}
	name := "ras/gpu_vram_bad_pages"
	text, err := readAll(string(g.dir.Join(g.at(g.dir, name))), maxBadPages)
	if err != nil {
		g.fail(err)
		return
	}
	retired, pending, failed, err := parseBadPages(text)
	if err != nil {
		g.fail(fmt.Errorf("cannot parse %s: %w", g.dir.Join(name), err))
		return
	}
	g.sample.PageRetirement = device.PageRetirement{
		Uncorrected: device.Of(float64(retired)), Pending: device.Flag(pending > 0), Failure: device.Flag(failed > 0),
	}
}

// readAll reads a file that is longer than a page. The driver returns at most a page per
// read.
func readAll(path string, limit int) (string, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { _ = unix.Close(fd) }() // read-only: nothing to flush
	b := make([]byte, 0, 4096)
	for len(b) < limit {
		b = append(b, make([]byte, 4096)...)
		end := len(b) - 4096
		n, err := unix.Read(fd, b[end:])
		if errors.Is(err, unix.EINTR) {
			n = 0
		} else if err != nil {
			return "", &fs.PathError{Op: "read", Path: path, Err: err}
		}
		b = b[:end+n]
		if n == 0 && err == nil {
			return string(b), nil
		}
	}
	return "", fmt.Errorf("%s is too long: more than %d bytes", filepath.Base(path), limit)
}

// parseBadPages counts lines such as "0x00000123 : 0x00001000 : R" by their last letter:
// retired, pending until the page is unused, and failed.
func parseBadPages(text string) (retired, pending, failed int, err error) {
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		switch line[strings.LastIndexByte(line, ':')+1:] {
		case " R", "R":
			retired++
		case " P", "P":
			pending++
		case " F", "F":
			failed++
		default:
			return 0, 0, 0, fmt.Errorf("%q is not a page", short(line))
		}
	}
	return retired, pending, failed, nil
}
