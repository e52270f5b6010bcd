package disk

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/tsdb/wlog"
)

// writeSegment writes records of the given sizes to a new segment and returns its path. Record i
// consists of the byte i+1.
func writeSegment(t *testing.T, sizes ...int) string {
	t.Helper()
	dir := t.TempDir()
	w, err := newLog(dir, wlog.DefaultSegmentSize)
	if err != nil {
		t.Fatal(err)
	}
	for i, n := range sizes {
		if err := w.Log(bytes.Repeat([]byte{byte(i + 1)}, n)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return wlog.SegmentName(dir, 0)
}

// incompressible is a record that fills several pages.
func incompressible(n int) []byte {
	b := make([]byte, n)
	x := uint32(1)
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	return b
}

type segmentResult struct {
	Records    []string
	Torn       int64
	Unfinished int
	Damage     string
}

func scanTest(t *testing.T, path string) segmentResult {
	t.Helper()
	r := segmentResult{}
	s, err := scanSegment(path, func(rec []byte) error {
		r.Records = append(r.Records, fmt.Sprintf("%d x %d", len(rec), rec[0]))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	r.Torn, r.Unfinished = s.torn, s.unfinished
	if s.damage != nil {
		r.Damage = s.damage.Error()
	}
	return r
}

// Catches a scanner that loses records after an unreadable one, or takes a record that was never
// complete for damage.
func TestScanSegment(t *testing.T) {
	f := func(name string, damage func([]byte) []byte, want segmentResult) {
		t.Helper()
		path := writeSegment(t, 100, 200, 300)
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, damage(b), 0o600); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, scanTest(t, path)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	all := []string{"100 x 1", "200 x 2", "300 x 3"}
	second := func(b []byte) int { return headerSize + int(b[2]) }
	third := func(b []byte) int { i := second(b); return i + headerSize + int(b[i+2]) }
	end := func(b []byte) int { i := third(b); return i + headerSize + int(b[i+2]) }
	page := func(b []byte) []byte { return append(b[:0:0], b[:pageSize]...) }
	f("whole", func(b []byte) []byte { return b }, segmentResult{Records: all, Torn: -1})
	f("without padding", func(b []byte) []byte { return b[:end(b)] }, segmentResult{Records: all, Torn: -1})
	f("empty", func([]byte) []byte { return nil }, segmentResult{Torn: -1})
	f("ends in a record", func(b []byte) []byte { return b[:end(b)-1] },
		segmentResult{Records: all[:2], Torn: int64(third(writeBytes(t)))})
	f("ends in a header", func(b []byte) []byte { return b[:third(b)+3] },
		segmentResult{Records: all[:2], Torn: int64(third(writeBytes(t)))})
	f("flipped bit, then another page", func(b []byte) []byte {
		first := page(b)
		b = append(b, first...)
		b[second(b)+headerSize] ^= 1
		return b
	}, segmentResult{Records: append([]string{"100 x 1", "300 x 3"}, all...), Torn: -1, Damage: fmt.Sprintf("the checksum of a record is wrong at byte %d", second(writeBytes(t)))})
	f("flipped bit in a length", func(b []byte) []byte { b[second(b)+2] ^= 4; return b },
		segmentResult{Records: []string{"100 x 1", "300 x 3"}, Torn: -1, Damage: fmt.Sprintf("the checksum of a record is wrong at byte %d", second(writeBytes(t)))})
	f("padding is not zero", func(b []byte) []byte { b[end(b)+5] = 1; return b },
		segmentResult{Records: all, Torn: -1, Damage: fmt.Sprintf("the padding of a page is not zero at byte %d", end(writeBytes(t)))})
	f("first fragment, then a record: the disk was full", func(b []byte) []byte {
		b[second(b)] = b[second(b)]&^typeMask | fragmentFirst
		return b
	}, segmentResult{Records: []string{"100 x 1", "300 x 3"}, Torn: -1, Unfinished: 1})
	f("first fragment at the end", func(b []byte) []byte {
		b[third(b)] = b[third(b)]&^typeMask | fragmentFirst
		return b
	}, segmentResult{Records: all[:2], Torn: int64(third(writeBytes(t)))})
	f("last fragment without a first one", func(b []byte) []byte {
		b[second(b)] = b[second(b)]&^typeMask | fragmentLast
		return b
	}, segmentResult{Records: []string{"100 x 1", "300 x 3"}, Torn: -1, Unfinished: 1})
	f("compression bit lost", func(b []byte) []byte { b[second(b)] ^= snappyMask | zstdMask; return b },
		segmentResult{Records: []string{"100 x 1", "300 x 3"}, Torn: -1, Damage: fmt.Sprintf("a record cannot be decompressed at byte %d: invalid input: magic number mismatch", second(writeBytes(t)))})
}

// writeBytes returns the undamaged segment of TestScanSegment.
func writeBytes(t *testing.T) []byte {
	t.Helper()
	b, err := os.ReadFile(writeSegment(t, 100, 200, 300))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Catches a copy that loses records that span pages, or that the database cannot read.
func TestCopyRecords(t *testing.T) {
	dir := t.TempDir()
	w, err := newLog(dir, wlog.DefaultSegmentSize)
	if err != nil {
		t.Fatal(err)
	}
	long := incompressible(5 * pageSize)
	for i := range 20 {
		if err := w.Log([]byte{byte(i + 1)}, long[:i*pageSize/4+1]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	from := wlog.SegmentName(dir, 0)
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	whole := scanTest(t, from)
	b[10*pageSize+100] ^= 1
	if err := os.WriteFile(from, b, 0o600); err != nil {
		t.Fatal(err)
	}
	want := scanTest(t, from)
	if lost := len(whole.Records) - len(want.Records); lost < 1 || lost > 2 || want.Damage == "" {
		t.Fatalf("one flipped bit loses %d of %d records, damage %q", lost, len(whole.Records), want.Damage)
	}
	to := filepath.Join(t.TempDir(), "00000007")
	if err := copyRecords(from, to); err != nil {
		t.Fatal(err)
	}
	want.Damage = ""
	if diff := cmp.Diff(want, scanTest(t, to)); diff != "" {
		t.Errorf("copy (-want +got):\n%s", diff)
	}
	s, err := wlog.OpenReadSegment(to)
	if err != nil {
		t.Fatal(err)
	}
	in := wlog.NewSegmentBufReader(s)
	defer in.Close()
	r := wlog.NewReader(in)
	var got []string
	for r.Next() {
		got = append(got, fmt.Sprintf("%d x %d", len(r.Record()), r.Record()[0]))
	}
	if diff := cmp.Diff(want.Records, got); diff != "" || r.Err() != nil {
		t.Errorf("the database reads, with error %v (-want +got):\n%s", r.Err(), diff)
	}
}
