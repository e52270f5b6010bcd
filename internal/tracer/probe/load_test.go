package probe

import (
	"bytes"
	"fmt"
	"reflect"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/gpumeter/gpumeter/internal/tracer"
)

// objects are the committed ones, by architecture.
func objects(t *testing.T) map[string]*ebpf.CollectionSpec {
	t.Helper()
	specs := map[string]*ebpf.CollectionSpec{}
	for _, arch := range []string{"x86", "arm64"} {
		spec, err := ebpf.LoadCollectionSpec("kernel_" + arch + "_bpfel.o")
		check(t, err)
		specs[arch] = spec
	}
	return specs
}

// C and Go types have the same layout in the objects of both architectures: a moved member
// would be read as another.
func TestTypesAreThoseOfC(t *testing.T) {
	types := map[string]any{
		"proc_key": kernelProcKey{}, "proc_val": kernelProcVal{}, "op_key": kernelOpKey{}, "op_val": kernelOpVal{},
		"error_key": kernelErrorKey{}, "kernel_key": kernelKernelKey{}, "kernel_val": kernelKernelVal{},
		"handle_key": kernelHandleKey{}, "name": kernelName{}, "alloc_key": kernelAllocKey{}, "alloc_val": kernelAllocVal{}, "context_val": kernelContextVal{},
		"dev_key": kernelDevKey{}, "dev_val": kernelDevVal{}, "uuid": kernelUuid{}, "stream_key": kernelStreamKey{}, "stream_val": kernelStreamVal{}, "mark_val": kernelMarkVal{},
		"comm_val": kernelCommVal{}, "coll_key": kernelCollKey{}, "coll_val": kernelCollVal{},
		"watch_key": kernelWatchKey{}, "event": kernelEvent{},
	}
	for arch, spec := range objects(t) {
		for name, value := range types {
			var c *btf.Struct
			if err := spec.Types.TypeByName(name, &c); err != nil {
				t.Errorf("%s: %s: %v", arch, name, err)
				continue
			}
			want := []string{fmt.Sprint("size ", c.Size)}
			for _, m := range c.Members {
				size, err := btf.Sizeof(m.Type)
				check(t, err)
				want = append(want, fmt.Sprint(strings.ReplaceAll(m.Name, "_", ""), " at ", m.Offset.Bytes(), " of ", size))
			}
			g := reflect.TypeOf(value)
			got := []string{fmt.Sprint("size ", g.Size())}
			for f := range g.Fields() {
				if f.Name != "_" {
					got = append(got, fmt.Sprint(strings.ToLower(f.Name), " at ", f.Offset, " of ", f.Type.Size()))
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s: %s (-C +Go):\n%s", arch, name, diff)
			}
		}
		for name, m := range spec.Maps {
			if m.Type == ebpf.Hash && m.Flags&unix.BPF_F_NO_PREALLOC == 0 {
				t.Errorf("%s: the map %s takes its memory at once", arch, name)
			}
		}
	}
}

// Bodies and bucket counts have the same numbers in both languages.
func TestNumbersAreThoseOfC(t *testing.T) {
	for arch, spec := range objects(t) {
		var bodies *btf.Enum
		check(t, spec.Types.TypeByName("body", &bodies))
		got := map[string]tracer.Body{}
		for _, v := range bodies.Values {
			got[v.Name] = tracer.Body(v.Value)
		}
		want := map[string]tracer.Body{
			"BODY_CALL": tracer.BodyCall, "BODY_LAUNCH": tracer.BodyLaunch, "BODY_LAUNCH_EX": tracer.BodyLaunchEx, "BODY_WORK": tracer.BodyWork,
			"BODY_CAPTURE": tracer.BodyCapture, "BODY_COPY": tracer.BodyCopy, "BODY_COPY_STRUCT": tracer.BodyCopyStruct, "BODY_COPY_BATCH": tracer.BodyCopyBatch,
			"BODY_SET": tracer.BodySet, "BODY_ALLOC": tracer.BodyAlloc, "BODY_FREE": tracer.BodyFree, "BODY_SYNC": tracer.BodySync,
			"BODY_STREAM_END": tracer.BodyStreamEnd, "BODY_NAME": tracer.BodyName, "BODY_NAME_OF": tracer.BodyNameOf, "BODY_ALIAS": tracer.BodyAlias,
			"BODY_UUID": tracer.BodyUUID, "BODY_CONTEXT": tracer.BodyContext, "BODY_CURRENT": tracer.BodyCurrent, "BODY_PUSH": tracer.BodyPush,
			"BODY_POP": tracer.BodyPop, "BODY_COLL": tracer.BodyColl, "BODY_INIT": tracer.BodyInit, "BODY_INIT_ALL": tracer.BodyInitAll,
			"BODY_SPLIT": tracer.BodySplit, "BODY_COMM_END": tracer.BodyCommEnd, "BODY_COMM_ASK": tracer.BodyCommAsk, "BODY_TORCH": tracer.BodyTorch,
			"BODY_SCALABLE": tracer.BodyScalable, "BODY_RESET": tracer.BodyReset, "BODY_MARK": tracer.BodyMark, "BODY_AFTER": tracer.BodyAfter,
			"BODY_MAP": tracer.BodyMap, "BODY_UNMAP": tracer.BodyUnmap, "BODY_POOL": tracer.BodyPool, "BODY_CONTEXT_END": tracer.BodyContextEnd,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-Go +C):\n%s", arch, diff)
		}
	}
	if n := len(kernelOpVal{}.Buckets); n != tracer.TimeBuckets {
		t.Errorf("the kernel has %d buckets of time, want %d", n, tracer.TimeBuckets)
	}
	if n := len(kernelCollVal{}.Size); n != tracer.SizeBuckets {
		t.Errorf("the kernel has %d buckets of sizes, want %d", n, tracer.SizeBuckets)
	}
}

