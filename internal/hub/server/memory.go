//go:build linux

package server

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gpumeter/gpumeter/internal/hub"
)

// bytesPerSeries is what a series in memory is taken to need, with its part of the index, of
// what is being written and of garbage. bench/hub measured half of it with few samples; a
// limit that is too low refuses with a message, one that is too high ends the process.
const bytesPerSeries = 6 << 10

// seriesFor returns how many series fit into half of the memory: queries need the rest.
func seriesFor(memory int64) int {
	return int(min(max(memory/2/bytesPerSeries, 10_000), hub.DefaultMaxSeries))
}

// machineMemory returns how many bytes this process may use: those of the machine, or of the
// control group that it is in.
func machineMemory(root string) int64 {
	size := int64(8 << 30)
	if text, err := os.ReadFile(filepath.Join(root, "proc/meminfo")); err == nil {
		if fields := strings.Fields(string(text)); len(fields) > 1 && fields[0] == "MemTotal:" {
			if kb, err := strconv.ParseInt(fields[1], 10, 53); err == nil {
				size = kb << 10
			}
		}
	}
	if text, err := os.ReadFile(filepath.Join(root, "sys/fs/cgroup/memory.max")); err == nil {
		if limit, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil {
			size = min(size, limit)
		}
	}
	return size
}
