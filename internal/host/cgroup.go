package host

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpumeter/gpumeter/internal/optional"
)

// Groups are the control groups of a process: of version 2, and of the cpu controller of
// version 1. Empty: it has none that we can find.
type Groups struct {
	Unified, CPU string
	// Outside: its group of version 2 is not below ours, and has no path here.
	Outside bool
}

// ParseGroups parses /proc/PID/cgroup, see cgroups(7). A path that leads out of what we see,
// as those of others do in a cgroup namespace of our own, is none: what it would name here
// is another group.
func ParseGroups(file []byte) Groups {
	var g Groups
	for line := range strings.Lines(string(file)) {
		fields := strings.SplitN(strings.TrimRight(line, "\n"), ":", 3)
		if len(fields) != 3 || !strings.HasPrefix(fields[2], "/") {
			continue
		}
		if slices.Contains(strings.Split(fields[2], "/"), "..") {
			g.Outside = g.Outside || fields[0] == "0" && fields[1] == ""
			continue
		}
		p := path.Clean(strings.TrimSuffix(fields[2], " (deleted)"))
		switch {
		case fields[0] == "0" && fields[1] == "":
			g.Unified = p
		case slices.Contains(strings.Split(fields[1], ","), "cpu"):
			g.CPU = p
		}
	}
	return g
}

// deepest is how many groups above that of a process are asked.
const deepest = 16

// group adds what the control groups of a process say, whose folder in /proc is dir.
func (r Reader) group(dir string, g Groups, f *Facts) error {
	var errs []error
	unified := r.Cgroup
	if own := filepath.Join(dir, "root"); g.Outside && g.CPU == "" && isOwn(own, filepath.Base(dir)) {
		return namespaced(own, f)
	}
	if g.CPU != "" { // version 1 or both: version 2 is beside the controllers
		unified = filepath.Join(r.Cgroup, "unified")
		errs = append(errs, r.throttling(filepath.Join(r.Cgroup, "cpu"), g.CPU, f))
	} else if g.Unified != "" {
		errs = append(errs, r.throttling(unified, g.Unified, f))
	}
	// The root group is the machine, which /proc/pressure has.
	folder, suffix, of := filepath.Join(r.Proc, "pressure"), "", "machine"
	if own := filepath.Join(unified, g.Unified); g.Unified != "" && g.Unified != "/" {
		if _, err := read(filepath.Join(own, "cpu.pressure")); err == nil {
			folder, suffix, of = own, ".pressure", "cgroup"
		}
	}
	for name, into := range map[string]*optional.Float{"cpu": &f.CPUPressure, "io": &f.IOPressure, "memory": &f.MemoryPressure} {
		file := filepath.Join(folder, name+suffix)
		b, err := read(file)
		if err != nil {
			errs = append(errs, tolerate(err))
			continue
		}
		if *into, err = ParsePressure(b); err != nil {
			errs = append(errs, fmt.Errorf("cannot parse %s: %w", file, err))
			continue
		}
		f.PressureOf = of
	}
	return errors.Join(errs...)
}

// ownGroup is where a container has its control group, as the root of a namespace.
const ownGroup = "sys/fs/cgroup"

// isOwn says whether the control group that a process sees as the root is its own: it is not
// that of the machine, which has no events, and the process is in it.
func isOwn(root, pid string) bool {
	if _, err := readBelow(root, ownGroup+"/cgroup.events"); err != nil {
		return false
	}
	b, err := readBelow(root, ownGroup+"/cgroup.procs")
	return err == nil && slices.Contains(strings.Fields(string(b)), pid)
}

// namespaced reads the control group that a process sees as the root. Those above it, that
// of its pod for one, cannot be seen.
func namespaced(root string, f *Facts) error {
	var errs []error
	each := func(name string, parse func([]byte) error) {
		b, err := readBelow(root, ownGroup+"/"+name)
		if err == nil {
			err = parse(b)
		}
		if err := tolerate(err); err != nil {
			errs = append(errs, fmt.Errorf("cannot read %s: %w", filepath.Join(root, ownGroup, name), err))
		}
	}
	each("cpu.stat", func(b []byte) (err error) {
		f.Throttled, f.ThrottledPeriods, err = ParseCPUStat(b)
		return err
	})
	for name, into := range map[string]*optional.Float{"cpu": &f.CPUPressure, "io": &f.IOPressure, "memory": &f.MemoryPressure} {
		each(name+".pressure", func(b []byte) (err error) {
			if *into, err = ParsePressure(b); err == nil {
				f.PressureOf = "cgroup"
			}
			return err
		})
	}
	return errors.Join(errs...)
}

// readBelow reads a regular file below the root of another process. What is there is made by
// others: a link would lead to files of ours, and a pipe would never end.
func readBelow(root, name string) ([]byte, error) {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(dir) }()
	fd, err := unix.Openat2(dir, name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_NONBLOCK | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file", name)
	}
	return io.ReadAll(io.LimitReader(f, most))
}

// throttling adds up for how long the group of a process, and those above it, were kept from
// their CPUs: a pod has a limit of its own above those of its containers. Of one of them
// alone it is not known whether it is the one that counts now; the sum grows with each.
func (r Reader) throttling(root, group string, f *Facts) error {
	for range deepest {
		file := filepath.Join(root, group, "cpu.stat")
		b, err := read(file)
		if err := tolerate(err); err != nil {
			return err
		}
		if err == nil {
			seconds, periods, err := ParseCPUStat(b)
			if err != nil {
				return fmt.Errorf("cannot parse %s: %w", file, err)
			}
			f.Throttled, f.ThrottledPeriods = plus(f.Throttled, seconds), plus(f.ThrottledPeriods, periods)
		}
		if group == "/" || group == "." {
			return nil
		}
		group = path.Dir(group)
	}
	return nil
}

// plus adds what is known.
func plus(a, b optional.Float) optional.Float {
	switch {
	case !b.OK():
		return a
	case !a.OK():
		return b
	}
	return optional.Of(a.Default(0) + b.Default(0))
}

// ParseCPUStat parses cpu.stat of a control group of either version, and returns for how
// long and in how many periods it was throttled. Absent: it has no such controller.
func ParseCPUStat(file []byte) (seconds, periods optional.Float, err error) {
	for line := range strings.Lines(string(file)) {
		fields := strings.Fields(line)
		if len(fields) != 2 {
			continue
		}
		var into *optional.Float
		scale := 1.0
		switch fields[0] {
		case "nr_throttled":
			into = &periods
		case "throttled_usec": // version 2
			into, scale = &seconds, 1e6
		case "throttled_time": // version 1
			into, scale = &seconds, 1e9
		default:
			continue
		}
		v, err := whole(fields[1])
		if err != nil {
			return optional.Float{}, optional.Float{}, fmt.Errorf("%s: %w", fields[0], err)
		}
		*into = optional.Of(v / scale)
	}
	return seconds, periods, nil
}

// ParsePressure parses a file of pressure stall information and returns how long at least
// one task waited, in seconds.
func ParsePressure(file []byte) (optional.Float, error) {
	for line := range strings.Lines(string(file)) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] != "some" {
			continue
		}
		for _, field := range fields[1:] {
			total, ok := strings.CutPrefix(field, "total=")
			if !ok {
				continue
			}
			v, err := whole(total)
			if err != nil {
				return optional.Float{}, err
			}
			return optional.Of(v / 1e6), nil
		}
	}
	return optional.Float{}, errors.New("it does not say for how long some tasks waited")
}
