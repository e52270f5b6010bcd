//go:build linux

// Package usage reads the resource use of a process from /proc.
package usage

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// CPU returns the CPU time of the threads of a process. schedstat has nanoseconds, stat only hundredths of a
// second. Go ends no thread that matters.
func CPU(pid int) (time.Duration, error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil || len(files) == 0 {
		return 0, fmt.Errorf("process %d is gone", pid)
	}
	var sum time.Duration
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			continue // a thread that just ended
		}
		var ns int64
		if _, err := fmt.Sscan(string(b), &ns); err != nil {
			return 0, fmt.Errorf("cannot parse %s: %w", file, err)
		}
		sum += time.Duration(ns)
	}
	return sum, nil
}

// Memory returns the resident memory of a process, total and anonymous, in MiB.
func Memory(pid int) (rss, anon float64, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(b)) {
		var kb float64
		if n, _ := fmt.Sscanf(line, "VmRSS: %f", &kb); n == 1 {
			rss = kb / 1024
		}
		if n, _ := fmt.Sscanf(line, "RssAnon: %f", &kb); n == 1 {
			anon = kb / 1024
		}
	}
	return rss, anon, nil
}
