//go:build linux

// Package target finds what can be probed: the libraries that processes have mapped, in any
// mount namespace, and the places in functions where a probe sees the arguments at the lowest
// cost.
//
// It reads /proc and ELF files. Both may be written by hostile processes, so all sizes are
// bounded and nothing is trusted. Other users' processes need CAP_SYS_PTRACE. The package
// attaches nothing; package probe does.
package target

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gpumeter/gpumeter/internal/tracer"
)

// maxMaps bounds a maps file in bytes. By default a process may have 65,530 mappings of about
// 100 bytes each.
const maxMaps = 16 << 20

// Mapping is an executable mapping of a file.
type Mapping struct {
	Start, End uint64
	Offset     uint64 // file offset of Start
	Device     string // in the kernel's form: 08:01
	Inode      uint64
	Path       string // in the mount namespace of the process
	Deleted    bool   // the path now names another file or none
}

// ReadMaps returns the executable file mappings of a process, by address.
func ReadMaps(proc string, pid uint32) ([]Mapping, error) {
	f, err := os.Open(filepath.Join(proc, strconv.FormatUint(uint64(pid), 10), "maps"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxMaps))
	if err != nil {
		return nil, err
	}
	return ParseMaps(b), nil
}

// ParseMaps parses /proc/PID/maps. Lines that are malformed or not an executable file mapping
// are skipped.
func ParseMaps(b []byte) []Mapping {
	var maps []Mapping
	for line := range bytes.Lines(b) {
		if m, ok := parseMapping(bytes.TrimSuffix(line, []byte("\n"))); ok {
			maps = append(maps, m)
		}
	}
	return maps
}

// parseMapping parses one line: start-end perms offset device inode path.
func parseMapping(line []byte) (m Mapping, ok bool) {
	var field [5][]byte
	for i := range field {
		line = bytes.TrimLeft(line, " ")
		field[i], line, _ = bytes.Cut(line, []byte(" "))
	}
	// Most mappings are not ours: check the cheap fields first.
	name := bytes.TrimLeft(line, " ")
	if len(name) == 0 || name[0] != '/' || len(field[1]) < 3 || field[1][2] != 'x' {
		return Mapping{}, false
	}
	start, end, _ := bytes.Cut(field[0], []byte("-"))
	var err [4]error
	m.Start, err[0] = strconv.ParseUint(string(start), 16, 64)
	m.End, err[1] = strconv.ParseUint(string(end), 16, 64)
	m.Offset, err[2] = strconv.ParseUint(string(field[2]), 16, 64)
	m.Inode, err[3] = strconv.ParseUint(string(field[4]), 10, 64)
	if errors.Join(err[:]...) != nil || m.End <= m.Start || m.Inode == 0 {
		return Mapping{}, false
	}
	m.Device = string(field[3])
	m.Path, m.Deleted = strings.CutSuffix(string(name), " (deleted)")
	m.Path = strings.ReplaceAll(m.Path, `\012`, "\n") // the only character that the kernel escapes
	return m, true
}

// KindOf returns the kind of a library by its name, or "".
func KindOf(name string) string {
	base := path.Base(name)
	f := func(stem string) bool {
		rest, ok := strings.CutPrefix(base, stem)
		return ok && (rest == "" || rest[0] == '.')
	}
	switch {
	case f("libcuda.so"):
		return tracer.LibraryCUDA
	case f("libnccl.so"), f("libtorch_cuda.so"): // some PyTorch builds have NCCL linked in
		return tracer.LibraryNCCL
	case f("libc10.so"):
		return tracer.LibraryTorch
	}
	return ""
}

// Process identifies a process as listed in /proc.
type Process struct {
	PID   uint32
	Name  string
	Start uint64 // clock ticks since boot; unique together with PID
}

// ReadProcess reads /proc/PID/stat.
func ReadProcess(proc string, pid uint32) (Process, error) {
	b, err := os.ReadFile(filepath.Join(proc, strconv.FormatUint(uint64(pid), 10), "stat"))
	if err != nil {
		return Process{}, err
	}
	p, err := parseStat(b)
	if err != nil {
		return Process{}, fmt.Errorf("cannot read stat of process %d: %w", pid, err)
	}
	p.PID = pid
	return p, nil
}

// parseStat parses /proc/PID/stat. The name is in parentheses and may contain any byte.
func parseStat(b []byte) (Process, error) {
	from, to := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if from < 0 || to < from {
		return Process{}, errors.New("no name in parentheses")
	}
	fields := bytes.Fields(b[to+1:])
	const start = 22 - 3 // proc(5) counts from 1; these fields start with the third
	if len(fields) <= start {
		return Process{}, errors.New("too few fields")
	}
	n, err := strconv.ParseUint(string(fields[start]), 10, 64)
	if err != nil {
		return Process{}, fmt.Errorf("cannot parse start time: %w", err)
	}
	return Process{Name: string(b[from+1 : to]), Start: n}, nil
}

// ReadUptime returns the uptime in clock ticks of 10 ms, the unit of Process.Start on every
// architecture that Go supports.
func ReadUptime(proc string) (uint64, error) {
	b, err := os.ReadFile(filepath.Join(proc, "uptime"))
	if err != nil {
		return 0, err
	}
	first, _, _ := bytes.Cut(b, []byte(" "))
	s, err := strconv.ParseFloat(string(first), 64)
	if err != nil || s < 0 || s > math.MaxInt32 {
		return 0, fmt.Errorf("cannot parse uptime %q", first)
	}
	return uint64(s * 100), nil
}

// PIDs lists all processes.
func PIDs(proc string) ([]uint32, error) {
	d, err := os.Open(proc)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	pids := make([]uint32, 0, len(names))
	for _, name := range names {
		if n, err := strconv.ParseUint(name, 10, 32); err == nil {
			pids = append(pids, uint32(n))
		}
	}
	return pids, nil
}

// Executable returns the path of a process's executable as in its maps, or "".
func Executable(proc string, pid uint32) string {
	name, err := os.Readlink(filepath.Join(proc, strconv.FormatUint(uint64(pid), 10), "exe"))
	if err != nil {
		return "" // a kernel thread, or exited
	}
	return strings.TrimSuffix(name, " (deleted)")
}

// File is an open file that a process has mapped, with a path by which the kernel finds the
// same file.
type File struct {
	*os.File
	Path    string
	Inode   uint64
	Device  uint64
	Overlay bool // Device is an overlay, whose files are on other devices
	Size    int64
}

// Open opens the file of a mapping: through the mapping itself, which works for a file that
// was replaced on disk and in another mount namespace, otherwise below the process's root.
// The path in our own root is never tried: it may be another file.
func Open(proc string, pid uint32, m Mapping) (*File, error) {
	dir := filepath.Join(proc, strconv.FormatUint(uint64(pid), 10))
	name := filepath.Join(dir, "map_files", fmt.Sprintf("%x-%x", m.Start, m.End))
	// The inode is not compared: an overlay may show other numbers in maps than in stat.
	f, err := open(name, 0)
	if err == nil || m.Deleted {
		return f, err
	}
	g, err2 := open(filepath.Join(dir, "root", m.Path), m.Inode)
	if err2 == nil {
		return g, nil
	}
	if errors.Is(err, fs.ErrPermission) {
		return nil, err // more specific than the error of the fallback
	}
	return nil, errors.Join(err, err2)
}
