package discover

import (
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// bootTime returns when the machine booted, zero if that is unknown. The procfs has whole seconds, in which
// a process that took the place of another would seem to have been there before that one ended.
func bootTime(proc string) time.Time {
	b, err := readFile(filepath.Join(proc, "stat"))
	if err != nil {
		return time.Time{}
	}
	seconds, err := parseBoot(b)
	if err != nil || seconds <= 0 {
		return time.Time{}
	}
	boot := time.Unix(seconds, 0)
	var up unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &up) != nil {
		return boot
	}
	if exact := time.Now().Add(-time.Duration(up.Nano())); exact.Sub(boot).Abs() < 2*time.Second { // else it is another machine's procfs
		return exact.Round(0)
	}
	return boot
}
