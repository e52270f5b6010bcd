package host

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/gpumeter/gpumeter/internal/optional"
)

// ticks is USER_HZ: how many ticks of /proc make a second. It is 100 on all that we build for.
const ticks = 100

// CPU is what all CPUs of the machine did since it was booted, in CPU-seconds by mode. User
// has the time of virtual machines in it, as the kernel counts it.
type CPU struct {
	User, Nice, System, Idle, IOWait, Interrupt, Steal float64
}

// CPU reads /proc/stat.
func (r Reader) CPU() (CPU, error) {
	path := filepath.Join(r.Proc, "stat")
	b, err := read(path)
	if err != nil {
		return CPU{}, fmt.Errorf("cannot read the time of the CPUs: %w", err)
	}
	c, err := ParseStat(b)
	if err != nil {
		return CPU{}, fmt.Errorf("cannot parse %s: %w", path, err)
	}
	return c, nil
}

// ParseStat parses /proc/stat, see proc_stat(5).
func ParseStat(file []byte) (CPU, error) {
	line, _, _ := bytes.Cut(file, []byte("\n"))
	fields := strings.Fields(string(line))
	if len(fields) < 5 || fields[0] != "cpu" {
		return CPU{}, errors.New("the first line is not that of all CPUs")
	}
	var v [8]float64 // what an old kernel does not have it does not count
	for i := range v {
		if i+1 >= len(fields) {
			break
		}
		n, err := whole(fields[i+1])
		if err != nil {
			return CPU{}, err
		}
		v[i] = n / ticks
	}
	return CPU{User: v[0], Nice: v[1], System: v[2], Idle: v[3], IOWait: v[4], Interrupt: v[5] + v[6], Steal: v[7]}, nil
}

// Share is a part of 1 that a mode or a state has.
type Share struct {
	Name  string  `json:"name"`
	Ratio float64 `json:"ratio"`
}

// Utilization returns which part of the CPUs' time since before went to which mode, in the
// words of the attribute cpu.mode. Together they are 1. It is nil if no time went by.
func (c CPU) Utilization(before CPU) []Share {
	modes := []struct {
		name          string
		after, before float64
	}{
		{"user", c.User, before.User},
		{"nice", c.Nice, before.Nice},
		{"system", c.System, before.System},
		{"interrupt", c.Interrupt, before.Interrupt},
		{"steal", c.Steal, before.Steal},
		{"iowait", c.IOWait, before.IOWait},
		{"idle", c.Idle, before.Idle},
	}
	sum := 0.0
	list := make([]Share, len(modes))
	for i, m := range modes {
		// The kernel lets idle and iowait go back a little.
		list[i] = Share{m.name, max(0, m.after-m.before)}
		sum += list[i].Ratio
	}
	if sum <= 0 {
		return nil
	}
	for i := range list {
		list[i].Ratio /= sum
	}
	return list
}

// Memory is the machine's memory in bytes.
type Memory struct {
	Total, Available, Free float64
}

// Memory reads /proc/meminfo.
func (r Reader) Memory() (Memory, error) {
	path := filepath.Join(r.Proc, "meminfo")
	b, err := read(path)
	if err != nil {
		return Memory{}, fmt.Errorf("cannot read the use of memory: %w", err)
	}
	m, err := ParseMeminfo(b)
	if err != nil {
		return Memory{}, fmt.Errorf("cannot parse %s: %w", path, err)
	}
	return m, nil
}

// ParseMeminfo parses /proc/meminfo, see proc_meminfo(5).
func ParseMeminfo(file []byte) (Memory, error) {
	var total, available, free optional.Float
	for line := range strings.Lines(string(file)) {
		name, rest, _ := strings.Cut(line, ":")
		into := map[string]*optional.Float{"MemTotal": &total, "MemAvailable": &available, "MemFree": &free}[name]
		if into == nil {
			continue
		}
		fields := strings.Fields(rest)
		if len(fields) != 2 || fields[1] != "kB" {
			return Memory{}, fmt.Errorf("%s is no number of kB", name)
		}
		kib, err := whole(fields[0])
		if err != nil {
			return Memory{}, fmt.Errorf("%s: %w", name, err)
		}
		*into = optional.Of(kib * 1024)
	}
	if total.Default(0) <= 0 || !available.OK() || !free.OK() {
		return Memory{}, errors.New("it lacks MemTotal, MemAvailable or MemFree")
	}
	return Memory{Total: total.Default(0), Available: available.Default(0), Free: free.Default(0)}, nil
}

// Utilization returns which part of memory is in which state, in the words of the attribute
// system.memory.state: used is what nobody could have, free what nobody has, and cached what
// the kernel would give back. Together they are 1.
func (m Memory) Utilization() []Share {
	available := min(m.Available, m.Total)
	free := min(m.Free, available) // what the kernel keeps for itself is free, but not available
	return []Share{
		{"used", (m.Total - available) / m.Total},
		{"free", free / m.Total},
		{"cached", (available - free) / m.Total},
	}
}
