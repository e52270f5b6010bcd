package health

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// xid is what a code means.
type xid struct {
	name    string
	meaning string
	action  action
}

// action is what NVIDIA says to do at once.
type action int

const (
	nothing    action = iota
	restartApp        // the program that did it is at fault, or hit; the GPU goes on
	support
	update
	mechanics
	linkCheck
	resetGPU
	reboot
)

var actions = map[action]struct {
	severity Severity
	class    string
	text     string
}{
	nothing:    {Info, "information", "Nothing. It comes with another error, or is only for knowing."},
	restartApp: {Info, "application", "Start the program again; look at it if it happens again. The GPU is fine unless different programs fail on it."},
	support:    {Warning, "driver", "Run the vendor's diagnosis at the next moment without work, and report it if it comes again."},
	update:     {Warning, "driver", "Update the driver and the firmware."},
	mechanics:  {Warning, "hardware", "Look at the power cables and the seat of the board."},
	linkCheck:  {Warning, "link", "If it comes again, reset the GPUs of the machine together and look at cables and the baseboard."},
	resetGPU:   {Critical, "hardware", "Take work off the GPU and reset it; if that fails, reboot the machine."},
	reboot:     {Critical, "hardware", "Drain the node and reboot it. If the GPU does not come back, look at its power and seat."},
}

// memoryXIDs are about memory, whatever is to be done.
var memoryXIDs = map[int]bool{48: true, 63: true, 64: true, 92: true, 94: true, 95: true, 140: true, 156: true, 157: true, 160: true, 161: true, 168: true, 171: true, 172: true, 175: true}

// XID is one code of NVIDIA's driver, explained.
type XID struct {
	Code     int
	Name     string // as NVIDIA has it; empty: not in the table
	Class    string // application, memory, link, driver, hardware, information, unknown
	Meaning  string
	Severity Severity
	Action   string
	Link     string // of NVLink's codes: which
}

// ExplainXID says what a code means. The message of the driver decides how bad those of
// NVLink 5 are.
func ExplainXID(code int, message string) XID {
	x, ok := xids[code]
	if !ok {
		return XID{
			Code: code, Class: "unknown", Meaning: "an error that is in no list", Severity: Warning,
			Action: "Look it up in the vendor's documentation, and report it if it comes again.",
		}
	}
	a := actions[x.action]
	out := XID{Code: code, Name: x.name, Class: a.class, Meaning: x.meaning, Severity: a.severity, Action: a.text}
	if memoryXIDs[code] {
		out.Class = "memory"
	}
	if code >= 144 && code <= 150 {
		out.nvlink5(message)
	}
	return out
}

// nvlink5Line is unit, severity, containment, injection, link, and registers.
var nvlink5Line = regexp.MustCompile(`^([A-Z_0-9]+(?:/[A-Z_0-9]+)?)\s+(Nonfatal|Fatal)\s+XC[01]\s+i\d+\s+Link\s+(-?\d+)\s+\((0x[0-9a-fA-F]{1,8})\s`)

// nvlink5 reads the line of an error of NVLink 5. NVIDIA's table of them has a reset for
// each fatal one but two of a link that goes down on purpose, and none for the others.
func (x *XID) nvlink5(message string) {
	m := nvlink5Line.FindStringSubmatch(message)
	if m == nil {
		return
	}
	if n, err := strconv.Atoi(m[3]); err == nil && n >= 0 {
		x.Link = strconv.Itoa(n)
	}
	info, _ := strconv.ParseUint(m[4], 0, 32) // eight digits
	reason := info >> 20 & 0x3f
	x.Meaning = fmt.Sprintf("%s reported by %s", x.Meaning[len("NVLink reported "):], strings.ReplaceAll(m[1], "/", " "))
	switch {
	case m[2] == "Nonfatal":
		x.Severity, x.Action = Info, "Nothing at once. If it comes more than once a day, look at the cable and the other end of the link."
	case x.Code == 149 && strings.HasPrefix(m[1], "NETIR_LINK") && (reason == 0b100110 || reason == 0b101000):
		x.Severity, x.Action = Info, "Nothing: the other end took the link down."
	default:
		x.Severity, x.Action = Critical, actions[resetGPU].text
	}
}

