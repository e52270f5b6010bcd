//go:build linux

package check

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/health"
	"github.com/gpumeter/gpumeter/internal/kmsg"
	"github.com/gpumeter/gpumeter/internal/sysfs"
)

// maxLines bounds the kernel log to its newest lines: a failing driver writes thousands of
// lines per second.
const maxLines = 20_000

// repaired is the marker that root writes to /dev/kmsg after a repair without a reboot:
// earlier lines no longer count.
const repaired = "gpumeter: repaired"

// kernelLog holds the kernel's messages since boot or repair, as far as the buffer reaches.
type kernelLog []kernelLine

type kernelLine struct {
	age  time.Duration
	text string
}

func (h *host) sys(path string) sysfs.Dir  { return sysfs.Dir(filepath.Join(h.Root, "sys", path)) }
func (h *host) proc(path string) sysfs.Dir { return sysfs.Dir(filepath.Join(h.Root, "proc", path)) }

func (h *host) uptime() (time.Duration, error) {
	text, err := h.proc("").Text("uptime")
	if err != nil {
		return 0, err
	}
	return kmsg.ParseUptime(shorten(text))
}

func (h *host) readLog() (kernelLog, error) {
	up, err := h.uptime()
	if err != nil {
		return nil, err
	}
	var all kernelLog
	err = kmsg.Each(filepath.Join(h.Root, "dev/kmsg"), func(r kmsg.Record) {
		switch {
		case strings.HasPrefix(r.Text, repaired):
			all = all[:0]
		case r.Kernel(): // programs can write to the log too, but not with the kernel's facility
			if len(all) == 2*maxLines {
				all = append(all[:0], all[maxLines:]...)
			}
			all = append(all, kernelLine{max(up-r.Time, 0), r.Text})
		}
	})
	return all[max(0, len(all)-maxLines):], err
}

// pattern is a message that indicates a problem.
type pattern struct {
	word   string // substring of every match, for a fast pre-check
	re     *regexp.Regexp
	status Status
	least  int // minimum number of matches
	// sticky marks defects that do not heal: they count until a reboot or a repair. Other
	// messages count within the window.
	sticky bool
	action string
}

// disk matches disks of the node, but not images that a job mounted.
const disk = `(?:sd|nvme|vd|dm-|md)`

// patterns are messages of the kernel itself. The drivers of accelerators have their own,
// device.Vendor.Messages.
var patterns = []pattern{
	{"Hardware Error", regexp.MustCompile(`\[Hardware Error\].*(?:Uncorrected|Uncorrectable|uncorrected|Fatal|fatal)`), Critical, 1, true, "Processor or memory defect: drain the node, and check the BMC's event log."},
	{"EDAC", regexp.MustCompile(`EDAC .*\bUE\b`), Critical, 1, true, "Uncorrected memory error: drain the node and replace the module."},
	{"EDAC", regexp.MustCompile(`EDAC .*\bCE\b`), Warning, 100, false, "A memory module has many corrected errors: schedule its replacement."},
	{"LOCKUP", regexp.MustCompile(`(?:watchdog|NMI).*hard LOCKUP`), Critical, 1, true, "A processor hung: drain the node and reboot it."},
	{"soft lockup", regexp.MustCompile(`BUG: soft lockup`), Warning, 1, false, "A processor was blocked for too long: see the following lines in the kernel log."},
	{"detected stalls", regexp.MustCompile(`rcu.*detected stalls`), Warning, 1, false, "A processor was blocked for too long: see the following lines in the kernel log."},
	{"blocked for more", hungTask, Warning, 1, false, "A process waits for a disk, a file server or a driver that does not answer: see process.stuck."},
	{"nvme", regexp.MustCompile(`nvme\S*: .*(?:controller is down|Removing after probe failure|Device not ready)`), Critical, 1, true, "The disk is gone: drain the node and replace it."},
	{"timeout", regexp.MustCompile(`nvme\S*: I/O .*timeout`), Warning, 1, false, "The disk did not answer in time: see disk.smart, and check its slot."},
	{"critical medium", regexp.MustCompile(`critical medium error, dev ` + disk), Critical, 1, true, "The disk lost data: replace it."},
	{"I/O error", regexp.MustCompile(`I/O error, dev ` + disk), Warning, 1, false, "See disk.smart, and check the disk's cables and slot."},
	{"EXT4-fs", regexp.MustCompile(`EXT4-fs error \(device ` + disk + `|EXT4-fs \(` + disk + `\S*\): Remounting filesystem read-only`), Critical, 1, true, "A file system is corrupt: drain the node and check it."},
	{"XFS", regexp.MustCompile(`XFS \(` + disk + `\S*\): .*(?:Corruption|[Ss]hutting down)`), Critical, 1, true, "A file system is corrupt: drain the node and check it."},
	{"BTRFS", regexp.MustCompile(`BTRFS.*\(device ` + disk + `.*forced readonly`), Critical, 1, true, "A file system is corrupt: drain the node and check it."},
	{"AER", regexp.MustCompile(`AER: .*[Uu]ncorrect(?:ed|able) \(Fatal\)`), Critical, 1, true, "A PCI Express device had a fatal error: drain the node, and check the device's seating."},
	{"AER", regexp.MustCompile(`AER: .*[Uu]ncorrect(?:ed|able) \(Non-Fatal\)`), Warning, 1, false, "A PCI Express device had an error: watch for recurrence, and check the device's seating."},
	// A single flap is a moved cable or a restarted switch.
	{"ink", regexp.MustCompile(`mlx\d_core \S+ .*[Ll]ink down|NIC Link is Down|mlx\d_core \S+: Port: \d+ Link DOWN`), Warning, 3, false, "A network link is flapping: check its cable and transceiver."},
}

