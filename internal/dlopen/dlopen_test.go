//go:build linux

package dlopen

import (
	"bytes"
	"debug/elf"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unsafe"
)

// libc returns the path of the C library, which every glibc machine has.
func libc(t testing.TB) string {
	t.Helper()
	for _, pattern := range []string{"/lib/*/libc.so.6", "/lib64/libc.so.6", "/usr/lib/libc.so.6"} {
		if found, _ := filepath.Glob(pattern); len(found) > 0 {
			return found[0]
		}
	}
	t.Skip("no glibc found")
	return ""
}

func TestCall(t *testing.T) {
	lib, err := Open(libc(t))
	if err != nil {
		t.Fatal(err)
	}
	defer lib.Close()
	strnlen := lib.Lookup("strnlen")
	if !strnlen.OK() {
		t.Fatal("libc lacks strnlen")
	}
	text := []byte("gpumeter\x00")
	if n := strnlen.Call(uintptr(unsafe.Pointer(&text[0])), 100); n != 8 {
		t.Errorf("strnlen = %d, want 8", n)
	}
	if lib.Lookup("nvmlDeviceGetTheMoon").OK() {
		t.Error("a symbol that does not exist was found")
	}
}

// A Go buffer that a C call writes to must not move while goroutine stacks grow.
func TestCallKeepsBuffer(t *testing.T) {
	lib, err := Open(libc(t))
	if err != nil {
		t.Fatal(err)
	}
	memset := lib.Lookup("memset")
	for range 1000 {
		var v uint64
		memset.Call(uintptr(unsafe.Pointer(&v)), 0x5a, unsafe.Sizeof(v))
		if v != 0x5a5a5a5a5a5a5a5a {
			t.Fatalf("buffer holds %#x", v)
		}
		if n := uint64(depth(200)); n != 200 {
			t.Fatal(n)
		}
	}
}

func depth(n int) int {
	if n == 0 {
		return 0
	}
	return 1 + depth(n-1)
}

func TestOpenRefuses(t *testing.T) {
	whole, err := os.ReadFile(libc(t))
	if err != nil {
		t.Fatal(err)
	}
	foreign := bytes.Clone(whole)
	other := elf.EM_AARCH64
	if runtime.GOARCH == "arm64" {
		other = elf.EM_X86_64
	}
	foreign[18], foreign[19] = byte(other), byte(other>>8)

	f := func(name string, data []byte, want string) {
		t.Helper()
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Open(path)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: err = %v, want %q and the path", name, err, want)
		}
	}
	f("text.so", []byte("#!/bin/sh\necho no\n"), "ELF")
	f("empty.so", nil, "ELF")
	f("half.so", whole[:len(whole)/2], "is not a usable library") // dlopen of this file would raise SIGBUS
	f("header.so", whole[:64], "is not a usable library")
	f("foreign.so", foreign, "built for")
	if _, err := Open(t.TempDir()); err == nil {
		t.Error("Open accepted a directory")
	}
	if _, err := Open(filepath.Join(t.TempDir(), "absent.so")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Open of a missing file: err = %v", err)
	}
}

// Section headers are at the end of the file. A library without them still loads, but a
// library without its segments must never pass.
func FuzzCheck(f *testing.F) {
	whole, err := os.ReadFile(libc(f))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole[:4096], int64(4096))
	f.Add([]byte("\x7fELF"), int64(4))
	f.Fuzz(func(_ *testing.T, data []byte, size int64) {
		_ = check(bytes.NewReader(data), size, elf.EM_X86_64)
	})
}
