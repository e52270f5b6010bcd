package probe

import (
	"runtime"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// Releases of distributions; an unparsable one does not count as old.
func TestVersion(t *testing.T) {
	f := func(release string, want version, old bool) {
		t.Helper()
		got := parseVersion(release)
		if got != want || got.before(allocates) != old {
			t.Errorf("%q is %v, before 6.1: %v; want %v, %v", release, got, got.before(allocates), want, old)
		}
	}
	f("5.15.0-119-generic", version{5, 15, 0}, true)
	f("6.0.12", version{6, 0, 12}, true)
	f("6.1.0-28-amd64", version{6, 1, 0}, false)
	f("6.18.44", version{6, 18, 44}, false)
	f("5.14.0-503.el9.x86_64", version{5, 14, 0}, true)
	f("7.0-rc1", version{7, 0, 0}, false)
	f("", version{}, false)
	f("unknown", version{}, false)
	f("-5.3", version{}, false)
}

// Catches a kernel on which containers are killed when they are traced, and one that is refused for no
// reason.
func TestFiltered(t *testing.T) {
	f := func(release, arch string, want bool) {
		t.Helper()
		if got := parseVersion(release).filtered(arch); got != want {
			t.Errorf("%s on %s: %v", release, arch, got)
		}
	}
	f("6.10.14", "amd64", false)
	f("6.11.0-29-generic", "amd64", true)
	f("6.11.0-29-generic", "arm64", false)
	f("6.12.13", "amd64", true)
	f("6.12.14", "amd64", false)
	f("6.12.95+deb13-amd64", "amd64", false)
	f("6.13.2", "amd64", true)
	f("6.13.3", "amd64", false)
	f("6.14.0-15-generic", "amd64", false)
	f("6.18.44", "amd64", false)
	f("unknown", "amd64", false)

	_, err := Open(Options{version: version{6, 11, 0}})
	if runtime.GOARCH == "amd64" && (err == nil || !strings.Contains(err.Error(), "seccomp")) {
		t.Errorf("6.11: %v", err)
	}
}

// Before 6.1 no hash map may grow: the kernel warns, and panics with panic_on_warn. The total
// stays small, explicit sizes are kept, and task storage is unchanged.
func TestPreallocate(t *testing.T) {
	for arch, spec := range objects(t) {
		o := Options{MaxKernels: 100, MaxNames: 20000}
		check(t, size(spec, o, ModePerf))
		preallocate(spec, o)
		var bytes uint64
		for name, m := range spec.Maps {
			switch {
			case m.Type == ebpf.TaskStorage && m.Flags&unix.BPF_F_NO_PREALLOC == 0:
				t.Errorf("%s: task storage cannot take its memory at once", arch)
			case m.Type != ebpf.Hash:
			case m.Flags&unix.BPF_F_NO_PREALLOC != 0:
				t.Errorf("%s: %s may grow", arch, name)
			case preallocated[name] == 0:
				t.Errorf("%s: %s has no size", arch, name)
			default:
				n := uint64(preallocated[name])
				bytes += n * uint64(64+m.KeySize+m.ValueSize)
			}
		}
		if bytes > preallocatedMiB<<20 {
			t.Errorf("%s: maps take %d KiB at once, said are %d MiB", arch, bytes>>10, preallocatedMiB)
		}
		got := []uint32{spec.Maps[kernelMapKernels].MaxEntries, spec.Maps[kernelMapNames].MaxEntries, spec.Maps[kernelMapOps].MaxEntries}
		if diff := cmp.Diff([]uint32{100, 20000, 4096}, got); diff != "" {
			t.Errorf("%s: entries of kernels, names and ops (-want +got):\n%s", arch, diff)
		}
	}
	if f := growing(version{5, 15, 0}); f.OK || !strings.Contains(f.Reason, "Linux 5.15") || !growing(version{6, 1, 0}).OK || !growing(version{}).OK {
		t.Errorf("the feature is %+v", f)
	}
}

// The programs also run with preallocated maps, in all modes.
func TestPreallocated(t *testing.T) {
	t.Parallel()
	inModes(t, Options{version: version{5, 15, 0}}, nil, func(t *testing.T, m *machine) {
		if got := calls(m.run("count", "400"))["cuLaunchKernel @0"]; got != 400 {
			t.Errorf("%d launches, want 400", got)
		}
		m.lossless()
	})
}
