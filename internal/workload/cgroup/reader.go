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

const maxFile = 1 << 16 // bytes read of a file in /proc

// initialPIDNamespace is the inode of the host's PID namespace: PROC_PID_INIT_INO in
// the kernel's include/linux/proc_ns.h (PID_NS_INIT_INO since 6.17), part of its ABI.
const initialPIDNamespace = "pid:[4026531836]"

// Reader finds the containers of processes. It may be used concurrently.
type Reader struct {
	*Finder[Container]

	mu   sync.Mutex
	host bool // this is the namespace of the host: that does not change
}

// NewReader returns a Reader of the process files at proc, normally "/proc" or where
// that of the host is mounted.
func NewReader(proc string) *Reader { return &Reader{Finder: NewFinder(proc, Parse)} }

// Container returns the container that a process is in, and whether it is in one, as Find
// does.
func (r *Reader) Container(pid uint32) (c Container, ok bool, err error) { return r.Find(pid) }

// HostPIDNamespace reports whether the processes here are all those of the machine. It
// is known without privilege: kthreadd, the parent of the kernel's threads, is process 2
// of the initial namespace and of no other, also where the /proc of the host is mounted
// into a container. Where it is hidden (hidepid), the namespace of the caller decides.
//
// False does not mean that nothing can be found. In a nested namespace, such as that of
// a node of kind, newer NVIDIA drivers number processes as the caller sees them and hide
// the others (os_find_ns_pid in NVIDIA's open kernel modules); older ones give the
// numbers of the host, which mean nothing there.
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
		return false, fmt.Errorf("cannot tell the PID namespace: %w", err)
	}
	r.host = ns == initialPIDNamespace
	return r.host, nil
}

// Stat is a part of /proc/PID/stat.
type Stat struct {
	Comm   string // the name of the executable or what the process calls itself, 15 bytes of it
	Start  uint64 // clock ticks from the start of the machine to that of the process
	Kernel bool   // it is a thread of the kernel
}

// ReadStat reads what the process files at proc say of a process.
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
// parentheses and may have spaces and parentheses itself.
func parseStat(s string) (Stat, error) {
	const (
		kernelThread = 0x00200000 // PF_KTHREAD in include/linux/sched.h
		flags        = 9 - 3      // the fields from the third on
		start        = 22 - 3
	)
	open, end := strings.IndexByte(s, '('), strings.LastIndexByte(s, ')')
	if open < 0 || end < open {
		return Stat{}, errors.New("stat has no name of the process")
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
	if err != nil { // ESRCH: it ended meanwhile
		return nil, fmt.Errorf("process %d: %w", pid, gone(err))
	}
	return b, nil
}

// gone makes fs.ErrNotExist of the error that reading a file of a process gives which
// ended after the file was opened.
func gone(err error) error {
	if errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	}
	return err
}