// xidFindings judges the errors that the driver reported. One of a program stays for Span, for
// people to see, and does not make the GPU sick. One that asks for a reset stays until the
// counters of the GPU begin anew; if the driver says itself what it needs to recover, and
// needs nothing, for Span too.
func xidFindings(t trail) []Finding {
	var out []Finding
	for _, seen := range t.last.XIDs {
		x := ExplainXID(seen.Code, seen.Message)
		recent := t.now.Sub(seen.Last) < Span
		healed := t.last.Since.After(seen.Last)
		if v, ok := t.last.RecoveryAction.Get(); ok && v == 0 {
			healed = true
		}
		if !recent && (x.Severity != Critical || healed) {
			continue
		}
		key := strconv.Itoa(seen.Code)
		if seen.Link != "" {
			key += " link " + seen.Link
		}
		f := Finding{
			Rule: "gpu.xid", Key: key, Severity: x.Severity, Since: seen.Last, Action: x.Action,
			Reason: fmt.Sprintf("XID %d, %s, %s ago", seen.Code, x.Meaning, span(t.now.Sub(seen.Last))),
			// Of whom it hit, not of who is there now.
			Workloads: seen.Workloads, Evidence: nonEmpty(seen.Message),
		}
		if seen.Count > 1 {
			f.Reason += fmt.Sprintf(", %d in all", seen.Count)
		}
		switch {
		case seen.Process != "":
			f.Reason += fmt.Sprintf(", in %s (pid %d)", seen.Process, seen.PID)
		case seen.PID != 0:
			f.Reason += fmt.Sprintf(", in pid %d", seen.PID)
		}
		out = append(out, f)
	}
	return out
}

// SXIDSeen is an error of an NVSwitch.
type SXIDSeen struct {
	Code    int       `json:"code"`
	PCI     string    `json:"pci"`
	Fatal   bool      `json:"fatal,omitempty"` // in the kernel's words
	Last    time.Time `json:"last"`
	Message string    `json:"message,omitempty"`
}

// always are the codes after which the fabric works again only once the host was
// restarted, of NVIDIA's guide to the fabric manager.
func always(code int) bool {
	switch {
	case code >= 23001 && code <= 23017:
		return true
	case code == 10003 || code == 12020 || code == 22003 || code == 22011:
		return true
	}
	return false
}

// resetSince reports whether all GPUs of NVIDIA that answer began anew after a time.
func (m *Machine) resetSince(t time.Time) bool {
	for _, d := range m.Moments[len(m.Moments)-1].physical() {
		if d.Up && d.ID.Vendor == "nvidia" && !d.Since.After(t) {
			return false
		}
	}
	return true
}

// switches judges the errors of NVSwitch: those of the last minutes, fatal ones until the
// GPUs were reset, and those that only a restart of the host mends.
func switches(m *Machine) []Finding {
	var out []Finding
	now := m.Moments[len(m.Moments)-1].Time
	for _, s := range m.Switches {
		recent := now.Sub(s.Last) < Span
		if !recent && !always(s.Code) && (!s.Fatal || m.resetSince(s.Last)) {
			continue
		}
		f := Finding{
			Rule: "nvswitch.sxid", Key: fmt.Sprintf("%s %d", s.PCI, s.Code), Severity: Info, Since: s.Last, Evidence: nonEmpty(s.Message),
			Reason: fmt.Sprintf("SXID %d of the switch at %s, %s ago", s.Code, s.PCI, span(now.Sub(s.Last))),
			Action: "Nothing at once; watch whether it comes again.",
		}
		switch {
		case always(s.Code):
			f.Severity, f.Action = Critical, "Drain the node and reboot it: the fabric does not come back before."
		case s.Fatal:
			f.Severity, f.Action = Critical, "End the jobs that use the fabric, and reset the GPUs of the machine together."
		}
		out = append(out, f)
	}
	return out
}
