//go:build linux

package target

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/tracer"
)

const someMaps = `5581a0000000-5581a0001000 r--p 00000000 08:01 1234                       /usr/bin/python3.12
5581a0001000-5581a0100000 r-xp 00001000 08:01 1234                       /usr/bin/python3.12
7f0000000000-7f0000100000 r-xp 00002000 00:2f 77                         /usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05
7f0000200000-7f0000300000 r-xp 00000000 00:2f 78                         /opt/my libs/libnccl.so.2 (deleted)
7f0000400000-7f0000500000 rw-p 00000000 00:2f 79                         /opt/libnccl.so.3
7f0000600000-7f0000700000 r-xp 00000000 00:00 0
7ffe00000000-7ffe00001000 r-xp 00000000 00:00 0                          [vdso]
7f0000800000-7f0000900000 r-xp 00000000 00:2f 80                         /opt/a\012b/libc10.so
garbage
9-8 r-xp 0 0:0 1 /x
`

// A blank or newline in a path, a replaced file and mappings without code must not shift the
// fields.
func TestParseMaps(t *testing.T) {
	want := []Mapping{
		{Start: 0x5581a0001000, End: 0x5581a0100000, Offset: 0x1000, Device: "08:01", Inode: 1234, Path: "/usr/bin/python3.12"},
		{Start: 0x7f0000000000, End: 0x7f0000100000, Offset: 0x2000, Device: "00:2f", Inode: 77, Path: "/usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05"},
		{Start: 0x7f0000200000, End: 0x7f0000300000, Device: "00:2f", Inode: 78, Path: "/opt/my libs/libnccl.so.2", Deleted: true},
		{Start: 0x7f0000800000, End: 0x7f0000900000, Device: "00:2f", Inode: 80, Path: "/opt/a\nb/libc10.so"},
	}
	if d := cmp.Diff(want, ParseMaps([]byte(someMaps))); d != "" {
		t.Error(d)
	}
}

func FuzzParseMaps(f *testing.F) {
	f.Add([]byte(someMaps))
	f.Add([]byte("1-2 r-xp 0 0:0 18446744073709551615 /"))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, m := range ParseMaps(b) {
			if m.End <= m.Start || m.Inode == 0 || m.Path == "" {
				t.Errorf("%+v", m)
			}
		}
	})
}

// libcudart and libcudadebugger are not libcuda, and a stub without a version is.
func TestKindOf(t *testing.T) {
	f := func(name, want string) {
		t.Helper()
		if got := KindOf(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	f("/usr/lib/libcuda.so", tracer.LibraryCUDA)
	f("/usr/lib/libcuda.so.1", tracer.LibraryCUDA)
	f("/usr/lib/libcuda.so.580.159.04", tracer.LibraryCUDA)
	f("/usr/lib/libcudart.so.12", "")
	f("/usr/lib/libcudadebugger.so.1", "")
	f("/usr/lib/libcuda.sock", "")
	f("/x/libnccl.so.2", tracer.LibraryNCCL)
	f("/x/libnccl-net.so", "")
	f("/x/libtorch_cuda.so", tracer.LibraryNCCL)
	f("/x/libtorch_cuda_linalg.so", "")
	f("/x/libc10.so", tracer.LibraryTorch)
	f("/x/libc10_cuda.so", "")
	f("", "")
}

// A process may have any name, including parentheses and blanks.
func TestParseStat(t *testing.T) {
	b := []byte("42 (a) b (c)) S 1 42 42 0 -1 4194304 1 0 0 0 2 3 0 0 20 0 1 0 987654 8192 1 18446744073709551615")
	got, err := parseStat(b)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(Process{Name: "a) b (c)", Start: 987654}, got); d != "" {
		t.Error(d)
	}
	for _, bad := range []string{"", "1 (x", ") (", "1 (x) S 1 2", "1 (x) S 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 y"} {
		if _, err := parseStat([]byte(bad)); err == nil {
			t.Errorf("%q has a start time", bad)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("42 (a) S 1 42 42 0 -1 4194304 1 0 0 0 2 3 0 0 20 0 1 0 987654 8192"))
	f.Fuzz(func(_ *testing.T, b []byte) { _, _ = parseStat(b) })
}

// gcc builds a C or assembler source into a file, or skips the test.
func gcc(t testing.TB, name, source string, flags ...string) string {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		if slices.Contains(strings.Split(os.Getenv("GPUMETER_REQUIRE"), ","), "gcc") {
			t.Fatal("GPUMETER_REQUIRE asks for gcc: ", err)
		}
		t.Skip("gcc: ", err)
	}
	dir := t.TempDir()
	src, out := filepath.Join(dir, "source"), filepath.Join(dir, name)
	if err := os.WriteFile(src, []byte(source), 0o644); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"-x", "c", "-O1", "-o", out, src}, flags...)
	if b, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, b)
	}
	return out
}

