//go:build linux

package local

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/device/nvidia/nvmltest"
)

func TestProcessName(t *testing.T) {
	proc := t.TempDir()
	if err := os.MkdirAll(filepath.Join(proc, "42"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(proc, "42", "comm"), []byte("my app\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	name := processName(proc)
	if got := name(42); got != "my app" {
		t.Errorf("name = %q", got)
	}
	if got := name(43); got != "" {
		t.Errorf("an exited process has the name %q", got)
	}
}

// The demo simulates only on a machine without devices.
func TestHasDevices(t *testing.T) {
	if HasDevices(t.Context(), Config{Root: t.TempDir()}) {
		t.Error("HasDevices is true on an empty machine")
	}
	h := nvmltest.New(t, "gpus 2")
	if !HasDevices(t.Context(), Config{Root: t.TempDir(), LibraryDirs: []string{h.Dir}}) {
		t.Error("HasDevices is false on a machine with GPUs")
	}
	if open := h.OpenFiles(t, os.Getpid()); len(open) > 0 {
		t.Errorf("HasDevices left %v open", open)
	}
}

// Cloud attributes become known late and yield to configured ones.
func TestResource(t *testing.T) {
	set := map[string]string{"k8s.cluster.name": "c", "cloud.region": "mine"}
	f := func(c Config, want map[string]string) {
		t.Helper()
		if diff := cmp.Diff(want, c.resource()()); diff != "" {
			t.Errorf("resource (-want +got):\n%s", diff)
		}
	}
	f(Config{}, nil)
	f(Config{Resource: set}, set)
	f(Config{Resource: set, Cloud: true, Root: t.TempDir()}, set) // a machine outside any cloud

	var found map[string]string
	resource := merged(set, func() map[string]string { return found })
	if diff := cmp.Diff(set, resource()); diff != "" {
		t.Errorf("before the cloud answers (-want +got):\n%s", diff)
	}
	found = map[string]string{"cloud.region": "us-west-2", "host.type": "p5en.48xlarge"}
	want := map[string]string{"k8s.cluster.name": "c", "cloud.region": "mine", "host.type": "p5en.48xlarge"}
	for range 2 {
		if diff := cmp.Diff(want, resource()); diff != "" {
			t.Errorf("afterwards (-want +got):\n%s", diff)
		}
	}
	for _, key := range []string{"host.name", "gpumeter.simulated", ""} {
		c := Config{Interval: DefaultInterval, SlowInterval: DefaultSlowInterval, Resource: map[string]string{key: "x"}}
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), strconv.Quote(key)) {
			t.Errorf("attribute %q: %v", key, err)
		}
	}
}
