package ncclinfo

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	maxPerRead = 4 << 20   // bytes per file and read; the excess is skipped
	firstRead  = 256 << 10 // bytes read from the end of a new file
	maxRecord  = 64 << 10  // bytes per line
)

// Record is one collective recorded by the Inspector plugin.
type Record struct {
	Time     time.Time // when the record was written
	Host     string
	PID      int
	Comm     string // communicator hash, as in RAS
	Rank     int
	Size     int
	Op       string // AllReduce and so on
	Sequence uint64
	Bytes    uint64
	Duration time.Duration
	// Timing is the source of the duration: kernel_gpu, kernel_cpu or collective_cpu; empty for
	// older versions.
	Timing string
	// Algorithm and Bus are bandwidths in bytes per second, as defined by nccl-tests.
	Algorithm, Bus float64
}

// ParseRecord parses one line of a dump.
func ParseRecord(line []byte) (Record, error) {
	var doc struct {
		Header struct {
			ID   string `json:"id"`
			Rank int    `json:"rank"`
			Size int    `json:"n_ranks"`
		} `json:"header"`
		Metadata struct {
			Time uint64 `json:"dump_timestamp_us"`
			Host string `json:"hostname"`
			PID  int    `json:"pid"`
		} `json:"metadata"`
		Perf struct {
			Op        string  `json:"coll"`
			Sequence  uint64  `json:"coll_sn"`
			Bytes     uint64  `json:"coll_msg_size_bytes"`
			Duration  uint64  `json:"coll_exec_time_us"`
			Timing    string  `json:"coll_timing_source"`
			Algorithm float64 `json:"coll_algobw_gbs"`
			Bus       float64 `json:"coll_busbw_gbs"`
		} `json:"coll_perf"`
	}
	if err := json.Unmarshal(line, &doc); err != nil {
		return Record{}, err
	}
	const (
		year    = 365 * 24 * uint64(time.Hour/time.Microsecond)
		fastest = 1e6 // GB/s, more than any machine; sums of larger values would overflow
	)
	if doc.Header.ID == "" || doc.Perf.Op == "" || doc.Perf.Duration > year || doc.Metadata.Time > 200*year ||
		doc.Perf.Algorithm < 0 || doc.Perf.Algorithm > fastest || doc.Perf.Bus < 0 || doc.Perf.Bus > fastest {
		return Record{}, errors.New("not a record of a collective")
	}
	const giga = 1e9
	return Record{
		Time: time.UnixMicro(int64(doc.Metadata.Time)), Host: doc.Metadata.Host, PID: doc.Metadata.PID,
		Comm: doc.Header.ID, Rank: doc.Header.Rank, Size: doc.Header.Size,
		Op: doc.Perf.Op, Sequence: doc.Perf.Sequence, Bytes: doc.Perf.Bytes,
		Duration: time.Duration(doc.Perf.Duration) * time.Microsecond, Timing: doc.Perf.Timing,
		Algorithm: doc.Perf.Algorithm * giga, Bus: doc.Perf.Bus * giga,
	}, nil
}

// Dump follows a file written by the Inspector plugin, named host-pid1234.log. It is not safe
// for concurrent use.
type Dump struct {
	Path string
	// Skipped counts bytes skipped because too many arrived at once, Bad counts lines that are
	// not records.
	Skipped, Bad uint64

	known bool
	at    int64 // read position
}

// IsDump reports whether a file is named like a dump.
func IsDump(name string) bool {
	stem, ok := strings.CutSuffix(filepath.Base(name), ".log")
	i := strings.LastIndex(stem, "-pid")
	if !ok || i <= 0 {
		return false
	}
	_, err := strconv.ParseUint(stem[i+len("-pid"):], 10, 32)
	return err == nil
}

// Read returns the records since the last call, in order. Of a long file only the end is read
// the first time.
func (d *Dump) Read() ([]Record, error) {
	lines, err := d.lines()
	var records []Record
	for line := range bytes.Lines(lines) {
		r, err := ParseRecord(line)
		if err != nil {
			d.Bad++
			continue
		}
		records = append(records, r)
	}
	return records, err
}

// lines returns the new complete lines.
func (d *Dump) lines() ([]byte, error) {
	// The writer may be hostile: do not block on anything but a regular file.
	f, err := os.OpenFile(d.Path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", d.Path)
	}
	size := st.Size()
	if size < d.at {
		d.at = 0 // truncated and rewritten
	}
	limit := int64(maxPerRead)
	if !d.known {
		limit = firstRead
	}
	torn := size-d.at > limit
	if torn {
		if d.known {
			d.Skipped += uint64(size - limit - d.at)
		}
		d.at = size - limit
	}
	d.known = true
	b := make([]byte, size-d.at)
	n, err := f.ReadAt(b, d.at)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	b = b[:n]
	if torn { // starts in the middle of a line
		i := bytes.IndexByte(b, '\n') + 1
		b, d.at = b[i:], d.at+int64(i)
	}
	end := bytes.LastIndexByte(b, '\n') + 1
	if end == 0 && len(b) > maxRecord {
		d.Skipped += uint64(len(b)) // too long for a record
		d.at += int64(len(b))
		return nil, nil
	}
	d.at += int64(end)
	return b[:end], nil
}
