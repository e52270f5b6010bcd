package discover

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Catches a process that has nothing to do with a device but is asked, and one of an engine that is missed.
func TestAround(t *testing.T) {
	const pod, other, session = "/kubepods/pod1/abc", "/kubepods/pod1/def", "/user.slice/user-1.slice/session-3.scope"
	for _, tt := range []struct {
		name      string
		processes []run
		seeds     []uint32
		want      []uint32
	}{
		{"the server is the parent, its router a sibling", []run{
			{pid: 1, session: 1},
			{pid: 50, parent: 1, session: 50},
			{pid: 100, parent: 50, session: 100},
			{pid: 101, parent: 100, session: 100},
			{pid: 102, parent: 100, session: 100},
			{pid: 103, parent: 101, session: 103},
		}, []uint32{101}, []uint32{100, 101, 102, 103}},
		{"never the first process", []run{{pid: 1, session: 1}, {pid: 100, parent: 1, session: 1}, {pid: 101, parent: 1, session: 1}}, []uint32{100}, []uint32{100}},
		{"the shell of a person has other children", []run{
			{pid: 100, parent: 1, session: 100, terminal: 34816}, {pid: 101, parent: 100, session: 100, terminal: 34816}, {pid: 102, parent: 100, session: 100, terminal: 34816},
		}, []uint32{101}, []uint32{101}},
		{"a container, but not its neighbor", []run{
			{pid: 1, session: 1, group: "/init.scope"}, {pid: 100, parent: 7, session: 100, group: pod}, {pid: 200, parent: 8, session: 200, group: pod}, {pid: 300, parent: 8, session: 300, group: other},
		}, []uint32{100}, []uint32{100, 200}},
		{"a session of a person", []run{{pid: 100, parent: 1, session: 100, group: session}, {pid: 200, parent: 1, session: 200, group: session}}, []uint32{100}, []uint32{100}},
		{"the group of the first process", []run{
			{pid: 1, session: 1, group: pod}, {pid: 100, parent: 1, session: 100, group: pod}, {pid: 200, parent: 1, session: 200, group: pod},
		}, []uint32{100}, []uint32{100}},
		{"a process that has ended", []run{{pid: 200, parent: 1, session: 200}}, []uint32{100}, nil},
		{"parents that are their children's", []run{{pid: 100, parent: 101, session: 100}, {pid: 101, parent: 100, session: 100}}, []uint32{100}, []uint32{100, 101}},
	} {
		w := newWorld(t, tt.processes...)
		w.write()
		p := processes{proc: w.root}
		if err := p.refresh(func(uint32) bool { return false }); err != nil {
			t.Fatal(err)
		}
		got := slices.Sorted(maps.Keys(p.around(of(tt.seeds))))
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

// Catches a scan that reads every process of the machine, and one that never sees that a pid was reused.
func TestRefresh(t *testing.T) {
	w := newWorld(t, run{pid: 1, session: 1}, run{pid: 100, parent: 1, session: 100, start: 5}, run{pid: 200, parent: 1, session: 200, start: 5})
	p := processes{proc: w.root}
	var far, near []uint64
	for i := range 12 {
		if i == 4 {
			w.processes[1].start, w.processes[2].start = 6, 6
		}
		w.write()
		if err := p.refresh(func(pid uint32) bool { return pid == 200 }); err != nil {
			t.Fatal(err)
		}
		far, near = append(far, p.all[100].start), append(near, p.all[200].start)
	}
	if diff := cmp.Diff([]uint64{5, 5, 5, 5, 5, 5, 5, 5, 5, 6, 6, 6}, far); diff != "" {
		t.Errorf("far from a device (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]uint64{5, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 6}, near); diff != "" {
		t.Errorf("on a device (-want +got):\n%s", diff)
	}
	w.processes = w.processes[:2]
	w.write()
	if err := p.refresh(func(uint32) bool { return false }); err != nil {
		t.Fatal(err)
	}
	if p.all[200] != nil {
		t.Error("a process that ended is remembered")
	}
}

// Catches a server with many connections whose files are read at each scan.
func TestLook(t *testing.T) {
	w := newWorld(t, run{pid: 100, parent: 1, session: 100, open: []uint64{11, 12}})
	w.listen("127.0.0.1:8000", 11, 0)
	p := processes{proc: w.root}
	sockets := func() []uint64 {
		w.write()
		if err := p.refresh(func(uint32) bool { return true }); err != nil {
			t.Fatal(err)
		}
		var out []uint64
		for _, h := range p.held(set{100: true}) {
			out = append(out, h.inode)
		}
		return out
	}
	if got := sockets(); !slices.Equal(got, []uint64{11}) {
		t.Fatalf("sockets %v", got)
	}
	w.processes[0].open = []uint64{12} // that this goes unseen shows that nothing was read
	if got := sockets(); !slices.Equal(got, []uint64{11}) {
		t.Errorf("sockets %v: the files were read again", got)
	}
	w.listen("127.0.0.1:8001", 12, 0)
	if got := sockets(); !slices.Equal(got, []uint64{12}) {
		t.Errorf("sockets %v: the files were not read when another socket listened", got)
	}
}

// Catches files that may not be read and are not counted.
func TestUnreadable(t *testing.T) {
	w := newWorld(t, run{pid: 100, parent: 1, session: 100})
	w.write()
	// As root nothing is denied, so a folder is in place of a file.
	for _, name := range []string{"100/cgroup", "100/net/tcp"} {
		if err := os.Remove(filepath.Join(w.root, name)); err != nil {
			t.Fatal(err)
		}
		w.file(name+"/x", "")
	}
	f := w.finder()
	f.Find(t.Context(), tick(0, 100))
	f.wait()
	if diff := cmp.Diff(Status{Processes: 1, Unreadable: 2}, f.Status()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
