//go:build linux

package check

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/health"
)

// hanging calls run with a function that does not return before run does, and fails if run takes longer
// than limit, which counts waiting only: how fast the machine is does not matter.
func hanging(t *testing.T, limit time.Duration, run func(ctx context.Context, hang func()) []Result) (results []Result) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		end := make(chan struct{})
		defer close(end)
		begin := time.Now()
		results = run(t.Context(), func() { <-end })
		if took := time.Since(begin); took > limit {
			t.Errorf("it took %s", took)
		}
	})
	return results
}

// A check that hangs, or is broken, costs only itself.
func TestRunLimits(t *testing.T) {
	var list []Check
	results := hanging(t, time.Second, func(ctx context.Context, hang func()) []Result {
		hangs := func(context.Context, *host) outcome { hang(); return fine("too late") }
		list = []Check{
			{"fine", "", always, time.Second, func(context.Context, *host) outcome { return fine("yes") }},
			{"hangs", "", always, 50 * time.Millisecond, hangs},
			{"panics", "", always, time.Second, func(context.Context, *host) outcome { panic("oh") }},
			{"long", "", always, time.Hour, hangs},
		}
		return Run(ctx, Env{}, list, time.Second)
	})
	want := []Status{OK, Unknown, Unknown, Unknown}
	for i, r := range results {
		if r.ID != list[i].ID || r.Status != want[i] {
			t.Errorf("%s is %s: %s", r.ID, r.Status, r.Reason)
		}
	}
	if r := results[1]; !strings.Contains(r.Reason, "has not ended after") || r.Seconds >= 1 {
		t.Errorf("the one that hangs ended after %g s: %s", r.Seconds, r.Reason)
	}
}

func TestWorst(t *testing.T) {
	f := func(want Status, list ...Status) {
		t.Helper()
		var results []Result
		for _, s := range list {
			results = append(results, Result{Status: s})
		}
		if got := Worst(results); got != want {
			t.Errorf("the worst of %v is %s, want %s", list, got, want)
		}
	}
	f(OK)
	f(OK, Skipped)
	f(Unknown, OK, Unknown, Skipped)
	f(Warning, Unknown, Warning, OK) // which is certain
	f(Critical, Unknown, Critical, Warning)
}

func TestSelect(t *testing.T) {
	ids := func(list []Check) (out []string) {
		for _, c := range list {
			out = append(out, c.ID)
		}
		return out
	}
	seen := map[string]bool{}
	for _, c := range All() {
		if seen[c.ID] || c.About == "" || c.Limit <= 0 || c.Limit > 15*time.Second || !slices.Contains(c.Profiles, Periodic) {
			t.Errorf("%s has no name of its own, description, limit or profile", c.ID)
		}
		seen[c.ID] = true
	}
	got, err := Select(Prolog, []string{"disk.", "clock.sync"}, []string{"disk.smart"})
	if diff := cmp.Diff([]string{"disk.space", "disk.mounts", "clock.sync"}, ids(got)); err != nil || diff != "" {
		t.Errorf("(-want +got):\n%s%v", diff, err)
	}
	if got, _ = Select(Prolog, nil, nil); slices.Contains(ids(got), "disk.smart") || !slices.Contains(ids(got), "gpu.xid") {
		t.Errorf("a prolog has %v", ids(got))
	}
	for _, bad := range [][]string{{"gpu.typo"}, {"disk"}, {""}, {"x."}} {
		if _, err := Select(Prolog, bad, nil); err == nil {
			t.Errorf("%v is taken", bad)
		}
		if _, err := Select(Prolog, nil, bad); err == nil {
			t.Errorf("%v is skipped", bad)
		}
	}
	if _, err := Select("sometimes", nil, nil); err == nil {
		t.Error("any profile is taken")
	}
}

// A machine is as its own manifest says, and another manifest finds what is gone.
func TestObserve(t *testing.T) {
	more := files{
		"sys/class/net/eth0/operstate": "up\n", "sys/class/net/eth0/speed": "100000\n", "sys/class/net/eth0/device/vendor": "x",
		"sys/class/net/vf0/operstate": "up\n", "sys/class/net/vf0/device/physfn/vendor": "x", // moves into pods
		"sys/class/net/lo/operstate": "unknown\n", "sys/class/net/eth1/operstate": "down\n", "sys/class/net/eth1/device/vendor": "x",
		"sys/class/nvme/nvme0/state":                              "live\n",
		"sys/fs/cgroup/system.slice/slurmd.service/cgroup.events": "populated 1\n",
		"sys/fs/cgroup/system.slice/munge.service/cgroup.events":  "populated 0\n",
		"sys/devices/system/cpu/cpu0/cpufreq/scaling_governor":    "performance\n",
	}
	maps.Copy(more, ib("mlx5_0", active, linkUp, ndr))
	maps.Copy(more, ib("mlx5_1", down, polling, "10 Gb/sec (4X SDR)"))
	env := node(t, more)
	env.Devices = with(gpu(0), gpu(1))
	got, err := Observe(t.Context(), env)
	if err != nil {
		t.Fatal(err)
	}
	want := Manifest{
		GPUs:        GPUs{Count: 2, Models: map[string]int{"NVIDIA H200": 2}, Driver: "580.1", Generation: 5, Width: 16, Links: 3},
		MemoryBytes: 2000000 << 10, InfiniBand: []Port{{"mlx5_0", 1, "InfiniBand", 400}}, Network: []NIC{{"eth0", 100000}},
		Mounts: []string{"/", "/home"}, NVMe: 1, Services: []string{"slurmd.service"}, Governor: "performance", ClockSource: "tsc",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("manifest (-want +got):\n%s", diff)
	}
	if err := got.Validate(); err != nil {
		t.Error(err)
	}
	env.Manifest = &got
	for _, r := range Run(t.Context(), env, All(), 10*time.Second) {
		if r.Status != OK && r.Status != Skipped {
			t.Errorf("by its own manifest %s is %s: %s", r.ID, r.Status, r.Reason)
		}
	}
	got.GPUs.Count, got.NVMe, got.MemoryBytes = 8, 4, 1<<40
	results := Run(t.Context(), env, All(), 10*time.Second)
	var bad []string
	for _, r := range results {
		if r.Status == Critical {
			bad = append(bad, r.ID)
		}
	}
	if diff := cmp.Diff([]string{"gpu.count", "disk.smart", "memory"}, bad); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestManifest(t *testing.T) {
	f := func(m Manifest, want string) {
		t.Helper()
		if err := m.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v", m, err)
		}
	}
	f(Manifest{GPUs: GPUs{Count: -1}}, "gpus.count")
	f(Manifest{InfiniBand: []Port{{Device: "../x", Port: 1}}}, "infiniband 0")
	f(Manifest{Network: []NIC{{Name: "a/b"}}}, "network 0")
	f(Manifest{Mounts: []string{"home"}}, "absolute")
	f(Manifest{Services: []string{"*"}}, "no name of a unit")
	f(Manifest{IBErrors: LinkRates{"typo": 1}}, "typo")
	env := node(t, nil)
	env.ManifestErr = errors.New("line 3: cannot")
	expect(t, env, "manifest", Unknown, "line 3") // a typing mistake must not drain a cluster
}

