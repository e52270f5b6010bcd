package host

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gpumeter/gpumeter/internal/optional"
)

// Facts are what a process was given by the machine and what it was kept waiting for. All
// but Start and PressureOf are counters; seconds, bytes and plain counts.
type Facts struct {
	// Start is when the process began, in ticks since boot: the same pid with another one
	// is another process.
	Start uint64         `json:"start"`
	CPU   optional.Float `json:"cpu_seconds,omitzero"` // all threads, user and kernel
	// MinorFaults needed no disk, MajorFaults did.
	MinorFaults optional.Float `json:"minor_faults,omitzero"`
	MajorFaults optional.Float `json:"major_faults,omitzero"`
	// BlockIO is how long the main thread waited for disks. Absent where the kernel does
	// not account for delays, which is the default since 5.14.
	BlockIO optional.Float `json:"block_io_seconds,omitzero"`
	// RunQueue is how long the main thread was ready and had no CPU.
	RunQueue     optional.Float `json:"run_queue_seconds,omitzero"`
	ReadBytes    optional.Float `json:"read_bytes,omitzero"` // from disks
	WrittenBytes optional.Float `json:"written_bytes,omitzero"`
	// SentSegments and Retransmits are of TCP in the network namespace of the process,
	// which others may share.
	SentSegments optional.Float `json:"sent_segments,omitzero"`
	Retransmits  optional.Float `json:"retransmits,omitzero"`
	// Throttled is how long its control group, or one above, had used up its CPU time, and
	// ThrottledPeriods in how many periods that was.
	Throttled        optional.Float `json:"throttled_seconds,omitzero"`
	ThrottledPeriods optional.Float `json:"throttled_periods,omitzero"`
	// The pressures are how long at least one task waited for a CPU, a disk or memory.
	// PressureOf says whose tasks: those of its control group (cgroup) or all (machine).
	CPUPressure    optional.Float `json:"cpu_pressure_seconds,omitzero"`
	IOPressure     optional.Float `json:"io_pressure_seconds,omitzero"`
	MemoryPressure optional.Float `json:"memory_pressure_seconds,omitzero"`
	PressureOf     string         `json:"pressure_of,omitempty"`
}

// Process reads what is known of a process. A file that is missing or forbidden makes its
// facts absent, one that makes no sense is an error beside the rest. Only a process that is
// not there gives no Facts at all.
func (r Reader) Process(pid uint32) (Facts, error) {
	dir := filepath.Join(r.Proc, strconv.FormatUint(uint64(pid), 10))
	b, err := read(filepath.Join(dir, "stat"))
	if err != nil {
		return Facts{}, fmt.Errorf("cannot read process %d: %w", pid, err)
	}
	s, err := ParseProcessStat(b)
	if err != nil {
		return Facts{}, fmt.Errorf("cannot parse %s: %w", filepath.Join(dir, "stat"), err)
	}
	f := Facts{Start: s.Start, CPU: optional.Of(s.CPU), MinorFaults: optional.Of(s.MinorFaults), MajorFaults: optional.Of(s.MajorFaults)}
	if on, err := read(filepath.Join(r.Proc, "sys/kernel/task_delayacct")); err == nil && strings.TrimSpace(string(on)) != "0" {
		f.BlockIO = optional.Of(s.BlockIO)
	}
	var errs []error
	each := func(name string, parse func([]byte) error) {
		b, err := read(filepath.Join(dir, name))
		if err != nil {
			errs = append(errs, tolerate(err))
			return
		}
		if err := parse(b); err != nil {
			errs = append(errs, fmt.Errorf("cannot parse %s: %w", filepath.Join(dir, name), err))
		}
	}
	each("io", func(b []byte) (err error) {
		f.ReadBytes, f.WrittenBytes, err = ParseIO(b)
		return err
	})
	each("schedstat", func(b []byte) (err error) {
		f.RunQueue, err = ParseSchedstat(b)
		return err
	})
	each("net/snmp", func(b []byte) (err error) {
		f.SentSegments, f.Retransmits, err = ParseSNMP(b)
		return err
	})
	each("cgroup", func(b []byte) error {
		return r.group(dir, ParseGroups(b), &f)
	})
	return f, errors.Join(errs...)
}

