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

// parseNumber returns a whole decimal number, as all of the driver's are.
func parseNumber(s string) (float64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is no whole number", s[:min(len(s), 64)])
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

// maxPIDs bounds what is believed of a list of processes.
const maxPIDs = 4096

// parsePIDs returns the processes of /proc/driver/tenstorrent/N/pids, which has one line
// for each open file. A process outside our PID namespace is 0 there, and left out.
func parsePIDs(s string) ([]uint32, error) {
	var pids []uint32
	for word := range strings.FieldsSeq(s) {
		n, err := strconv.ParseUint(word, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("%q is no process id", word[:min(len(word), 64)])
		}
		if n != 0 && len(pids) < maxPIDs {
			pids = append(pids, uint32(n))
		}
	}
	slices.Sort(pids)
	return slices.Compact(pids), nil
}

// parseLinkSpeed returns the generation of a link speed such as "16.0 GT/s PCIe", absent
// for "Unknown".
func parseLinkSpeed(s string) device.Value {
	if gen := sysfs.LinkGeneration(s); gen > 0 {
		return device.Of(float64(gen))
	}
	return device.Value{}
}

// counter32 adds up a counter of 32 bits that wraps. It is 4 Gi words, 128 GiB, from one
// wrap to the next: more than one of them between two readings goes unseen, which takes
// 13 GB/s in one direction of one kind for a whole interval of 10 s.
type counter32 struct {
	last  uint32
	total uint64
}

// add takes a reading. It begins with all that was counted before.
func (c *counter32) add(now uint32) {
	c.total += uint64(now - c.last) // modulo 1<<32
	c.last = now
}
