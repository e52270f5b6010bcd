package tracer

import (
	"math"
	"testing"
)

// A symbol in two rows would count its calls twice, and a name with two classes would have
// two series.
func TestOps(t *testing.T) {
	symbols := map[string]string{}
	names := map[string]Class{}
	for i, op := range Ops {
		if int(op.ID) != i+1 || OpByID(op.ID) != &Ops[i] {
			t.Errorf("%s has id %d at index %d", op.Name, op.ID, i)
		}
		if op.Body == 0 || op.Body >= bodyEnd || op.Library == "" || op.Name == "" || len(op.Symbols) == 0 {
			t.Errorf("%s is incomplete", op.Name)
		}
		if (op.Class == "") != op.Quiet || op.Entry && !op.Quiet {
			t.Errorf("%s has class %q, quiet %v, entry %v: counted operations need a class and a return probe", op.Name, op.Class, op.Quiet, op.Entry)
		}
		for _, s := range op.Symbols {
			if other, ok := symbols[s]; ok {
				t.Errorf("%s and %s share symbol %s", other, op.Name, s)
			}
			symbols[s] = op.Name
			if op.Library != LibraryTorch && s[:2] != op.Name[:2] {
				t.Errorf("%s has %s", op.Name, s)
			}
		}
		if class, ok := names[op.Name]; ok {
			t.Errorf("%s is listed twice, with class %s", op.Name, class)
		}
		names[op.Name] = op.Class
	}
	if OpByID(0) != nil || OpByID(uint8(len(Ops)+1)) != nil {
		t.Error("an invalid id has an operation")
	}
}

// The kernel unpacks a cookie by these bit positions.
func FuzzCookie(f *testing.F) {
	f.Add(uint8(1), uint8(2), uint8(3), uint8(4), uint8(5), uint8(6), true, false)
	f.Add(uint8(255), uint8(63), uint8(7), uint8(15), uint8(15), uint8(7), false, true)
	f.Fuzz(func(t *testing.T, id, body, kind, a, b, small uint8, quiet, entry bool) {
		o := Op{ID: id, Body: Body(body & 63), Quiet: quiet, Entry: entry, Args: Args{
			Bytes: a & 15, Times: b & 15, Stream: (a + 1) & 15, Pointer: (b + 1) & 15, Aux: (a + 2) & 15,
			Type: (b + 2) & 15, Reduce: (a + 3) & 15, Peer: (b + 3) & 15, Shift: small & 7, Variant: (small + 1) & 7, Kind: Kind(kind & 7),
		}}
		c := o.Cookie()
		bit := func(n uint) bool { return c>>n&1 != 0 }
		got := Op{ID: uint8(c), Body: Body(c >> 8 & 63), Quiet: bit(17), Entry: bit(18), Args: Args{
			Kind: Kind(c >> 14 & 7), Bytes: uint8(c >> 20 & 15), Times: uint8(c >> 24 & 15), Stream: uint8(c >> 28 & 15),
			Pointer: uint8(c >> 32 & 15), Aux: uint8(c >> 36 & 15), Type: uint8(c >> 40 & 15), Reduce: uint8(c >> 44 & 15),
			Peer: uint8(c >> 48 & 15), Shift: uint8(c >> 52 & 7), Variant: uint8(c >> 55 & 7),
		}}
		if got.ID != o.ID || got.Body != o.Body || got.Quiet != o.Quiet || got.Entry != o.Entry || got.Args != o.Args {
			t.Errorf("%+v packed and unpacked is %+v", o, got)
		}
		o.Library = LibraryNCCL
		if o.Cookie() != c|1<<19 {
			t.Error("ncclInProgress is not marked, or shifts another field")
		}
	})
}

// A size is in the bucket whose bounds enclose it, exactly at powers of 2.
func FuzzBuckets(f *testing.F) {
	for _, n := range []uint64{0, 1, 2, 3, 4, 5, 1 << 10, 1<<10 + 1, 1448, 1449, 1<<35 - 1, 1 << 36, 1 << 63, math.MaxUint64} {
		f.Add(n)
	}
	f.Fuzz(func(t *testing.T, n uint64) {
		i := SizeBucket(n)
		low, high := math.Exp2(float64(i+SizeOffset)/2), math.Exp2(float64(i+1+SizeOffset)/2)
		// Bounds that are not powers of 2 are irrational, so no size equals one.
		if v := float64(n); i < 0 || i >= SizeBuckets || i > 0 && v <= low || i < SizeBuckets-1 && v > high && n > 1 {
			t.Errorf("%d bytes are in bucket %d, from %v to %v", n, i, low, high)
		}

		i = TimeBucket(n)
		low, high = math.Exp2(float64(i+TimeOffset)/2), math.Exp2(float64(i+1+TimeOffset)/2)
		s := float64(n) / 1e9
		slack := 2e-9 + s*1e-6
		if i < 0 || i >= TimeBuckets || i > 0 && s < low-slack || i < TimeBuckets-1 && s > high+slack {
			t.Errorf("%d ns are in bucket %d, from %v to %v s", n, i, low, high)
		}
	})
}

func TestHistogram(t *testing.T) {
	a := NewHistogram(3, -1, []uint64{0, 2, 1, 0, 0})
	b := NewHistogram(4, -1, []uint64{1, 2, 1, 1, 0})
	if a.Count != 3 || len(a.Buckets) != 3 || len(b.Buckets) != 4 {
		t.Errorf("%+v, %+v", a, b)
	}
	d := b.Sub(a)
	if d.Count != 2 || d.Sum != 1 || d.Buckets[0] != 1 || d.Buckets[1] != 0 || d.Buckets[3] != 1 {
		t.Errorf("the difference is %+v", d)
	}
	if s := d.Add(a); s.Count != b.Count || s.Sum != b.Sum || s.Buckets[1] != 2 {
		t.Errorf("the sum is %+v", s)
	}
	if anew := a.Sub(b); anew.Count != a.Count {
		t.Errorf("after a counter reset: %+v", anew)
	}
	if q := b.Quantile(0.5); q != math.Exp2(0.5) {
		t.Errorf("the median is %v", q)
	}
	if q := (Histogram{}).Quantile(0.5); q != 0 {
		t.Errorf("the median of an empty histogram is %v", q)
	}
}
