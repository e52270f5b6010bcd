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
	pciPattern = `((?:(?:[0-9a-fA-F]{4}|[0-9a-fA-F]{8}):)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.[0-9a-fA-F])?`
	xidOffBus  = 79 // the GPU has fallen off the bus
)

var (
	// The address may be followed by the MIG instance: "PCI:0000:41:00 GPU-I:02".
	xidLine  = regexp.MustCompile(`NVRM: Xid \((?:PCI:)?` + pciPattern + `(?: GPU-I:([0-9a-fA-F]{1,4}))?[^)]*\)[^:]*: (\d{1,9}),?\s*(.*)`)
	xidWho   = regexp.MustCompile(`^pid=(\d+|'<unknown>')(?:, name=([^,]*))?(?:,\s*|$)`)
	offBus   = regexp.MustCompile(`NVRM:\s+(The NVIDIA )?GPU (?:at )?(?:PCI:)?` + pciPattern + `:?\s+(?:\(PCI ID: [0-9a-fA-F:]+\)\s+installed in this system\s+|GPU\s+)?has\s+fallen off the bus`)
	newLine  = regexp.MustCompile(`\n(?:\s*NVRM:)?`)
	sxidLine = regexp.MustCompile(`nvidia-nvswitch\d+: SXid \((?:PCI:)?` + pciPattern + `\): (\d{1,9}), (.*)`)
	serial   = regexp.MustCompile(`(?i)serial`)
)

// maxMessage bounds how much of a line is kept.
const maxMessage = 1000

// xidRecord is a record of the kernel log about an XID.
type xidRecord struct {
	device.Event
	gi   int        // the GPU instance that the record names, or -1
	form offBusForm // of an XID 79
	// domainless: the address has no PCI domain, and Event.PCI has domain 0.
	domainless bool
}

// parseXID parses a record of the kernel log, which may have several lines. Only a line
// about an XID is ever exported: neighboring lines contain the board's serial number.
func parseXID(text string) (xidRecord, bool) {
	if !strings.Contains(text, "NVRM:") {
		return xidRecord{}, false
	}
	if m := offBus.FindStringSubmatch(newLine.ReplaceAllLiteralString(text, " ")); m != nil {
		e := device.Event{Name: device.EventXID, Code: xidOffBus, PCI: pciOf(m[2]), Message: "GPU has fallen off the bus."}
		form := offBusLine
		if m[1] != "" {
			form = offBusOpen
		}
		return xidRecord{e, -1, form, domainless(m[2])}, true
	}
	for line := range strings.Lines(text) {
		if e, ok := parseXIDLine(line); ok {
			return e, true
		}
	}
	return xidRecord{}, false
}

func parseXIDLine(text string) (xidRecord, bool) {
	m := xidLine.FindStringSubmatch(text)
	if m == nil {
		return xidRecord{}, false
	}
	code, err := strconv.Atoi(m[3])
	if err != nil {
		return xidRecord{}, false
	}
	e := device.Event{Name: device.EventXID, Code: code, PCI: pciOf(m[1])}
	gi := -1
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
	return xidRecord{e, gi, offBusXID, domainless(m[1])}, true
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

func domainless(address string) bool { return strings.Count(address, ":") == 1 }

// pciOf converts an address to the form of device.ID. A GPU is function 0 of its slot.
func pciOf(s string) string {
	s = strings.ToLower(s)
	if domainless(s) {
		s = "0000:" + s
	}
	if domain, rest, _ := strings.Cut(s, ":"); len(domain) == 8 && strings.HasPrefix(domain, "0000") {
		s = domain[4:] + ":" + rest
	}
	return s + ".0"
}

// offBusForm is one of the messages that drivers write when a GPU falls off the bus, and a
// single driver may write all of them.
type offBusForm uint8

const (
	offBusXID  offBusForm = 1 << iota // Xid (...): 79, ...
	offBusLine                        // GPU ...: GPU has fallen off the bus
	offBusOpen                        // The NVIDIA GPU ... has fallen off the bus and is not responding: at every attempt to open it
)

// fallen detects messages that repeat an earlier one.
type fallen map[string]offBusSeen // by PCI address

type offBusSeen struct {
	at    time.Duration
	forms offBusForm
}

// repeats reports whether a message is about a fall that is already known.
func (f fallen) repeats(pci string, at time.Duration, form offBusForm) bool {
	const together = 10 * time.Second
	prev, ok := f[pci]
	switch {
	case ok && form == offBusOpen:
		return true
	case ok && prev.forms&form == 0 && at-prev.at < together:
		f[pci] = offBusSeen{prev.at, prev.forms | form}
		return true
	}
	f[pci] = offBusSeen{at, form}
	return false
}
