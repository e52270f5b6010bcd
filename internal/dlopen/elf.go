//go:build linux

package dlopen

import (
	"debug/elf"
	"fmt"
	"io"
	"os"
	"runtime"
)

var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

// CheckFile returns nil if the file at path is a complete shared library for this
// architecture.
func CheckFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("cannot open library: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return fmt.Errorf("cannot stat library: %w", err)
	}
	if !st.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file", path)
	}
	if err := check(f, st.Size(), machines[runtime.GOARCH]); err != nil {
		return fmt.Errorf("%s is not a usable library: %w", path, err)
	}
	return nil
}

// check compares what the ELF headers promise with the size of the file.
func check(r io.ReaderAt, size int64, machine elf.Machine) error {
	f, err := elf.NewFile(io.NewSectionReader(r, 0, size))
	if err != nil {
		return fmt.Errorf("cannot parse ELF headers: %w", err)
	}
	if f.Type != elf.ET_DYN {
		return fmt.Errorf("ELF type is %v, not a shared object", f.Type)
	}
	if f.Machine != machine {
		return fmt.Errorf("built for %v, not for %v", f.Machine, machine)
	}
	loads := 0
	for _, p := range f.Progs {
		if p.Type != elf.PT_LOAD {
			continue
		}
		loads++
		if end := p.Off + p.Filesz; end < p.Off || end > uint64(size) {
			return fmt.Errorf("truncated: a segment ends at byte %d of %d", end, size)
		}
	}
	if loads == 0 {
		return fmt.Errorf("no loadable segment")
	}
	return nil
}