// The embedded object is the committed one for this architecture, and stays small.
func TestObjects(t *testing.T) {
	if runtime.GOARCH == "amd64" {
		spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(_KernelBytes))
		check(t, err)
		if len(spec.Programs) != 7 {
			t.Errorf("%d programs, want 7", len(spec.Programs))
		}
	}
	if n := len(_KernelBytes); n > 200<<10 {
		t.Errorf("the object has %d bytes: is a body inlined into each program?", n)
	}
}

// Missing capabilities are named, with their cost.
func TestRights(t *testing.T) {
	f := func(set uint64, want string) {
		t.Helper()
		if got := describe(lacking(set, required)); got != want {
			t.Errorf("%x gives %q, want %q", set, got, want)
		}
	}
	const bpf, perfmon, admin = 1 << unix.CAP_BPF, 1 << unix.CAP_PERFMON, 1 << unix.CAP_SYS_ADMIN
	f(bpf|perfmon, "")
	f(admin, "")
	f(bpf, "CAP_PERFMON is missing: functions cannot be probed")
	f(0, "CAP_BPF is missing: programs cannot be loaded; CAP_PERFMON is missing: functions cannot be probed")
}

// The kernel's types take megabytes and are not needed after loading. The test is not parallel
// so that no other test allocates.
func TestOpenLeavesLittle(t *testing.T) {
	held := func() int64 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapSys - m.HeapReleased)
	}
	debug.FreeOSMemory()
	before := held()
	p := opened(t, Options{})
	if n := held() - before; n > 4<<20 {
		t.Errorf("an opened probe holds %d KiB more than before", n>>10)
	}
	if p.types != nil {
		t.Error("it keeps the types of the kernel")
	}
}

// Catches a kernel on which less works than before: the tests of a feature that is missing are skipped.
func TestFeatures(t *testing.T) {
	t.Parallel()
	for _, f := range opened(t, Options{}).Features() {
		t.Logf("%s: %v %s", f.Name, f.OK, f.Reason)
		if !f.OK && requires(f.Name) {
			t.Errorf("GPUMETER_REQUIRE asks for %s: %s", f.Name, f.Reason)
		}
	}
}

// Unknown modes and invalid points are rejected.
func TestRefused(t *testing.T) {
	t.Parallel()
	p := opened(t, Options{})
	if _, err := Open(Options{Mode: "kprobe"}); err == nil || !strings.Contains(err.Error(), "session, multi or perf") {
		t.Errorf("an unknown mode gives %v", err)
	}
	if _, err := p.Attach("/proc/self/exe", Identity{}, nil); err == nil {
		t.Error("nothing can be probed")
	}
	if _, err := p.Attach("/nonexistent", Identity{}, []Point{{Op: &tracer.Ops[0], Symbol: "x", Offset: 64}}); err == nil {
		t.Error("a file that does not exist can be probed")
	}
}
