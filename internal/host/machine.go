package host

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/gpumeter/gpumeter/internal/optional"
)

// ticks is USER_HZ, the number of clock ticks per second in /proc. It is 100 on every
// platform we build for.
const ticks = 100

// CPU is the time of all CPUs since boot, in CPU-seconds by mode. As in the kernel, User
// includes guest time.
type CPU struct {
	User, Nice, System, Idle, IOWait, Interrupt, Steal float64
}

// CPU reads /proc/stat.
func (r Reader) CPU() (CPU, error) {
	path := filepath.Join(r.Proc, "stat")
	b, err := read(path)
	if err != nil {
		return CPU{}, fmt.Errorf("cannot read CPU times: %w", err)
	}
	c, err := ParseStat(b)
	if err != nil {
		return CPU{}, fmt.Errorf("cannot parse %s: %w", path, err)
	}
	return c, nil
}

// ParseStat parses the first line of /proc/stat; see proc_stat(5).
func ParseStat(file []byte) (CPU, error) {
	line, _, _ := bytes.Cut(file, []byte("\n"))
	fields := strings.Fields(string(line))
	if len(fields) < 5 || fields[0] != "cpu" {
		return CPU{}, errors.New("first line is not the cpu line")
	}
	var v [8]float64 // old kernels have fewer fields
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

// Share is the fraction of a mode or a state.
type Share struct {
	Name  string  `json:"name"`
	Ratio float64 `json:"ratio"`
}

// Utilization returns the fraction of CPU time since before by mode, named as in the
// attribute cpu.mode. The fractions add up to 1. It returns nil if no time has passed.
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
		// The kernel lets idle and iowait decrease slightly.
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

// Memory is the size and use of the machine's memory in bytes.
type Memory struct {
	Total, Available, Free float64
}

// Memory reads /proc/meminfo.
func (r Reader) Memory() (Memory, error) {
	path := filepath.Join(r.Proc, "meminfo")
	b, err := read(path)
	if err != nil {
		return Memory{}, fmt.Errorf("cannot read memory usage: %w", err)
	}
	m, err := ParseMeminfo(b)
	if err != nil {
		return Memory{}, fmt.Errorf("cannot parse %s: %w", path, err)
	}
	return m, nil
}

// ParseMeminfo parses /proc/meminfo; see proc_meminfo(5).
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
			return Memory{}, fmt.Errorf("%s is not a number of kB", name)
		}
		kib, err := whole(fields[0])
		if err != nil {
			return Memory{}, fmt.Errorf("%s: %w", name, err)
		}
		*into = optional.Of(kib * 1024)
	}
	if total.Default(0) <= 0 || !available.OK() || !free.OK() {
		return Memory{}, errors.New("no MemTotal, MemAvailable or MemFree")
	}
	return Memory{Total: total.Default(0), Available: available.Default(0), Free: free.Default(0)}, nil
}

// Utilization returns the fraction of memory by state, named as in the attribute
// system.memory.state: used is not available, free is unused, and cached can be reclaimed.
// The fractions add up to 1.
func (m Memory) Utilization() []Share {
	available := min(m.Available, m.Total)
	free := min(m.Free, available) // the kernel's reserve is free but not available
	return []Share{
		{"used", (m.Total - available) / m.Total},
		{"free", free / m.Total},
		{"cached", (available - free) / m.Total},
	}
}