// Nothing that a file may hold makes a check fail otherwise than it should: no panic, no
// hang, and nothing critical but for what it says.
func TestGarbage(t *testing.T) {
	healthy := files{}
	maps.Copy(healthy, ib("mlx5_0", active, linkUp, ndr, "symbol_error=1", "link_downed=0"))
	for _, path := range []string{
		"proc/77/stat", "proc/77/status", "proc/77/comm", "proc/77/wchan", "sys/class/net/eth0/operstate", "sys/class/net/eth0/speed",
		"sys/class/nvme/nvme0/state", "sys/devices/system/edac/mc/mc0/ue_count", "sys/class/hwmon/hwmon0/temp1_crit_alarm",
		"sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "sys/fs/cgroup/system.slice/slurmd.service/cgroup.events",
		"sys/bus/pci/devices/0000:00:00.0/vendor", "sys/bus/pci/devices/0000:00:00.0/class", "proc/uptime", "proc/meminfo", "proc/1/mountinfo",
		"etc/fstab", "dev/kmsg", "sys/devices/system/clocksource/clocksource0/current_clocksource",
	} {
		healthy[path] = ""
	}
	env := node(t, healthy)
	env.Devices = with(gpu(0))
	random := rand.New(rand.NewPCG(1, 2))
	contents := []string{"", "\n", "-1\n", "99999999999999999999999\n", "NaN\n", strings.Repeat("A", 100_000), strings.Repeat("0 ", 5000), "\x00\xff\xfe: ,;-\n", "4: \n - \n ( ) D\n"}
	for range 20 {
		b := make([]byte, 200)
		for i := range b {
			b[i] = byte(random.UintN(256))
		}
		contents = append(contents, string(b))
	}
	for _, text := range contents {
		for path := range healthy {
			put(t, env.Root, path, text)
		}
		for _, r := range Run(t.Context(), env, All(), 10*time.Second) {
			if !utf8.ValidString(r.Reason) || len(r.Reason) > 2000 || strings.Contains(r.Reason, "itself is broken") || strings.Contains(r.Reason, "not ended") {
				t.Errorf("%q: %s says %q", text[:min(len(text), 20)], r.ID, r.Reason)
			}
			if r.Status == Critical {
				t.Errorf("%q: %s is critical: %s", text[:min(len(text), 20)], r.ID, r.Reason)
			}
		}
	}
	// Folders where files are meant to be, and pipes that nobody writes to.
	for path := range healthy {
		full := filepath.Join(env.Root, path)
		if err := os.Remove(full); err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(full, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range Run(t.Context(), env, All(), 10*time.Second) {
		if r.Status == Critical {
			t.Errorf("folders: %s is critical: %s", r.ID, r.Reason)
		}
	}
}

func FuzzParsers(f *testing.F) {
	for _, s := range []string{
		"77 (a) D 1 77 77 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 1000 0 0", "4: ACTIVE", ndr, "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n",
		"UUID=1 / ext4 defaults 0 1\n", "MemTotal: 5 kB\n", "NVRM: Xid (PCI:0000:11:00): 79, pid=610, name=x, y", `a\040b`,
		"voluntary_ctxt_switches:\t5\n", "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30", "nfs: server a not responding",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		parseStat(s)
		parseSwitches([]byte(s))
		if n, err := parseState(s); err == nil && n < 0 {
			t.Errorf("state %d of %q", n, s)
		}
		if v, err := parseRate(s); err == nil && !(v >= 0 && v < 1e6) {
			t.Errorf("rate %g of %q", v, s)
		}
		parseMounts([]byte(s))
		for _, e := range parseFstab([]byte(s)) {
			if !strings.HasPrefix(e.path, "/") {
				t.Errorf("mount point %q of %q", e.path, s)
			}
		}
		parseMeminfo([]byte(s))
		if x, ok := parseXID(s); ok && (x.code < 0 || x.pci == "") {
			t.Errorf("%+v of %q", x, s)
		}
		if short := shorten(s); len(short) > 200 || strings.ContainsAny(short, "\n\r\x1b") {
			t.Errorf("%q is shortened to %q", s, short)
		}
		judgeLog(kernelLog{{0, s}, {time.Hour, s}}, time.Minute, patterns)
		unescape(s)
		health.ExplainXID(79, s)
	})
}
