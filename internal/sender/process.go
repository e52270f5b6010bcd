package sender

import (
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

const maxStatus = 1 << 16 // bytes read of a file of a process

func readOf(proc string, pid uint32, name string) ([]byte, error) {
	f, err := os.Open(filepath.Join(proc, strconv.FormatUint(uint64(pid), 10), name))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxStatus))
}

// startOf returns when a process started, in clock ticks since the boot.
func startOf(proc string, pid uint32) (uint64, bool) {
	text, err := readOf(proc, pid, "stat")
	if err != nil {
		return 0, false
	}
	return parseStart(string(text))
}

// parseStart returns the 22nd field of proc_pid_stat(5). The second is in parentheses and may have
// spaces and parentheses.
func parseStart(stat string) (uint64, bool) {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) < 20 {
		return 0, false
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	return start, err == nil
}

// innerOf returns the IDs of a process, from the namespace of proc to its own; nil if it is not visible.
func innerOf(proc string, pid uint32) []uint32 {
	text, err := readOf(proc, pid, "status")
	if err != nil {
		return nil
	}
	if list := parseInner(string(text)); len(list) > 0 {
		return list
	}
	return []uint32{pid} // a kernel without namespaces
}

// parseInner returns the numbers of the line NSpid of proc_pid_status(5).
func parseInner(status string) []uint32 {
	for line := range strings.Lines(status) {
		rest, ok := strings.CutPrefix(line, "NSpid:")
		if !ok {
			continue
		}
		var list []uint32
		for field := range strings.FieldsSeq(rest) {
			n, err := strconv.ParseUint(field, 10, 31)
			if err != nil {
				return nil
			}
			list = append(list, uint32(n))
		}
		return list
	}
	return nil
}
