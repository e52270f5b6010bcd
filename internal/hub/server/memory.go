//go:build linux

package server

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gpumeter/gpumeter/internal/hub"
)

// bytesPerSeries is the assumed memory per series, including its share of the index, of writes
// in progress and of garbage. bench/hub measures half of it with few samples. A limit that is
// too low rejects series with a message; one that is too high gets the process OOM-killed.
const bytesPerSeries = 6 << 10

// seriesFor returns the number of series that fit into half of memory. Queries need the rest.
func seriesFor(memory int64) int {
	return int(min(max(memory/2/bytesPerSeries, 10_000), hub.DefaultMaxSeries))
}

// queryBytesFor returns the bytes of labels of one query: the memory that is not for series,
// divided among concurrent queries. The labels of all series take half of that.
func queryBytesFor(memory int64) int64 {
	return min(max(memory/2/hub.DefaultQueries, 64<<20), hub.DefaultQueryBytes)
}

// machineMemory returns the memory available to this process in bytes: that of the machine, or
// the limit of its cgroup if lower.
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