// ProcessStat is what is used of /proc/PID/stat. Times are in seconds but for Start, which
// is in ticks since boot.
type ProcessStat struct {
	MinorFaults, MajorFaults, CPU, BlockIO float64
	Start                                  uint64
}

// ParseProcessStat parses /proc/PID/stat, see proc_pid_stat(5). The name of the process is
// in brackets and may have any byte in it.
func ParseProcessStat(file []byte) (ProcessStat, error) {
	end := bytes.LastIndexByte(file, ')')
	if end < 0 {
		return ProcessStat{}, errors.New("there is no name in it")
	}
	fields := strings.Fields(string(file[end+1:]))
	const first = 3 // the number of the field after the name
	var errs []error
	number := func(n int) float64 {
		if n-first >= len(fields) {
			errs = append(errs, fmt.Errorf("there is no field %d", n))
			return 0
		}
		v, err := whole(fields[n-first])
		errs = append(errs, err)
		return v
	}
	s := ProcessStat{
		MinorFaults: number(10), MajorFaults: number(12), CPU: (number(14) + number(15)) / ticks,
		Start: uint64(number(22)), BlockIO: number(42) / ticks,
	}
	if err := errors.Join(errs...); err != nil {
		return ProcessStat{}, err
	}
	return s, nil
}

// ParseIO parses /proc/PID/io and returns the bytes read from disks and written to them.
func ParseIO(file []byte) (readBytes, writtenBytes optional.Float, err error) {
	for line := range strings.Lines(string(file)) {
		name, rest, _ := strings.Cut(line, ":")
		into := map[string]*optional.Float{"read_bytes": &readBytes, "write_bytes": &writtenBytes}[name]
		if into == nil {
			continue
		}
		v, err := whole(strings.TrimSpace(rest))
		if err != nil {
			return optional.Float{}, optional.Float{}, fmt.Errorf("%s: %w", name, err)
		}
		*into = optional.Of(v)
	}
	return readBytes, writtenBytes, nil
}

// ParseSchedstat parses /proc/PID/schedstat and returns the seconds in the run queue. A
// kernel without the statistics writes zeros.
func ParseSchedstat(file []byte) (optional.Float, error) {
	fields := strings.Fields(string(file))
	if len(fields) < 3 {
		return optional.Float{}, errors.New("it has fewer than 3 numbers")
	}
	var v [3]float64
	for i := range v {
		n, err := whole(fields[i])
		if err != nil {
			return optional.Float{}, err
		}
		v[i] = n
	}
	if v == [3]float64{} {
		return optional.Float{}, nil
	}
	return optional.Of(v[1] / 1e9), nil
}

// ParseSNMP parses /proc/PID/net/snmp and returns the segments that TCP sent, and how many
// of them again. The file has pairs of lines: names, and values in the same order.
func ParseSNMP(file []byte) (sent, again optional.Float, err error) {
	var names []string
	for line := range strings.Lines(string(file)) {
		rest, ok := strings.CutPrefix(line, "Tcp:")
		if !ok {
			continue
		}
		if names == nil {
			names = strings.Fields(rest)
			continue
		}
		values := strings.Fields(rest)
		if len(values) != len(names) {
			return optional.Float{}, optional.Float{}, fmt.Errorf("TCP has %d names and %d values", len(names), len(values))
		}
		for i, name := range names {
			into := map[string]*optional.Float{"OutSegs": &sent, "RetransSegs": &again}[name]
			if into == nil {
				continue
			}
			v, err := whole(values[i])
			if err != nil {
				return optional.Float{}, optional.Float{}, fmt.Errorf("%s: %w", name, err)
			}
			*into = optional.Of(v)
		}
		break
	}
	return sent, again, nil
}
