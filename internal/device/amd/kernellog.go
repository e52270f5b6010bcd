//go:build linux

package amd

import (
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gpumeter/gpumeter/internal/device"
)

var (
	// Lines start with "amdgpu 0000:c1:00.0: amdgpu: ", some with a RAS event number or the
	// message's origin before the text. Older lines have no address.
	driverLine = regexp.MustCompile(`^(?:\[drm[^*]*\*ERROR\*\s*|amdgpu(?: ([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]))?:\s*(?:amdgpu:\s*)?(?:\[drm[^*\]]*\]\s*)?)(?:\*ERROR\*\s*)?(?:\{\d+\})?\s*(.*)`)
	lineWho    = regexp.MustCompile(`(?:for|in) process (.*?) ?pid (\d{1,10})`)
	eccLine    = regexp.MustCompile(`(\d+) (new )?(correctable|uncorrectable|deferred) hardware errors detected (?:in total )?in (\w+) block`)
	serial     = regexp.MustCompile(`(?i)serial`)
)

// lineEvents maps line contents to events.
var lineEvents = []struct {
	text *regexp.Regexp
	name string
}{
	{regexp.MustCompile(`(?:correctable|uncorrectable|deferred) hardware errors?\b`), device.EventECC},
	{regexp.MustCompile(`[Pp]oison is (?:created|consumed)`), device.EventECC},
	{regexp.MustCompile(`Saved bad pages \d+ reaches threshold`), device.EventECC},
	{regexp.MustCompile(`Accelerator Check Architecture events logged`), device.EventECC},
	{regexp.MustCompile(`GPU reset begin|GPU reset(?:\(\d+\))? (?:succeeded|failed)|GPU reset end with ret`), device.EventReset},
	{regexp.MustCompile(`(?i)\b(?:mode[12]|baco|psp|pci|asic) reset failed|device wedged`), device.EventReset},
	{regexp.MustCompile(`\bring \S+ timeout`), device.EventHang},
	{regexp.MustCompile(`\b(?:no-retry |retry )?page fault \(`), device.EventHang},
	{regexp.MustCompile(`fence wait loop timeout`), device.EventHang},
}

const (
	maxMessage = 1000 // bytes kept of a line
	maxProcess = 64
)

// parseLine parses a line of the kernel log.
func parseLine(text string) (device.Event, bool) {
	text, _, _ = strings.Cut(text, "\n")
	if !strings.Contains(text, "amdgpu") {
		return device.Event{}, false
	}
	m := driverLine.FindStringSubmatch(text)
	if m == nil {
		return device.Event{}, false
	}
	for _, l := range lineEvents {
		if !l.text.MatchString(m[2]) {
			continue
		}
		e := device.Event{Name: l.name, PCI: pciOf(m[1]), Message: clean(m[2], maxMessage)}
		if who := lineWho.FindStringSubmatch(m[2]); who != nil {
			pid, _ := strconv.ParseUint(who[2], 10, 32) // 0 is unknown
			e.PID, e.Process = uint32(pid), clean(who[1], maxProcess)
		}
		return e, true
	}
	return device.Event{}, false
}

// pciOf converts an address to the form of device.ID.
func pciOf(s string) string {
	s = strings.ToLower(s)
	if domain, rest, ok := strings.Cut(s, ":"); ok && len(domain) == 8 && strings.HasPrefix(domain, "0000") {
		return domain[4:] + ":" + rest
	}
	return s
}

// clean makes a kernel text safe to export.
func clean(s string, limit int) string {
	s = strings.ToValidUTF8(s, "")
	if serial.MatchString(s) {
		return "" // the board's serial number must not be exported
	}
	if len(s) > limit {
		s = s[:limit]
		for !utf8.ValidString(s) {
			s = s[:len(s)-1]
		}
	}
	return strings.TrimSpace(s)
}

// totals detects lines that only sum up: after "3 new correctable hardware errors" the
// driver logs how many there are "in total" in the same block.
type totals map[string]time.Duration

// repeats reports whether a line only restates what a line with new errors just reported.
func (t totals) repeats(pci, text string, at time.Duration) bool {
	const together = 10 * time.Second
	m := eccLine.FindStringSubmatch(text)
	if m == nil {
		return false
	}
	key := pci + " " + m[3] + " " + m[4]
	if m[2] != "" {
		t[key] = at
		return false
	}
	told, ok := t[key]
	return ok && at-told < together
}
