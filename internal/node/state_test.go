package node

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpumeter/gpumeter/internal/device"
)

// kill ends a View as kill -9 does: nothing more is written.
func (r *rig) kill(t *testing.T) {
	t.Helper()
	for _, s := range r.sources {
		if err := s.stopListening(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Wait() // for a write in progress: the test decides whether it took effect
	if r.store != nil {
		r.store.close()
	}
}

// An XID is counted exactly once, however often the agent is killed, closed or paused, and
// whichever of its writes reached the disk. Its record is sent at least once.
func TestExactlyOnce(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inBubble(t, func(t *testing.T) { testExactlyOnce(t, rand.New(rand.NewPCG(seed, 1))) })
		})
	}
}

func testExactlyOnce(t *testing.T, rng *rand.Rand) {
	j, dir := newJournal(), filepath.Join(t.TempDir(), "state")
	file := filepath.Join(dir, stateName)
	want, told := map[string]int{}, map[uint64]bool{}
	j.add(xid(0, 13)) // before the first start, in this boot
	want["0 13"]++
	r, _ := newWitness(3, j, dir)
	tick := func() Tick {
		tick := r.tick(t)
		for _, e := range tick.Events {
			told[e.Position.Record] = true
		}
		return tick
	}
	var older [][]byte
	for range 60 {
		switch rng.IntN(10) {
		default:
			gpu, code := rng.IntN(3), 30+rng.IntN(3)
			j.add(xid(gpu, code))
			want[fmt.Sprint(gpu, " ", code)]++
		case 4, 5, 6:
			if data, err := os.ReadFile(file); err == nil {
				older = append(older, data)
			}
			tick()
		case 7:
			if err := r.Pause(t.Context(), time.Now(), time.Second); err != nil {
				t.Fatal(err)
			}
		case 8:
			if rng.IntN(2) == 0 {
				synctest.Wait() // received, but not part of a tick yet
			}
			r.kill(t)
			if len(older) > 0 && rng.IntN(2) == 0 { // the last writes did not reach the disk
				if err := os.WriteFile(file, older[rng.IntN(len(older))], 0o600); err != nil {
					t.Fatal(err)
				}
			}
			r, _ = newWitness(3, j, dir)
			older = nil
		case 9:
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
			r, _ = newWitness(3, j, dir)
			older = nil
		}
	}
	var last Tick
	for range 5 { // a pause may be in progress
		synctest.Wait()
		last = tick()
	}
	wantCounts := []string{}
	for _, key := range slices.Sorted(maps.Keys(want)) {
		wantCounts = append(wantCounts, fmt.Sprint(key, " ", want[key]))
	}
	wantList(t, counted(last), wantCounts...)
	for _, e := range j.records {
		if !told[e.Position.Record] {
			t.Errorf("record %d was in no tick", e.Position.Record)
		}
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
}

// Within a boot, counts and their start times continue; another boot starts over.
func TestStateOverRestarts(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		dir := t.TempDir()
		run := func(boot string, j *journal, energy float64) Tick {
			t.Helper()
			r, _ := newWitness(1, j, dir)
			r.cfg.BootID = boot
			var tick Tick
			for i := range 5 { // two slow reads
				r.m.devices[0].set(func(g *gpu) { g.s.Energy = device.Of(energy + float64(i)) })
				tick = r.tick(t)
				synctest.Wait()
			}
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
			return tick
		}
		j := newJournal()
		j.add(xid(0, 31))
		first := run("boot 1", j, 100).Readings[0]
		j.add(xid(0, 31))
		second := run("boot 1", j, 200).Readings[0]
		if second.XIDs[0].Count != 2 || !second.XIDs[0].Since.Equal(first.XIDs[0].Since) || !second.Since.Equal(first.Since) {
			t.Errorf("after a restart: %+v since %s, before: %+v since %s", second.XIDs, second.Since, first.XIDs, first.Since)
		}
		third := run("boot 1", j, 50)
		if r := third.Readings[0]; !r.Since.After(second.Since) || r.XIDs[0].Count != 2 {
			t.Errorf("the driver was reloaded between two runs, but counters start at %s", r.Since)
		}
		j = newJournal()
		j.add(xid(0, 48))
		fourth := run("boot 2", j, 60).Readings[0]
		if len(fourth.XIDs) != 1 || fourth.XIDs[0].Code != 48 || !fourth.Since.After(third.Time) || !fourth.XIDs[0].Since.After(first.XIDs[0].Since) {
			t.Errorf("after a boot: %+v since %s", fourth.XIDs, fourth.Since)
		}
	})
}

