package probe

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Mappings reports the processes that map files to execute them, such as libraries, as they do it. The kernel
// writes a record of each such mapping into a buffer per CPU, as for perf record.
type Mappings struct {
	match func(path string) bool
	rings []*mappingRing
	lost  uint64
}

type mappingRing struct {
	fd     int
	memory []byte
	tail   uint64
}

const (
	ringPages = 4 // of records; a power of 2
	// maxRecord bounds a record: a path has up to 4096 bytes.
	maxRecord = 5 << 10

	recordMmap = 1 // PERF_RECORD_MMAP
	recordLost = 2 // PERF_RECORD_LOST
)

// OpenMappings watches all processes. Match chooses files by their paths.
func OpenMappings(match func(path string) bool) (*Mappings, error) {
	text, err := os.ReadFile("/sys/devices/system/cpu/online")
	if err != nil {
		return nil, err
	}
	cpus, err := parseCPUs(string(text))
	if err != nil {
		return nil, err
	}
	m := &Mappings{match: match}
	for _, cpu := range cpus {
		r, err := openRing(cpu)
		if errors.Is(err, unix.ENODEV) { // it was taken offline just now
			continue
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("cannot watch the mappings on CPU %d: %w", cpu, err), m.Close())
		}
		m.rings = append(m.rings, r)
	}
	return m, nil
}

func openRing(cpu int) (*mappingRing, error) {
	attr := &unix.PerfEventAttr{
		Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_DUMMY, Size: uint32(unsafe.Sizeof(unix.PerfEventAttr{})),
		Bits: unix.PerfBitMmap | unix.PerfBitWatermark, Wakeup: 1 << 30, // nobody waits: the buffer is polled
	}
	fd, err := unix.PerfEventOpen(attr, -1, cpu, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	memory, err := unix.Mmap(fd, 0, (1+ringPages)*os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return &mappingRing{fd: fd, memory: memory}, nil
}

// PIDs returns the processes that have mapped a chosen file since the last call, possibly more than once. They may not
// be done with it.
func (m *Mappings) PIDs() (pids []uint32) {
	for _, r := range m.rings {
		found, lost := r.read(m.match)
		pids = append(pids, found...)
		m.lost += lost
	}
	return pids
}

// Lost returns how many mappings did not fit into a buffer.
func (m *Mappings) Lost() uint64 { return m.lost }

// Close ends it.
func (m *Mappings) Close() error {
	var errs []error
	for _, r := range m.rings {
		errs = append(errs, unix.Munmap(r.memory), unix.Close(r.fd))
	}
	m.rings = nil
	return errors.Join(errs...)
}

// read takes all records of a buffer.
func (r *mappingRing) read(match func(string) bool) (pids []uint32, lost uint64) {
	page := (*unix.PerfEventMmapPage)(unsafe.Pointer(&r.memory[0]))
	head := atomic.LoadUint64(&page.Data_head)
	pids, lost, r.tail = parseRecords(r.memory[os.Getpagesize():], r.tail, head, match)
	atomic.StoreUint64(&page.Data_tail, r.tail)
	return pids, lost
}

// parseRecords reads the records of a ring buffer from tail to head, and returns the new tail.
func parseRecords(ring []byte, tail, head uint64, match func(string) bool) (pids []uint32, lost, end uint64) {
	var record [maxRecord]byte
	at := func(from, n uint64) []byte { // n bytes, which may wrap around
		size := uint64(len(ring))
		from %= size
		k := copy(record[:n], ring[from:])
		copy(record[k:n], ring)
		return record[:n]
	}
	order := binary.NativeEndian
	if head-tail > uint64(len(ring)) { // impossible
		return nil, 0, head
	}
	for head-tail >= 8 {
		h := at(tail, 8)
		kind, size := order.Uint32(h), uint64(order.Uint16(h[6:]))
		if size < 8 || size > head-tail {
			return pids, lost, head // not a record: what follows is not either
		}
		body := at(tail, min(size, maxRecord))[8:]
		tail += size
		switch {
		case kind == recordMmap && len(body) > 32: // pid, tid, address, length, offset, path
			path, _, _ := bytes.Cut(body[32:], []byte{0})
			if match(string(path)) {
				pids = append(pids, order.Uint32(body))
			}
		case kind == recordLost && len(body) >= 16: // id, how many
			lost += order.Uint64(body[8:])
		}
	}
	return pids, lost, tail
}

// parseCPUs parses a list such as 0-3,8.
func parseCPUs(text string) (cpus []int, err error) {
	for part := range strings.SplitSeq(strings.TrimSpace(text), ",") {
		from, to, span := strings.Cut(part, "-")
		first, err := strconv.Atoi(from)
		last := first
		if err == nil && span {
			last, err = strconv.Atoi(to)
		}
		if err != nil || first < 0 || last < first || last >= 1<<14 {
			return nil, fmt.Errorf("cannot parse the list of CPUs %q", text)
		}
		for cpu := first; cpu <= last; cpu++ {
			cpus = append(cpus, cpu)
		}
	}
	return cpus, nil
}
