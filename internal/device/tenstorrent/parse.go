//go:build linux

package tenstorrent

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/sysfs"
)

// parseNumber parses a decimal integer, the only format the driver uses.
func parseNumber(s string) (float64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is not an integer", s[:min(len(s), 64)])
	}
	return float64(n), nil
}

// parseUevent returns the variables of a uevent file.
func parseUevent(s string) map[string]string {
	env := map[string]string{}
	for line := range strings.Lines(s) {
		if k, v, ok := strings.Cut(strings.TrimRight(line, "\n"), "="); ok {
			env[k] = v
		}
	}
	return env
}

// maxPIDs bounds the length of a process list.
const maxPIDs = 4096

// parsePIDs returns the processes in /proc/driver/tenstorrent/N/pids, which has one line
// per open file. A process outside this PID namespace is listed as 0 and skipped.
func parsePIDs(s string) ([]uint32, error) {
	var pids []uint32
	for word := range strings.FieldsSeq(s) {
		n, err := strconv.ParseUint(word, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("%q is not a process id", word[:min(len(word), 64)])
		}
		if n != 0 && len(pids) < maxPIDs {
			pids = append(pids, uint32(n))
		}
	}
	slices.Sort(pids)
	return slices.Compact(pids), nil
}

// parseLinkSpeed returns the PCIe generation for a link speed such as "16.0 GT/s PCIe", or
// absent for "Unknown".
func parseLinkSpeed(s string) device.Value {
	if gen := sysfs.LinkGeneration(s); gen > 0 {
		return device.Of(float64(gen))
	}
	return device.Value{}
}

// counter32 accumulates a 32-bit counter across wraparounds. It wraps after 4 Gi words, 128
// GiB. More than one wrap between two readings goes unnoticed, which takes 13 GB/s in one
// direction of one kind for a whole interval of 10 s.
type counter32 struct {
	last  uint32
	total uint64
}

// add records a reading. The first reading counts in full. A reading slightly below the last
// one, or 0, is not a wraparound but a misreading, and would count as 128 GiB. A reset shows
// by the heartbeat.
func (c *counter32) add(now uint32) {
	const slightly = 1 << 16
	if now < c.last && (c.last-now < slightly || now == 0) {
		return
	}
	c.total += uint64(now - c.last) // modulo 1<<32
	c.last = now
}
