// Package disk examines and repairs the folder of a hub's store: before the database opens
// it, and for gpumeter hub check.
//
// The database has a repair of its own. It deletes what follows the first unreadable byte of
// a log, needs room on the disk, and cannot be resumed. Repair therefore runs first and
// leaves nothing to repair. It never deletes data that cannot be read: such files are moved
// to Damaged.
package disk

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"

	tsdbrecord "github.com/prometheus/prometheus/tsdb/record"
	"github.com/prometheus/prometheus/util/compression"
)

// The format of a segment of a log: pages of 32 KiB with fragments of records. See
// https://github.com/prometheus/prometheus/blob/main/tsdb/docs/format/wal.md.
const (
	pageSize   = 32 << 10
	headerSize = 7 // type, length, checksum

	fragmentFull   = 1
	fragmentFirst  = 2
	fragmentMiddle = 3
	fragmentLast   = 4

	typeMask   = 7
	snappyMask = 1 << 3
	zstdMask   = 1 << 4
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// segmentScan is what a segment contains.
type segmentScan struct {
	size    int64
	records int
	// torn is the offset of an incomplete record at the end, left by a kill; -1 if there is none.
	torn int64
	// unfinished counts incomplete records that others follow: the disk was full, and later was not.
	// They were never acknowledged.
	unfinished int
	// damage describes the first unreadable part; nil if there is none.
	damage error
	// marked is set if a record says that out-of-order samples are also in a chunk.
	marked bool
}

// clean reports whether the database can read the segment to its end.
func (s *segmentScan) clean() bool { return s.torn < 0 && s.unfinished == 0 && s.damage == nil }

// rewrite reports whether the segment needs a copy: a record in its middle cannot be read.
func (s *segmentScan) rewrite() bool { return s.unfinished > 0 || s.damage != nil }

// scanner reads the records of one segment, also those after an unreadable part.
type scanner struct {
	out      segmentScan
	each     func(record []byte) error // may be nil
	decoder  compression.DecodeBuffer
	record   []byte // fragments of the current record
	start    int64  // offset of the current record
	open     bool   // a record has begun
	lost     bool   // fragments up to the next record belong to an unreadable part
	compress compression.Type
}

// scanSegment calls each for every complete record of the segment at path. The record is
// valid during the call only.
func scanSegment(path string, each func(record []byte) error) (segmentScan, error) {
	f, err := os.Open(path)
	if err != nil {
		return segmentScan{}, err
	}
	defer f.Close()
	s := scanner{out: segmentScan{torn: -1}, each: each, decoder: compression.NewSyncDecodeBuffer()}
	in := bufio.NewReaderSize(f, 16*pageSize)
	page := make([]byte, pageSize)
	for {
		n, err := io.ReadFull(in, page)
		if n > 0 {
			if err := s.page(page[:n]); err != nil {
				return s.out, err
			}
			s.out.size += int64(n)
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			break
		}
		if err != nil {
			return s.out, fmt.Errorf("cannot read %s: %w", path, err)
		}
	}
	if s.open && s.out.torn < 0 {
		s.out.torn = s.start
	}
	return s.out, nil
}

// page reads the fragments of a page. Only the last page of a file may be short.
func (s *scanner) page(p []byte) error {
	for i := 0; i < len(p); {
		at := s.out.size + int64(i)
		data, why := fragmentAt(p, i)
		switch {
		case p[i]&typeMask == 0:
			if allZero(p[i:]) {
				return nil
			}
			s.damaged(at, "the padding of a page is not zero")
			i = nextFragment(p, i+1)
			continue
		case why == fileEnds && nextFragment(p, i+1) == len(p):
			s.out.torn = at
			if s.open {
				s.out.torn = s.start
			}
			return nil
		case why != "":
			s.damaged(at, why)
			i = nextFragment(p, i+1)
			continue
		}
		if err := s.fragment(p[i], at, data); err != nil {
			return err
		}
		i += headerSize + len(data)
	}
	return nil
}

const fileEnds = "the file ends within a record"

// fragmentAt returns the data of the fragment at p[i], or why there is none.
func fragmentAt(p []byte, i int) (data []byte, why string) {
	if len(p)-i < headerSize {
		if len(p) < pageSize {
			return nil, fileEnds
		}
		return nil, "a page ends within the header of a record"
	}
	end := i + headerSize + int(binary.BigEndian.Uint16(p[i+1:]))
	if p[i]&typeMask > fragmentLast || end > pageSize {
		return nil, "the header of a record is not valid"
	}
	if end > len(p) {
		return nil, fileEnds
	}
	data = p[i+headerSize : end]
	if crc32.Checksum(data, castagnoli) != binary.BigEndian.Uint32(p[i+3:]) {
		return nil, "the checksum of a record is wrong"
	}
	return data, ""
}

// nextFragment returns the position of the next readable fragment from i on, or the end of the page.
func nextFragment(p []byte, i int) int {
	for ; i+headerSize < len(p); i++ {
		if kind := p[i] & typeMask; kind == 0 || kind > fragmentLast {
			continue
		}
		if data, why := fragmentAt(p, i); why == "" && len(data) > 0 { // no data has no checksum
			return i
		}
	}
	return len(p)
}

// damaged drops the current record.
func (s *scanner) damaged(at int64, why string) {
	if s.out.damage == nil {
		s.out.damage = fmt.Errorf("%s at byte %d", why, at)
	}
	s.open, s.lost = false, true
}

// fragment adds a fragment to the current record.
func (s *scanner) fragment(header byte, at int64, data []byte) error {
	kind := header & typeMask
	switch begins := kind == fragmentFull || kind == fragmentFirst; {
	case begins:
		if s.open {
			s.out.unfinished++
		}
		s.record, s.start, s.lost, s.compress = s.record[:0], at, false, compression.None
		switch {
		case header&snappyMask != 0:
			s.compress = compression.Snappy
		case header&zstdMask != 0:
			s.compress = compression.Zstd
		}
	case !s.open:
		if !s.lost {
			s.out.unfinished++
		}
		s.lost = true
		return nil
	}
	s.record = append(s.record, data...)
	s.open = kind == fragmentFirst || kind == fragmentMiddle
	if s.open {
		return nil
	}
	record, err := compression.Decode(s.compress, s.record, s.decoder)
	if err != nil {
		if s.out.damage == nil {
			s.out.damage = fmt.Errorf("a record cannot be decompressed at byte %d: %w", s.start, err)
		}
		return nil
	}
	s.out.records++
	s.out.marked = s.out.marked || len(record) > 0 && record[0] == byte(tsdbrecord.MmapMarkers)
	if s.each == nil {
		return nil
	}
	return s.each(record)
}
