package hub

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpumeter/gpumeter/internal/hub/events"
)

// smallDisk returns a directory on its own file system of size bytes.
func smallDisk(t *testing.T, size int) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", size)); err != nil {
		why := fmt.Sprintf("a small disk needs root: %v", err)
		if slices.Contains(strings.Split(os.Getenv("GPUMETER_REQUIRE"), ","), "root") {
			t.Fatal(why)
		}
		t.Skip(why)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// Catches a full disk that loses acknowledged samples, is not reported, or from which the
// hub does not recover.
func TestDiskFull(t *testing.T) {
	dir := smallDisk(t, 64<<20)
	filler := filepath.Join(dir, "filler")
	if err := os.WriteFile(filler, make([]byte, 44<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	s := openTest(t, filepath.Join(dir, "hub"), Options{})
	var kept []int64
	next := ago(20 * time.Hour)
	write := func(ooo bool) error {
		next += 1000
		at := next
		if ooo {
			at -= 3_600_000*2 + 1
		}
		a := s.Appender(t.Context())
		for i := range 500 {
			a.Gauge(name("g", "i", fmt.Sprint(i)), at, float64(at)+float64(i)*1.1)
		}
		_, err := a.Commit()
		if err == nil {
			kept = append(kept, at)
		}
		return err
	}
	var err error
	for i := 0; err == nil && i < 20_000; i++ {
		err = write(i%3 == 2)
	}
	if err == nil || !strings.Contains(err.Error(), "cannot write to the store") {
		t.Fatalf("error of the full disk: %v", err)
	}
	before := len(kept)
	if err := s.AppendEvents(t.Context(), []events.Event{{Time: now, Body: strings.Repeat("x", 60_000)}}); err != nil && !strings.Contains(err.Error(), "cannot write events") {
		t.Error(err)
	}
	if _, err := s.Instant(t.Context(), "count(g)", time.UnixMilli(next)); err != nil {
		t.Errorf("query with a full disk: %v", err)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		if err := write(i%3 == 2); err != nil {
			t.Errorf("write after space was freed: %v", err)
		}
	}
	check := func(when string) {
		t.Helper()
		series, err := s.Raw(t.Context(), `g{i="7"}`, now.Add(-48*time.Hour), now)
		if err != nil || len(series) != 1 {
			t.Fatal(when, len(series), err)
		}
		has := map[int64]bool{}
		for _, p := range series[0].Points {
			has[p.Time.UnixMilli()] = true
		}
		for i, at := range kept {
			if !has[at] {
				t.Errorf("%s: number %d of %d is lost, the disk was full after %d", when, i, len(kept), before)
				break
			}
		}
	}
	check("before a restart")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openTest(t, filepath.Join(dir, "hub"), Options{})
	check("after a restart")
}

// Catches problems with a fleet that was disconnected for an hour: all data arrives at once,
// the oldest last.
func TestOutage(t *testing.T) {
	s := openTest(t, t.TempDir(), Options{})
	add := func(node int, at int64) {
		t.Helper()
		a := s.Appender(t.Context())
		a.Counter(name("c_total", "host_name", fmt.Sprint(node)), ago(3*time.Hour), at, float64(at))
		if r := commit(t, a); r.Refused > 0 {
			t.Fatalf("%+v", r)
		}
	}
	for node := range 5 {
		add(node, ago(0))
	}
	for at := ago(10 * time.Second); at > ago(time.Hour); at -= 10_000 {
		for node := range 5 {
			add(node, at)
			add(node, at) // retried, as after a timeout
		}
	}
	got, err := s.Instant(t.Context(), "count_over_time(c_total[1h])", now)
	if err != nil || len(got) != 5 {
		t.Fatal(got, err)
	}
	for _, x := range got {
		if x.Value != 360 {
			t.Errorf("%v has %g samples", x.Labels, x.Value)
		}
	}
}
