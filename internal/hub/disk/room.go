package disk

import (
	"fmt"
	"math"

	"github.com/prometheus/prometheus/tsdb/chunks"
	"golang.org/x/sys/unix"
)

// Space in bytes that a store keeps free. The database writes chunks some time after it accepted
// their samples, and panics if it cannot.
const (
	// Reserve is for buffers and for what is written at a shutdown. Half of it is enough to start.
	Reserve = 16 << 20
	// SeriesReserve is for the chunk that each series fills.
	SeriesReserve = 512
	// SampleReserve is for each sample in a full chunk that is not written yet.
	SampleReserve = 16
)

// Free returns the bytes that this process can still write below dir.
func Free(dir string) (int64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, fmt.Errorf("cannot read the free space of %s: %w", dir, err)
	}
	return bytesOf(s.Bavail, &s), nil
}

// bytesOf returns the size of blocks of a file system.
func bytesOf(blocks uint64, s *unix.Statfs_t) int64 {
	unit := s.Frsize
	if unit <= 0 {
		unit = s.Bsize
	}
	return int64(min(blocks*uint64(unit), math.MaxInt64)) //nolint:gosec // positive
}

// SegmentSize returns the size of the files of samples in a block. The database allocates a whole file
// whenever it writes a block, and on a small disk the default of 512 MiB would never fit.
func SegmentSize(dir string) int64 {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return chunks.DefaultChunkSegmentSize
	}
	return min(max(bytesOf(s.Blocks, &s)/64, 8<<20), chunks.DefaultChunkSegmentSize)
}

// RoomError says that the disk is too full.
type RoomError struct {
	Dir        string
	Need, Free int64 // bytes
}

// Error implements error.
func (e *RoomError) Error() string {
	return fmt.Sprintf("not enough space on the disk of %s: %s needed, %s available", e.Dir, Bytes(e.Need), Bytes(e.Free))
}

// CheckRoom returns a RoomError if fewer than need bytes are free.
func CheckRoom(dir string, need int64) error {
	free, err := Free(dir)
	if err == nil && free < need {
		err = &RoomError{dir, need, free}
	}
	return err
}

// Bytes formats a number of bytes.
func Bytes(n int64) string {
	v, unit := float64(n), 0
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	for ; v >= 1024 && unit < len(units)-1; unit++ {
		v /= 1024
	}
	if unit == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", v, units[unit])
}
