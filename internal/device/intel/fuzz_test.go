//go:build linux

package intel

import (
	"strings"
	"testing"
	"time"
)

func FuzzParseFdinfo(f *testing.F) {
	f.Add("drm-driver:\txe\ndrm-client-id:\t3\ndrm-pdev:\t0000:03:00.0\ndrm-resident-vram0:\t24 KiB\ndrm-cycles-rcs:\t28\ndrm-total-cycles-rcs:\t76\ndrm-engine-capacity-rcs:\t1\n", "")
	f.Add("drm-engine-render:\t9288864723 ns\ndrm-engine-compute: 5 ns\n", "drm-engine-render:\t1 ns\n")
	f.Add("drm-cycles-ccs: 18446744073709551615\ndrm-total-cycles-ccs: 1\n", "drm-cycles-ccs: 0\ndrm-total-cycles-ccs: 0\n")
	f.Fuzz(func(t *testing.T, now, before string) {
		a, err := parseFdinfo(now)
		b, err2 := parseFdinfo(before)
		if err != nil || err2 != nil {
			if len(a.engines) > 0 && err != nil {
				t.Error("returned both an error and values")
			}
			return
		}
		if m, ok := a.vram.Get(); ok && (m < 0 || !strings.Contains(now, "drm-")) {
			t.Errorf("%v bytes", m)
		}
		a.keep(&b)
		if v, ok := a.busy(&b, time.Second).Get(); ok && !(v >= 0 && v <= 1) {
			t.Errorf("busy %v", v)
		}
	})
}

func FuzzParseUevent(f *testing.F) {
	f.Add("DRIVER=xe\nPCI_ID=8086:E20B\n")
	f.Fuzz(func(t *testing.T, s string) {
		for k, v := range parseUevent(s) {
			if !strings.Contains(s, k+"="+v) {
				t.Errorf("invented %q=%q", k, v)
			}
		}
	})
}

func FuzzParseAER(f *testing.F) {
	f.Add("RxErr 0\nBadTLP 12\nTOTAL_ERR_COR 12\n")
	f.Fuzz(func(t *testing.T, s string) {
		for name := range parseAER(s) {
			if name == "" || !strings.Contains(s, name) {
				t.Errorf("invented %q", name)
			}
		}
	})
}

func FuzzParseReasons(f *testing.F) {
	f.Add("pl1 thermal\n")
	f.Add("none")
	f.Fuzz(func(t *testing.T, s string) {
		names := parseReasons(s)
		if len(names) > 32 {
			t.Errorf("%d causes", len(names))
		}
		set := map[string]bool{}
		for _, name := range names {
			set[name] = true
		}
		if len(sortCauses(set)) != len(names) {
			t.Errorf("%q: %v", names, sortCauses(set))
		}
	})
}

func FuzzKernelThread(f *testing.F) {
	f.Add("2 (kthreadd) S 0 0 0 0 -1 2129984 0 0")
	f.Add("2 (a) b) S 0 0 0 0 -1 4194304 0")
	f.Fuzz(func(_ *testing.T, s string) { kernelThread(s) })
}

func TestKernelThread(t *testing.T) {
	f := func(stat string, want bool) {
		t.Helper()
		if kernelThread(stat) != want {
			t.Errorf("%q", stat)
		}
	}
	f("2 (kthreadd) S 0 0 0 0 -1 2129984 0 0", true)
	f("2 (kthreadd) S 0 0 0 0 -1 2129984", true)
	f("2 (kthreadd) S 0 0 0 0 -1 4194304 0 0", false)         // a process of that name
	f("2 (x) S 0 0 0 0 -1 2129984) S 1 1 1 0 -1 64 0", false) // a process that imitates a kernel thread in its name
	f("2 kthreadd S", false)
	f("2 (kthreadd) S 0", false)
	f("", false)
}
