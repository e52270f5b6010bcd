package probe

import (
	"cmp"
	"fmt"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// version is a Linux version.
type version struct{ major, minor, patch int }

// Features by the version that introduced them.
var (
	oldest    = version{5, 15, 0} // cookies of perf events
	tellsWhy  = version{5, 18, 0} // sched_switch has the previous thread's state
	allocates = version{6, 1, 0}  // uprobe programs may allocate map entries
)

func (v version) String() string {
	if v.patch > 0 {
		return fmt.Sprintf("%d.%d.%d", v.major, v.minor, v.patch)
	}
	return fmt.Sprintf("%d.%d", v.major, v.minor)
}

// before reports whether v is known and older than w.
func (v version) before(w version) bool {
	return v.major > 0 && cmp.Or(cmp.Compare(v.major, w.major), cmp.Compare(v.minor, w.minor), cmp.Compare(v.patch, w.patch)) < 0
}

// filtered reports whether the return of a probed function is subject to seccomp filters. Since 6.11 it is
// a system call on amd64 (ff474a78cef5), which filters do not know: they let it fail, and the process
// dies. Filters do not see it in 6.14, 6.13.3 and 6.12.14 (cf6cb56ef244), and in kernels of
// distributions that have the patch.
func (v version) filtered(arch string) bool {
	return arch == "amd64" && !v.before(version{6, 11, 0}) &&
		(v.before(version{6, 12, 14}) || !v.before(version{6, 13, 0}) && v.before(version{6, 13, 3}))
}

// kernelVersion returns the running kernel's version; zero if unknown.
func kernelVersion() version {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return version{}
	}
	return parseVersion(unix.ByteSliceToString(name.Release[:]))
}

// parseVersion parses the beginning of a release such as 6.8.0-45-generic.
func parseVersion(release string) version {
	var v version
	if n, _ := fmt.Sscanf(release, "%d.%d.%d", &v.major, &v.minor, &v.patch); n < 2 || min(v.major, v.minor, v.patch) < 0 {
		return version{}
	}
	return v
}

// preallocated is the number of entries of preallocated maps.
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

// preallocatedMiB is the memory of preallocated maps in MiB, including kernel overhead.
const preallocatedMiB = 17

// preallocate makes maps allocate their memory at creation. Older kernels warn about programs
// with other maps, which is fatal with panic_on_warn, and real-time kernels reject them.
// Explicit sizes in the options are kept.
func preallocate(spec *ebpf.CollectionSpec, o Options) {
	asked := o.sizes()
	for name, m := range spec.Maps {
		if m.Type != ebpf.Hash { // task storage cannot be preallocated
			continue
		}
		m.Flags &^= unix.BPF_F_NO_PREALLOC
		if n := preallocated[name]; n > 0 && asked[name] <= 0 {
			m.MaxEntries = min(m.MaxEntries, n)
		}
	}
}

// growing is the feature of kernels that do not need preallocate.
func growing(v version) Feature {
	f := Feature{Name: "growing_maps", OK: !v.before(allocates)}
	if !f.OK {
		f.Reason = fmt.Sprintf("maps take %d MiB at once and hold fewer processes, kernels and allocations: Linux %v cannot grow them, %v can", preallocatedMiB, v, allocates)
	}
	return f
}