// withDrivers returns the patterns of the kernel and of the vendors' drivers.
func withDrivers(vendors device.Vendors) []pattern {
	all := slices.Clone(patterns)
	for i := range vendors {
		for _, m := range vendors[i].Messages {
			p := pattern{word: m.Contains, re: regexp.MustCompile(m.Pattern), status: Warning, least: 1, action: m.Action}
			if m.Critical {
				p.status = Critical
			}
			all = append(all, p)
		}
	}
	return all
}

var (
	nfsLost = regexp.MustCompile(`nfs: server (\S+) not responding`)
	nfsBack = regexp.MustCompile(`nfs: server (\S+) OK`)
	oom     = regexp.MustCompile(`Out of memory: Killed process|Memory cgroup out of memory: Killed process`)
)

// unread is the outcome for a log that cannot be read, which is not a problem of the machine.
func unread(err error) outcome {
	if errors.Is(err, fs.ErrPermission) {
		return skip("%v: run as root, or with CAP_SYSLOG", err)
	}
	return skip("%v", err)
}

func kernelMessages(_ context.Context, h *host) outcome {
	log, err := h.log()
	if err != nil {
		return unread(err)
	}
	bad, killed := judgeLog(log, h.Window, h.patterns)
	text := fmt.Sprintf("no problems in %d lines", len(log))
	if killed > 0 { // typically jobs that requested too little memory
		text += fmt.Sprintf(", %d processes killed for lack of memory", killed)
	}
	return found(bad, "%s", text)
}

// judgeLog returns the problems in the log and the number of processes killed for lack of
// memory, which is usually the job's fault.
func judgeLog(log kernelLog, window time.Duration, patterns []pattern) (bad []Problem, killed int) {
	count := make([]int, len(patterns))
	last := make([]kernelLine, len(patterns))
	lost := map[string]kernelLine{}
	for _, l := range log {
		recent := l.age <= window
		for i, p := range patterns {
			if (recent || p.sticky) && strings.Contains(l.text, p.word) && p.re.MatchString(l.text) {
				count[i]++
				last[i] = l
				break
			}
		}
		if !recent {
			continue
		}
		if m := nfsLost.FindStringSubmatch(l.text); m != nil && len(lost) < maxProblems {
			lost[m[1]] = l
		} else if m := nfsBack.FindStringSubmatch(l.text); m != nil {
			delete(lost, m[1])
		}
		if oom.MatchString(l.text) {
			killed++
		}
	}
	for i, p := range patterns {
		if count[i] >= p.least {
			bad = append(bad, Problem{p.status, "", fmt.Sprintf("%s, the last %s ago: %s", times(count[i]), span(last[i].age), shorten(last[i].text)), p.action})
		}
	}
	for _, server := range slices.Sorted(maps.Keys(lost)) {
		bad = append(bad, Problem{Warning, "NFS server " + shorten(server), "no response for " + span(lost[server].age), "Check the file server and the network to it; processes that use it cannot exit."})
	}
	return bad, killed
}

// Messages of NVIDIA's driver.
var (
	xidLine  = regexp.MustCompile(`NVRM: Xid \((?:PCI:)?([0-9a-fA-F:]{5,16})[^)]*\)[^:]*: (\d{1,9}),?\s*(.*)`)
	xidWho   = regexp.MustCompile(`^pid=(?:\d+|'<unknown>')(?:, name=[^,]*)?(?:,\s*|$)`)
	offBus   = regexp.MustCompile(`NVRM:\s+(?:The NVIDIA )?GPU (?:at )?(?:PCI:)?([0-9a-fA-F:]{5,16})\S*\s+(?:\(PCI ID: [0-9a-fA-F:]+\)\s+installed in this system\s+|GPU\s+)?has\s+fallen off the bus`)
	newLine  = regexp.MustCompile(`\n(?:\s*NVRM:)?`)
	sxidLine = regexp.MustCompile(`nvidia-nvswitch\d+: SXid \((?:PCI:)?([0-9a-fA-F:.]{5,18})\): (\d{1,9}), (Fatal|Non-fatal)?`)
)

