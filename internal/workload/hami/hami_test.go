package hami

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const mib = 1 << 20

// Catches a slice of another container, device or size, and text that no version of HAMi writes but that becomes one.
func TestOf(t *testing.T) {
	const a, b = "GPU-0aa6b97c-d386-26ba-a94a-b9d27c2e3a71", "GPU-53a2dede-36d7-7055-9a89-c5631cd63077"
	f := func(what, text string, want map[string][]Slice) {
		t.Helper()
		got, err := Of(text, []string{"init"}, []string{"one", "two"})
		if (err != nil) != (want == nil) {
			t.Errorf("%s: %v", what, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	f("one container", a+",NVIDIA,1000,30:;;", map[string][]Slice{"one": {{a, 1000 * mib, 0.3}}})
	f("the second", ";"+a+",NVIDIA,45000,0:;", map[string][]Slice{"two": {{a, 45000 * mib, 0}}})
	f("two devices", a+",NVIDIA,1000,30:"+b+",NVIDIA,2000,100:;;", map[string][]Slice{"one": {{a, 1000 * mib, 0.3}, {b, 2000 * mib, 1}}})
	f("without a colon at the end", a+",NVIDIA,1000,30;;", map[string][]Slice{"one": {{a, 1000 * mib, 0.3}}})
	f("init containers first", ";;"+a+",NVIDIA,1000,30:;", map[string][]Slice{"two": {{a, 1000 * mib, 0.3}}})
	f("containers without a device", ",,0,0:;"+a+",NVIDIA,1000,0:;", map[string][]Slice{"two": {{a, 1000 * mib, 0}}})
	f("no devices", ";;", map[string][]Slice{})
	f("a partition of an older version", a+"[0-1],NVIDIA,1000,30:;;", map[string][]Slice{"one": {{a, 1000 * mib, 0.3}}})
	f("a field that a newer version adds", a+",NVIDIA,1000,30,x:;;", map[string][]Slice{"one": {{a, 1000 * mib, 0.3}}})

	f("of another pod", ";;;;"+a+",NVIDIA,1000,30:;", nil)
	f("empty", "", nil)
	f("two fields", a+",NVIDIA:;;", nil) // as a broken version wrote
	f("no memory", a+",NVIDIA,0,30:;;", nil)
	f("negative", a+",NVIDIA,-1,30:;;", nil)
	f("more than all cores", a+",NVIDIA,1000,101:;;", nil)
	f("no device", ",NVIDIA,1000,30:;;", nil)
	f("not a number", a+",NVIDIA,NaN,30:;;", nil)
	f("more memory than there is", a+",NVIDIA,4294967295,30:;;", nil)
	f("too many", strings.Repeat(a+",NVIDIA,1,1:", maxSlices+1)+";;", nil)
	f("too long", strings.Repeat("x", maxText+1), nil)
	f("a long name", strings.Repeat("x", maxDevice+1)+",NVIDIA,1000,30:;;", nil)
}

// Catches a UUID that ends in digits and is taken for a replica of another device.
func TestBase(t *testing.T) {
	for id, want := range map[string]string{
		"GPU-0aa6b97c-d386-26ba-a94a-b9d27c2e3a71-4": "GPU-0aa6b97c-d386-26ba-a94a-b9d27c2e3a71", "GPU-0aa6b97c-d386-26ba-a94a-123456789012-17": "GPU-0aa6b97c-d386-26ba-a94a-123456789012",
		"GPU-0aa6b97c-d386-26ba-a94a-123456789012": "", "GPU-0aa6b97c-d386-26ba-a94a-b9d27c2e3a71": "", "GPU-0aa6b97c-d386-26ba-a94a-b9d27c2e3a71::3": "", "GPU-0aa6b97c-d386-26ba-a94a-b9d27c2e3a71-": "", "card0-3": "", "GPU-1": "", "-1": "", "1": "", "": "",
	} {
		if got, ok := Base(id); got != want || ok != (want != "") {
			t.Errorf("%q is a replica of %q", id, got)
		}
	}
}

// Catches text that a user writes and that crashes the agent, or makes slices without bounds.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{"", ";", "GPU-a,NVIDIA,1000,30:;;", ",,0,0:;GPU-a,NVIDIA,1,0:GPU-b,NVIDIA,2,0:;", "GPU-a[0-1],NVIDIA,1000,30:;", ":::;;;,,,"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		list, err := Parse(text)
		n := 0
		for _, container := range list {
			for _, s := range container {
				n++
				if s.Device == "" || s.Memory == 0 || s.Memory>>20 > maxMemory || !(s.Compute >= 0 && s.Compute <= 1) {
					t.Errorf("%q has the slice %+v", text, s)
				}
			}
		}
		if err != nil && list != nil || n > maxSlices {
			t.Errorf("%q has %d slices and the error %v", text, n, err)
		}
	})
}
