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

// Groups are the control group paths of a process: of v2, and of the v1 cpu controller.
// Empty if there is none that can be found.
type Groups struct {
	Unified, CPU string
	// Outside is set if the v2 group is outside our cgroup namespace and has no path here.
	Outside bool
}

// ParseGroups parses /proc/PID/cgroup; see cgroups(7). A path that leads out of our cgroup
// namespace is ignored: relative to our root it would name another group.
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

// deepest bounds how many ancestors of a group are read.
const deepest = 16

// group adds the facts of the control groups of the process whose /proc directory is dir.
func (r Reader) group(dir string, g Groups, f *Facts) error {
	var errs []error
	unified := r.Cgroup
	if own := filepath.Join(dir, "root"); g.Outside && g.CPU == "" && isOwn(own, filepath.Base(dir)) {
		return namespaced(own, f)
	}
	if g.CPU != "" { // v1 or hybrid: v2 is mounted beside the controllers
		unified = filepath.Join(r.Cgroup, "unified")
		errs = append(errs, r.throttling(filepath.Join(r.Cgroup, "cpu"), g.CPU, f))
	} else if g.Unified != "" {
		errs = append(errs, r.throttling(unified, g.Unified, f))
	}
	// The root group is the whole machine, which /proc/pressure covers.
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

// ownGroup is where a container sees its own control group, the root of its namespace.
const ownGroup = "sys/fs/cgroup"

// isOwn reports whether the control group that a process sees as the root is its own: it is
// not the machine's root, which has no cgroup.events, and it contains the process.
func isOwn(root, pid string) bool {
	if _, err := readBelow(root, ownGroup+"/cgroup.events"); err != nil {
		return false
	}
	b, err := readBelow(root, ownGroup+"/cgroup.procs")
	return err == nil && slices.Contains(strings.Fields(string(b)), pid)
}

// namespaced reads the control group that a process sees as the root. Its ancestors, such as
// the pod's group, are not visible.
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

// readBelow reads a regular file below another process's root. The content is not trusted: a
// symbolic link could point to our files, and a pipe would block.
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
		return nil, fmt.Errorf("%s is not a regular file", name)
	}
	return io.ReadAll(io.LimitReader(f, most))
}

// throttling sums the throttled time of a process's group and its ancestors: a pod has its
// own limit above those of its containers. Any level may be the one that throttles now; the
// sum grows with each of them.
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

// plus adds two values, ignoring an absent one.
func plus(a, b optional.Float) optional.Float {
	switch {
	case !b.OK():
		return a
	case !a.OK():
		return b
	}
	return optional.Of(a.Default(0) + b.Default(0))
}

// ParseCPUStat parses cpu.stat of v1 or v2 and returns the throttled time and the number of
// throttled periods. Both are absent if the cpu controller is not enabled.
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
		case "throttled_usec": // v2
			into, scale = &seconds, 1e6
		case "throttled_time": // v1
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

// ParsePressure parses pressure stall information and returns how long at least one task was
// stalled, in seconds.
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
	return optional.Float{}, errors.New("no total in the line of some")
}
