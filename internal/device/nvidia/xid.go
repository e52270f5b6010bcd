//go:build linux

package nvidia

import (
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gpumeter/gpumeter/internal/device"
)

const (
	pciPattern = `((?:[0-9a-fA-F]{4}|[0-9a-fA-F]{8}):[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.[0-9a-fA-F])?`
	xidOffBus  = 79 // the GPU has fallen off the bus
)

var (
	// The address may be followed by the MIG instance: "PCI:0000:41:00 GPU-I:02".
	xidLine  = regexp.MustCompile(`NVRM: Xid \((?:PCI:)?` + pciPattern + `(?: GPU-I:([0-9a-fA-F]{1,4}))?[^)]*\)[^:]*: (\d{1,9}),?\s*(.*)`)
	xidWho   = regexp.MustCompile(`^pid=(\d+|'<unknown>')(?:, name=([^,]*))?(?:,\s*|$)`)
	offBus   = regexp.MustCompile(`NVRM:\s+GPU ` + pciPattern + `:\s+GPU has fallen off the bus`)
	sxidLine = regexp.MustCompile(`nvidia-nvswitch\d+: SXid \((?:PCI:)?` + pciPattern + `\): (\d{1,9}), (.*)`)
	serial   = regexp.MustCompile(`(?i)serial`)
)

// maxMessage bounds how much of a line is kept.
const maxMessage = 1000

// parseXID parses a line of the kernel log. Only these lines are ever exported: neighboring
// lines contain the board's serial number.
func parseXID(text string) (device.Event, bool) {
	e, _, ok := parseXIDLine(text)
	return e, ok
}

// parseXIDLine is parseXID that also returns the GPU instance named in the line, or -1.
func parseXIDLine(text string) (e device.Event, gi int, ok bool) {
	text, _, _ = strings.Cut(text, "\n")
	if !strings.Contains(text, "NVRM:") {
		return device.Event{}, -1, false
	}
	if m := offBus.FindStringSubmatch(text); m != nil {
		return device.Event{Name: device.EventXID, Code: xidOffBus, PCI: pciOf(m[1]), Message: "GPU has fallen off the bus."}, -1, true
	}
	m := xidLine.FindStringSubmatch(text)
	if m == nil {
		return device.Event{}, -1, false
	}
	code, err := strconv.Atoi(m[3])
	if err != nil {
		return device.Event{}, -1, false
	}
	e = device.Event{Name: device.EventXID, Code: code, PCI: pciOf(m[1])}
	gi = -1
	if n, err := strconv.ParseUint(m[2], 16, 16); err == nil {
		gi = int(n)
	}
	tail := m[4]
	if who := xidWho.FindStringSubmatch(tail); who != nil {
		pid, _ := strconv.ParseUint(who[1], 10, 32) // 0 is unknown
		e.PID = uint32(pid)
		if e.Process = clean(who[2], 64); e.Process == "<unknown>" {
			e.Process = ""
		}
		tail = tail[len(who[0]):]
	}
	e.Message = clean(tail, maxMessage)
	return e, gi, true
}

// parseSXID parses an NVSwitch error line. Continuation lines that hold only the severity
// and registers of the previous line are rejected.
func parseSXID(text string) (device.Event, bool) {
	text, _, _ = strings.Cut(text, "\n")
	m := sxidLine.FindStringSubmatch(text)
	if m == nil || strings.HasPrefix(m[3], "Data {") || strings.HasPrefix(m[3], "Severity ") {
		return device.Event{}, false
	}
	code, err := strconv.Atoi(m[2])
	if err != nil {
		return device.Event{}, false
	}
	return device.Event{Name: device.EventSXID, Code: code, PCI: pciOf(m[1]), Message: clean(m[3], maxMessage)}, true
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

// pciOf converts an address to the form of device.ID. A GPU is function 0 of its slot.
func pciOf(s string) string {
	s = strings.ToLower(s)
	if domain, rest, _ := strings.Cut(s, ":"); len(domain) == 8 && strings.HasPrefix(domain, "0000") {
		s = domain[4:] + ":" + rest
	}
	return s + ".0"
}

// pairs detects the second of the two lines that a driver may write when a GPU falls off
// the bus: "Xid ...: 79, ..." and "GPU ...: GPU has fallen off the bus".
type pairs map[string]offBusLine // by PCI address

type offBusLine struct {
	at  time.Duration
	xid bool
}

// second reports whether an XID 79 line repeats the other line of its pair.
func (p pairs) second(pci string, at time.Duration, xid bool) bool {
	const together = 10 * time.Second
	if prev, ok := p[pci]; ok && prev.xid != xid && at-prev.at < together {
		delete(p, pci)
		return true
	}
	p[pci] = offBusLine{at, xid}
	return false
}
