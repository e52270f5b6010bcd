//go:build linux

package agent

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"
)

// forgetStart gives back, once after a while, the memory of code and tables that only the
// start of the process needed; what is still needed comes back from the page cache. The
// hub's code, which an agent has and does not run, costs 6 MB without and 3 MB with it. The returned
// function calls it off.
func forgetStart(after time.Duration) (stop func()) {
	timer := time.AfterFunc(after, func() {
		text, err := os.ReadFile("/proc/self/smaps")
		if err != nil {
			return
		}
		self, err := os.Readlink("/proc/self/exe")
		if err != nil {
			return
		}
		for _, part := range clean(string(text), self) {
			// If it fails nothing is lost but room.
			_, _, _ = syscall.Syscall(syscall.SYS_MADVISE, part.start, part.end-part.start, syscall.MADV_DONTNEED)
		}
	})
	return func() { timer.Stop() }
}

// mapping is a part of the address space.
type mapping struct{ start, end uintptr }

// clean returns where a file is mapped and nobody has written to: what was, such as by the
// loader before it made it read-only, or by a probe, would be lost. text is that of
// /proc/PID/smaps.
func clean(text, file string) []mapping {
	var out []mapping
	var m mapping
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) >= 5 && strings.Contains(fields[0], "-") {
			m = mapping{}
			if len(fields) == 6 && fields[5] == file && (fields[1] == "r-xp" || fields[1] == "r--p") {
				if _, err := fmt.Sscanf(fields[0], "%x-%x", &m.start, &m.end); err != nil {
					m = mapping{}
				}
			}
			continue
		}
		if m.start < m.end && line == "Anonymous:             0 kB\n" {
			out = append(out, m)
		}
	}
	return out
}
