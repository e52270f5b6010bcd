package cgroup

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

const maxFile = 1 << 16 // maximum bytes read from a file in /proc

// initialPIDNamespace is the inode of the host's PID namespace: PROC_PID_INIT_INO in the
// kernel's include/linux/proc_ns.h (PID_NS_INIT_INO since 6.17), which is part of its ABI.
const initialPIDNamespace = "pid:[4026531836]"

// Reader finds the containers of processes. It is safe for concurrent use.
type Reader struct {
	*Finder[Container]

	mu   sync.Mutex
	host bool // this is the host's namespace; that does not change
}

// NewReader returns a Reader for the procfs at proc, normally "/proc" or where the host's
// is mounted.
func NewReader(proc string) *Reader { return &Reader{Finder: NewFinder(proc, Parse)} }

// Container returns the container that a process is in, and whether it is in one; see Find.
func (r *Reader) Container(pid uint32) (c Container, ok bool, err error) { return r.Find(pid) }

// HostPIDNamespace reports whether proc shows all processes of the machine. It needs no
// privilege: kthreadd, the parent of the kernel threads, is process 2 of the initial
// namespace and of no other, also where the host's /proc is mounted into a container. If
// kthreadd is hidden (hidepid), the caller's own namespace decides.
//
// False does not mean that nothing can be found. In a nested namespace, such as that of a
// kind node, newer NVIDIA drivers report PIDs as the caller sees them and hide the others
// (os_find_ns_pid in NVIDIA's open kernel modules); older ones report host PIDs, which are
// meaningless there.
func (r *Reader) HostPIDNamespace() (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.host {
		return true, nil
	}
	if st, err := ReadStat(r.proc, 2); err == nil && st.Kernel {
		r.host = true
		return true, nil
	}
	ns, err := os.Readlink(filepath.Join(r.proc, "self/ns/pid"))
	if err != nil {
		return false, fmt.Errorf("cannot determine the PID namespace: %w", err)
	}
	r.host = ns == initialPIDNamespace
	return r.host, nil
}

// Stat is a part of /proc/PID/stat.
type Stat struct {
	Comm   string // executable name, or the name the process gave itself; at most 15 bytes
	Start  uint64 // clock ticks between boot and the start of the process
	Kernel bool   // a kernel thread
}

// ReadStat reads /proc/PID/stat below proc.
func ReadStat(proc string, pid uint32) (Stat, error) {
	file, err := read(proc, pid, "stat")
	if err != nil {
		return Stat{}, err
	}
	st, err := parseStat(string(file))
	if err != nil {
		return Stat{}, fmt.Errorf("process %d: %w", pid, err)
	}
	return st, nil
}

// parseStat parses the line described in proc_pid_stat(5). The second field is in
// parentheses and may itself contain spaces and parentheses.
func parseStat(s string) (Stat, error) {
	const (
		kernelThread = 0x00200000 // PF_KTHREAD in include/linux/sched.h
		flags        = 9 - 3      // fields are numbered from the third on
		start        = 22 - 3
	)
	open, end := strings.IndexByte(s, '('), strings.LastIndexByte(s, ')')
	if open < 0 || end < open {
		return Stat{}, errors.New("stat has no process name")
	}
	fields := strings.Fields(s[end+1:])
	if len(fields) <= start {
		return Stat{}, fmt.Errorf("stat has %d fields", len(fields)+2)
	}
	flag, err := strconv.ParseUint(fields[flags], 10, 64)
	if err != nil {
		return Stat{}, fmt.Errorf("stat, flags: %w", err)
	}
	began, err := strconv.ParseUint(fields[start], 10, 64)
	if err != nil {
		return Stat{}, fmt.Errorf("stat, start time: %w", err)
	}
	return Stat{Comm: s[open+1 : end], Start: began, Kernel: flag&kernelThread != 0}, nil
}

// read returns the beginning of a file of a process.
func read(proc string, pid uint32, name string) ([]byte, error) {
	f, err := os.Open(filepath.Join(proc, strconv.FormatUint(uint64(pid), 10), name))
	if err != nil {
		return nil, fmt.Errorf("process %d: %w", pid, err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile))
	if err != nil { // ESRCH: the process exited meanwhile
		return nil, fmt.Errorf("process %d: %w", pid, gone(err))
	}
	return b, nil
}

// gone converts the error of reading a file of a process that exited after the file was
// opened to fs.ErrNotExist.
func gone(err error) error {
	if errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	return err
}