type xidSeen struct {
	pci     string // domain:bus:device, lower case
	code    int
	message string
}

func parseXID(text string) (x xidSeen, ok bool) {
	// A record may have several lines.
	if m := offBus.FindStringSubmatch(newLine.ReplaceAllLiteralString(text, " ")); m != nil {
		return xidSeen{slot(strings.TrimSuffix(m[1], ":")), 79, ""}, true
	}
	m := xidLine.FindStringSubmatch(text)
	if m == nil {
		return x, false
	}
	code, err := strconv.Atoi(m[2])
	if err != nil {
		return x, false
	}
	return xidSeen{slot(m[1]), code, xidWho.ReplaceAllString(m[3], "")}, true
}

// slot returns domain (last four digits), bus and device of a PCI address.
func slot(pci string) string {
	pci = strings.ToLower(pci)
	pci, _, _ = strings.Cut(pci, ".")
	parts := strings.Split(pci, ":")
	if len(parts) == 2 {
		parts = append([]string{"0000"}, parts...)
	}
	if d := parts[0]; len(d) > 4 {
		parts[0] = d[len(d)-4:]
	}
	return strings.Join(parts, ":")
}

// xids judges NVIDIA's errors by class. Application errors never fail the check. An error
// that requires a reset is a warning, within the window, once the driver reports that the
// GPU needs no recovery: a repaired node must not be drained again. Drivers that do not
// report this keep the error until a reboot or a repair. Other errors count within the
// window.
func xids(ctx context.Context, h *host) outcome {
	m, list, o := h.physical(ctx)
	if o != nil && !o.skipped {
		return *o
	}
	log, err := h.log()
	if err != nil {
		return unread(err)
	}
	type key struct {
		pci  string
		code int
	}
	count, last, order := map[key]int{}, map[key]kernelLine{}, []key(nil)
	message := map[key]string{}
	var bad []Problem
	for _, l := range log {
		x, ok := parseXID(l.text)
		if !ok {
			if s := sxidLine.FindStringSubmatch(l.text); s != nil && s[3] == "Fatal" && len(bad) < maxProblems {
				bad = append(bad, Problem{Critical, "NVSwitch " + s[1], fmt.Sprintf("fatal SXid %s, %s ago", s[2], span(l.age)), "Stop the jobs that use the fabric, and reset all GPUs of the machine together; reboot it if that fails."})
			}
			continue
		}
		k := key{x.pci, x.code}
		if count[k] == 0 {
			if len(order) == maxProblems*10 {
				continue
			}
			order = append(order, k)
		}
		count[k]++
		last[k], message[k] = l, x.message
	}
	harmless := 0
	for _, k := range order {
		x := health.ExplainXID(k.code, message[k])
		i := slices.IndexFunc(list, func(d health.Device) bool { return d.ID.PCI != "" && slot(d.ID.PCI) == k.pci })
		if i < 0 { // a GPU of another job, or one that is gone
			if h.Mine == nil && x.Severity == health.Critical {
				bad = append(bad, Problem{Critical, "GPU at " + k.pci, fmt.Sprintf("XID %d, %s, %s ago, and the driver no longer lists the GPU", k.code, x.Meaning, span(last[k].age)), x.Action})
			}
			continue
		}
		status := map[health.Severity]Status{health.Warning: Warning, health.Critical: Critical}[x.Severity]
		if status == "" {
			if last[k].age <= h.Window {
				harmless += count[k]
			}
			continue
		}
		reason := fmt.Sprintf("XID %d, %s, %s, the last %s ago", k.code, x.Meaning, times(count[k]), span(last[k].age))
		needs, says := list[i].RecoveryAction.Get()
		if status == Critical && !says {
			bad = append(bad, Problem{status, name(list[i].ID), reason, x.Action})
			continue
		}
		if last[k].age > h.Window {
			continue // gpu.health reports what the GPU needs now
		}
		if needs == 0 && list[i].Up && status == Critical {
			status, reason = Warning, reason+"; the driver reports that the GPU needs no recovery"
			x.Action = "None at once: watch for recurrence."
		}
		bad = append(bad, Problem{status, name(list[i].ID), reason, x.Action})
	}
	bad = append(bad, h.findings(m, "gpu.xid")...)
	if len(bad) == 0 && !slices.ContainsFunc(list, func(d health.Device) bool { return d.ID.Vendor == "nvidia" }) {
		return skip("no NVIDIA device")
	}
	return found(capped(bad), "no hardware errors, %d application errors in the last %s", harmless, span(h.Window))
}
