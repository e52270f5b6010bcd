package health

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// xid is an entry of the table of codes.
type xid struct {
	name    string
	meaning string
	action  action
}

// action is the immediate action that NVIDIA recommends.
type action int

const (
	nothing    action = iota
	restartApp        // the program is the cause or the victim; the GPU keeps working
	support
	update
	mechanics
	linkCheck
	appOrReset // usually the program; the driver says so if the GPU needs a reset
	resetGPU
	reboot
)

var actions = map[action]struct {
	severity Severity
	class    string
	text     string
}{
	nothing:    {Info, "information", "None. The code accompanies another error or is informational."},
	restartApp: {Info, "application", "Restart the program; debug it if this recurs. The GPU is fine unless different programs fail on it."},
	support:    {Warning, "driver", "Run the vendor's diagnostics when the GPU is next idle, and report the error if it recurs."},
	update:     {Warning, "driver", "Update the driver and the firmware."},
	mechanics:  {Warning, "hardware", "Check the power cables and the seating of the board."},
	linkCheck:  {Warning, "link", "If the error recurs, reset all GPUs of the machine together and check cables and the baseboard."},
	appOrReset: {Warning, "application", "Restart the program. If other programs fail on the GPU too, drain and reset it."},
	resetGPU:   {Critical, "hardware", "Drain and reset the GPU; if that fails, reboot the machine."},
	reboot:     {Critical, "hardware", "Drain the node and reboot it. If the GPU does not come back, check its power and seating."},
}

// memoryXIDs are in the memory class, whatever their action.
var memoryXIDs = map[int]bool{48: true, 63: true, 64: true, 92: true, 94: true, 95: true, 140: true, 156: true, 157: true, 160: true, 161: true, 168: true, 171: true, 172: true, 175: true}

// XID is an explained error code of NVIDIA's driver.
type XID struct {
	Code     int
	Name     string // NVIDIA's name; empty if the code is not in the table
	Class    string // application, memory, link, driver, hardware, information, unknown
	Meaning  string
	Severity Severity
	Action   string
	Link     string // link number, for NVLink codes
}

// ExplainXID explains a code. For NVLink 5 and for a changed recovery action the driver's
// message decides the severity.
func ExplainXID(code int, message string) XID {
	x, ok := xids[code]
	if !ok {
		return XID{
			Code: code, Class: "unknown", Meaning: "an undocumented error", Severity: Warning,
			Action: "Check the vendor's documentation, and report the error if it recurs.",
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
	if code == recoveryXID {
		out.recovery(message)
	}
	return out
}

// recoveryXID announces that the driver's recovery action changed, NVML field 230.
const recoveryXID = 154

var recoveryLine = regexp.MustCompile(`(?i)recovery action changed from 0x[0-9a-f]+ \([^)]*\) to 0x([0-9a-f]{1,8})\b`)

// recovery takes the action from the message of XID 154.
func (x *XID) recovery(message string) {
	m := recoveryLine.FindStringSubmatch(message)
	if m == nil {
		return
	}
	code, _ := strconv.ParseUint(m[1], 16, 32) // at most eight digits
	if code == 0 {
		x.Meaning = "the driver no longer requests a recovery action"
		return
	}
	x.Meaning, x.Action = requested(float64(code))
	x.Severity, x.Class = Critical, "hardware"
}

// nvlink5Line matches unit, severity, containment, injection, link, and registers.
var nvlink5Line = regexp.MustCompile(`^([A-Z_0-9]+(?:/[A-Z_0-9]+)?)\s+(Nonfatal|Fatal)\s+XC[01]\s+i\d+\s+Link\s+(-?\d+)\s+\((0x[0-9a-fA-F]{1,8})\s`)

// nvlink5 parses the message of an NVLink 5 error. NVIDIA's table recommends a reset for
// every fatal error except two of a link that is taken down on purpose, and none for
// nonfatal errors.
func (x *XID) nvlink5(message string) {
	m := nvlink5Line.FindStringSubmatch(message)
	if m == nil {
		return
	}
	if n, err := strconv.Atoi(m[3]); err == nil && n >= 0 {
		x.Link = strconv.Itoa(n)
	}
	info, _ := strconv.ParseUint(m[4], 0, 32) // at most eight digits
	reason := info >> 20 & 0x3f
	x.Meaning = fmt.Sprintf("%s reported by %s", x.Meaning[len("NVLink reported "):], strings.ReplaceAll(m[1], "/", " "))
	switch {
	case m[2] == "Nonfatal":
		x.Severity, x.Action = Info, "None at once. If the error occurs more than once a day, check the cable and the other end of the link."
	case x.Code == 149 && strings.HasPrefix(m[1], "NETIR_LINK") && (reason == 0b100110 || reason == 0b101000):
		x.Severity, x.Action = Info, "None: the other end took the link down."
	default:
		x.Severity, x.Action = Critical, actions[resetGPU].text
	}
}

// xidFindings judges the errors that the driver reported. An application error stays visible
// for Span and does not lower the GPU's score. An error that requires a reset stays until
// the GPU's counters restart; if the driver reports a recovery action and it is "none", the
// error stays for Span as well.
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
			// The workloads affected then, not those running now.
			Workloads: seen.Workloads, Evidence: nonEmpty(seen.Message),
		}
		if seen.Count > 1 {
			f.Reason += fmt.Sprintf(", %d in total", seen.Count)
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

// SXIDSeen is an error reported by an NVSwitch.
type SXIDSeen struct {
	Code    int       `json:"code"`
	PCI     string    `json:"pci"`
	Fatal   bool      `json:"fatal,omitempty"` // as stated in the kernel log
	Last    time.Time `json:"last"`
	Message string    `json:"message,omitempty"`
}

// always reports whether the fabric recovers from a code only by a restart of the host,
// according to NVIDIA's fabric manager guide.
func always(code int) bool {
	switch {
	case code >= 23001 && code <= 23017:
		return true
	case code == 10003 || code == 12020 || code == 22003 || code == 22011:
		return true
	}
	return false
}

// resetSince reports whether the counters of all NVIDIA GPUs that answer restarted after t.
func (m *Machine) resetSince(t time.Time) bool {
	for _, d := range m.Moments[len(m.Moments)-1].physical() {
		if d.Up && d.ID.Vendor == "nvidia" && !d.Since.After(t) {
			return false
		}
	}
	return true
}

// switches judges NVSwitch errors: recent ones, fatal ones until the GPUs were reset, and
// those that require a restart of the host until then.
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
			Reason: fmt.Sprintf("SXID %d from the NVSwitch at %s, %s ago", s.Code, s.PCI, span(now.Sub(s.Last))),
			Action: "None at once; watch for recurrence.",
		}
		switch {
		case always(s.Code):
			f.Severity, f.Action = Critical, "Drain the node and reboot it: the fabric does not recover otherwise."
		case s.Fatal:
			f.Severity, f.Action = Critical, "Stop the jobs that use the fabric, and reset all GPUs of the machine together."
		}
		out = append(out, f)
	}
	return out
}
