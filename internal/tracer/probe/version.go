package probe

import (
	"fmt"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// version is one of Linux.
type version struct{ major, minor int }

// What came with which version.
var (
	tellsWhy  = version{5, 18} // sched_switch has the state of the thread that leaves
	allocates = version{6, 1}  // programs on functions may let a map grow
)

func (v version) String() string { return fmt.Sprintf("%d.%d", v.major, v.minor) }

// before says whether v is known and older.
func (v version) before(w version) bool {
	return v.major > 0 && (v.major < w.major || v.major == w.major && v.minor < w.minor)
}

// kernelVersion is that of this kernel; the zero one if it does not say.
func kernelVersion() version {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return version{}
	}
	return parseVersion(unix.ByteSliceToString(name.Release[:]))
}

// parseVersion reads the beginning of a release: 6.8.0-45-generic.
func parseVersion(release string) version {
	var v version
	if n, _ := fmt.Sscanf(release, "%d.%d", &v.major, &v.minor); n != 2 || v.major < 0 || v.minor < 0 {
		return version{}
	}
	return v
}

// preallocated is how many entries the maps have that take their memory at once.
var preallocated = map[string]uint32{
	kernelMapProcs:    1024,
	kernelMapOps:      4096,
	kernelMapErrors:   1024,
	kernelMapKernels:  16384,
	kernelMapNames:    8192,
	kernelMapAllocs:   32768,
	kernelMapDevs:     2048,
	kernelMapUuids:    2048,
	kernelMapStreams:  4096,
	kernelMapContexts: 2048,
	kernelMapComms:    1024,
	kernelMapColls:    2048,
	kernelMapWatches:  4096,
	kernelMapImages:   1024,
}

// preallocatedMiB is what those take, in MiB, with what the kernel adds to each.
const preallocatedMiB = 16

// preallocate makes maps take their memory at once. An older kernel warns of programs that
// have others, which is its end where panic_on_warn is set, and a real-time one refuses
// them. What the options ask for is kept.
func preallocate(spec *ebpf.CollectionSpec, o Options) {
	asked := o.sizes()
	for name, m := range spec.Maps {
		if m.Type != ebpf.Hash { // task storage cannot
			continue
		}
		m.Flags &^= unix.BPF_F_NO_PREALLOC
		if n := preallocated[name]; n > 0 && asked[name] <= 0 {
			m.MaxEntries = min(m.MaxEntries, n)
		}
	}
}

// growing is the feature of a kernel that needs no preallocate.
func growing(v version) Feature {
	f := Feature{Name: "growing_maps", OK: !v.before(allocates)}
	if !f.OK {
		f.Reason = fmt.Sprintf("maps take %d MiB at once and have room for fewer processes, kernels and allocations: Linux %v cannot let them grow, %v can", preallocatedMiB, v, allocates)
	}
	return f
}