// An unusable file is moved aside, and the agent runs without an unusable directory.
func TestBadState(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		f := func(content, reason string) {
			t.Helper()
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, stateName), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			j := newJournal()
			j.add(xid(0, 31))
			r, _ := newWitness(1, j, dir)
			r.tick(t)
			synctest.Wait()
			wantList(t, counted(r.tick(t)), "0 31 1")
			r.wantNotice(t, "event counts start over", reason)
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
			if kept, err := os.ReadFile(filepath.Join(dir, stateName+".bad")); err != nil || string(kept) != content {
				t.Errorf("moved aside: %q, %v", kept, err)
			}
			if _, err := os.ReadFile(filepath.Join(dir, stateName)); err != nil {
				t.Error(err)
			}
		}
		f("", "not a state file")
		f("{\"version\": 1, \"boot", "not a state file")
		f(`{"version":1,"since":"2026-11-15T00:00:00Z","devices":{}} and more`, "not a state file")
		f(`{"version":1,"since":"0001-01-02T00:00:00Z","devices":{}}`, "incomplete state file")
		f(`{"version": 2}`, "version 2")
		f(`{"version": 1}`, "incomplete state file")
		f(`{"version":1,"since":"2026-11-15T00:00:00Z","devices":{"A":null}}`, "no valid record")

		none := func(dir, reason string) {
			t.Helper()
			r, _ := newWitness(1, newJournal(), dir)
			for range 5 {
				wantUp(t, r.tick(t), 0)
			}
			r.wantNotice(t, "start at 0", reason)
			if n := slices.IndexFunc(r.notices, func(s string) bool { return strings.Contains(s, "start at 0") }); n < 0 || slices.Contains(r.notices[n+1:], r.notices[n]) {
				t.Errorf("notices: %q", r.notices)
			}
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
		}
		file := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		none(filepath.Join(file, "state"), "not a directory")
		// A directory belongs to one agent.
		shared := t.TempDir()
		first, _ := newWitness(1, newJournal(), shared)
		first.tick(t)
		none(shared, "in use by another agent")
		if err := first.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// A full disk is reported once, and so is its recovery.
func TestStateWriteFails(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		dir := t.TempDir()
		r, _ := newWitness(1, newJournal(), dir)
		r.tick(t)
		moved := dir + ".moved"
		if err := os.Rename(dir, moved); err != nil {
			t.Fatal(err)
		}
		for range 10 {
			r.tick(t)
			synctest.Wait()
		}
		if err := os.Rename(moved, dir); err != nil {
			t.Fatal(err)
		}
		for range 10 {
			r.tick(t)
			synctest.Wait()
		}
		var got []string
		for _, n := range r.notices {
			if strings.Contains(n, "state file") {
				n, _, _ = strings.Cut(n, ":")
				got = append(got, n)
			}
		}
		wantList(t, got, "the state file cannot be written", "the state file is written again")
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestPrune(t *testing.T) {
	now := time.Date(2026, 11, 15, 0, 0, 0, 0, time.UTC)
	s := newState("boot", now)
	for i := range maxAccounts + 5 {
		s.record(fmt.Sprintf("GPU-%04d", i), now.Add(-time.Duration(i)*time.Minute))
	}
	s.record("gone", now.Add(-maxUnseen-time.Second))
	s.prune(now)
	if len(s.Devices) != maxAccounts || s.Devices["gone"] != nil || s.Devices["GPU-0000"] == nil || s.Devices[fmt.Sprintf("GPU-%04d", maxAccounts)] != nil {
		t.Errorf("%d devices remain", len(s.Devices))
	}
}

func FuzzDecodeState(f *testing.F) {
	now := time.Date(2026, 11, 15, 0, 0, 0, 0, time.UTC)
	s := newState("boot", now)
	s.Cursors = map[string]device.Position{"nvidia": {Record: 7, Time: now}}
	s.record("GPU-0", now).count(31, 2, now)
	data, err := s.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(`{"version":1,"since":"2030-01-01T00:00:00Z","devices":{"A":{"xids":[{"code":1,"since":"2031-01-01T00:00:00Z"}]}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := decodeState(data, now)
		if err != nil {
			return
		}
		for key, a := range s.Devices {
			if a == nil || a.Since.After(now) || a.Seen.After(now) {
				t.Errorf("%q: %+v", key, a)
			}
		}
		again, err := s.encode()
		if err != nil {
			return // a year that JSON cannot represent
		}
		s2, err := decodeState(again, now)
		if err != nil {
			t.Fatalf("%s: %v", again, err)
		}
		if diff := cmp.Diff(s, s2, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("read again (-want +got):\n%s", diff)
		}
	})
}