const source = `
__asm__(".globl ncclBare\nncclBare: nop; ret\n.globl ncclSend\n.type ncclSend,@function\nncclSend: .byte 0x0f,0x0b,1,2,3,4,5,6,7,8\n.size ncclSend,.-ncclSend\n");
int xncclSend(void) { return 1; }
int ncclRecv_data = 7;
static int chosen(void) { return 3; }
static void *resolve(void) { return chosen; }
int ncclIndirect(void) __attribute__((ifunc("resolve")));
extern int ncclElsewhere(void);
int main(void) { return ncclElsewhere ? 0 : 1; }
`

var wantedNames = map[string]bool{"ncclBare": true, "ncclSend": true, "xncclSend": true, "ncclRecv_data": true, "ncclIndirect": true, "ncclElsewhere": true, "ncclNever": true}

// Linker features must not hide a function or yield another's offset: names that share their
// end, indirect and undefined functions, data, stripped tables.
func TestReadImage(t *testing.T) {
	f := func(name string, flags ...string) {
		t.Helper()
		file := gcc(t, "libnccl.so.2", source, append(flags, "-Wl,--build-id=0x0102030405060708090a", "-Wl,-O2")...)
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		img, err := ReadImage(bytes.NewReader(b), wantedNames)
		if err != nil {
			t.Fatal(err)
		}
		if img.BuildID != "0102030405060708090a" {
			t.Errorf("%s: build id %q", name, img.BuildID)
		}
		var names []string
		for _, s := range img.Symbols {
			names = append(names, s.Name)
			if !bytes.Equal(b[s.Offset:s.Offset+uint64(len(s.Code))], s.Code) {
				t.Errorf("%s: the code of %s is not at its offset", name, s.Name)
			}
			if s.Name == "ncclSend" && !bytes.HasPrefix(s.Code, []byte{0x0f, 0x0b, 1, 2, 3, 4, 5, 6, 7, 8}) {
				t.Errorf("%s: ncclSend begins with %x", name, s.Code)
			}
		}
		if d := cmp.Diff([]string{"ncclBare", "ncclSend", "xncclSend"}, names); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
	f("library", "-shared", "-fPIC")
	f("stripped library", "-shared", "-fPIC", "-s")
	f("old hash", "-shared", "-fPIC", "-Wl,--hash-style=sysv")
	f("executable", "-Wl,--unresolved-symbols=ignore-all")
	f("static executable", "-static", "-Wl,--unresolved-symbols=ignore-all")
	f("fixed place", "-no-pie", "-Wl,--unresolved-symbols=ignore-all")
}

// A file without a build id has a stable id nevertheless.
func TestReadImageWithoutBuildID(t *testing.T) {
	file := gcc(t, "libnccl.so.2", "int ncclSend(void) { return 0; }", "-shared", "-fPIC", "-Wl,--build-id=none")
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	img, err := ReadImage(f, wantedNames)
	if err != nil || !strings.HasPrefix(img.BuildID, "head-") {
		t.Errorf("%+v, %v", img, err)
	}
}

// A file truncated at any position yields an error or fewer symbols, never a panic.
func TestReadImageTruncated(t *testing.T) {
	file := gcc(t, "libnccl.so.2", "int ncclSend(void) { return 0; }", "-shared", "-fPIC", "-s")
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for n := 0; n < len(b); n += 97 {
		_, _ = ReadImage(bytes.NewReader(b[:n]), wantedNames)
	}
	if _, err := ReadImage(bytes.NewReader(nil), wantedNames); err == nil {
		t.Error("an empty file is an image")
	}
}

func FuzzReadImage(f *testing.F) {
	if _, err := exec.LookPath("gcc"); err == nil {
		b, err := os.ReadFile(gcc(f, "libnccl.so.2", "int ncclSend(void) { return 0; }", "-shared", "-fPIC", "-nostdlib", "-Wl,-z,max-page-size=4096", "-s"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte("\x7fELF\x02\x01\x01"))
	f.Fuzz(func(t *testing.T, b []byte) {
		img, err := ReadImage(bytes.NewReader(b), wantedNames)
		if err != nil {
			return
		}
		for _, s := range img.Symbols {
			if !wantedNames[s.Name] {
				t.Errorf("nobody asked for %q", s.Name)
			}
			Decode(img.Machine, s.Code, true)
		}
	})
}

func FuzzParseNotes(f *testing.F) {
	f.Add([]byte("\x04\x00\x00\x00\x04\x00\x00\x00\x03\x00\x00\x00GNU\x00\x01\x02\x03\x04"))
	f.Add([]byte("\xff\xff\xff\xff\xff\xff\xff\xff\x03\x00\x00\x00GNU\x00"))
	f.Fuzz(func(_ *testing.T, b []byte) { parseNotes(b) })
}

// fakeProcess creates a process in a fake /proc and returns the mapping of a file at path in
// its root.
func fakeProcess(t *testing.T, proc string, pid uint32, path, content string) Mapping {
	t.Helper()
	dir := filepath.Join(proc, fmt.Sprint(pid))
	inRoot := filepath.Join(dir, "root", path)
	for _, d := range []string{filepath.Dir(inRoot), filepath.Join(dir, "map_files")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(inRoot, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(inRoot)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	return Mapping{Start: 0x1000, End: 0x2000, Path: path, Inode: inodeOf(t, inRoot)}
}

func inodeOf(t *testing.T, name string) uint64 {
	t.Helper()
	b, err := exec.Command("stat", "-c", "%i", name).Output()
	if err != nil {
		t.Fatal(err)
	}
	var n uint64
	if _, err := fmt.Sscan(string(b), &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// The mapped file is opened, and no other of the same name: neither one in our root nor the one
// that replaced it.
func TestOpen(t *testing.T) {
	proc := t.TempDir()
	m := fakeProcess(t, proc, 7, "/lib/libcuda.so.1", "theirs")
	read := func(f *File, err error) string {
		t.Helper()
		if err != nil {
			return "error"
		}
		defer f.Close()
		b := make([]byte, 100)
		n, _ := f.Read(b)
		return string(b[:n])
	}
	if got := read(Open(proc, 7, m)); got != "theirs" {
		t.Errorf("by root: %q", got)
	}
	link := filepath.Join(proc, "7", "map_files", "1000-2000")
	if err := os.Symlink(filepath.Join(proc, "7", "root", m.Path), link); err != nil {
		t.Fatal(err)
	}
	if got := read(Open(proc, 7, m)); got != "theirs" {
		t.Errorf("by mapping: %q", got)
	}
	// Replaced on disk: the path is another file now, the mapping leads to the old one.
	kept := filepath.Join(proc, "kept")
	if err := os.Rename(filepath.Join(proc, "7", "root", m.Path), kept); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(proc, "7", "root", m.Path), []byte("new"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	if got := read(Open(proc, 7, m)); got != "error" {
		t.Errorf("another file was opened: %q", got)
	}
	m.Deleted = true
	if err := os.Symlink(kept, link); err != nil {
		t.Fatal(err)
	}
	if got := read(Open(proc, 7, m)); got != "theirs" {
		t.Errorf("replaced on disk: %q", got)
	}
	m.Path, m.Deleted, m.Start = "/lib", false, 1
	m.Inode = inodeOf(t, filepath.Join(proc, "7", "root", "lib"))
	if got := read(Open(proc, 7, m)); got != "error" {
		t.Errorf("a folder was opened: %q", got)
	}
}

// Our own process is read from the real /proc, so the formats are the kernel's.
func TestSelf(t *testing.T) {
	pid := uint32(os.Getpid())
	p, err := ReadProcess("/proc", pid)
	if err != nil {
		t.Fatal(err)
	}
	up, err := ReadUptime("/proc")
	if err != nil || p.Start > up+100 {
		t.Errorf("started at %d, up %d, %v", p.Start, up, err)
	}
	pids, err := PIDs("/proc")
	if err != nil || !slices.Contains(pids, pid) {
		t.Errorf("%d is not among %v, %v", pid, pids, err)
	}
	exe := Executable("/proc", pid)
	maps, err := ReadMaps("/proc", pid)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(maps, func(m Mapping) bool { return m.Path == exe })
	if i < 0 {
		t.Fatalf("%s is not mapped in %v", exe, maps)
	}
	f, err := Open("/proc", pid, maps[i])
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := ReadImage(f, wantedNames); err != nil {
		t.Error(err)
	}
}
