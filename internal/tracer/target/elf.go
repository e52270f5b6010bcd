//go:build linux

package target

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
)

// Bounds for reading an ELF file, in bytes. Tables are streamed and never held in memory.
const (
	maxTable   = 512 << 20 // symbol table or string table
	maxNotes   = 64 << 10
	maxSymbol  = 4096 // length of a symbol name
	maxFound   = 4096 // symbols returned
	codeBytes  = 64   // bytes of a function passed to Decode
	symbolSize = 24   // entry of a 64-bit symbol table
)

// Image is what was read of one ELF file.
type Image struct {
	Machine elf.Machine
	// BuildID is the hexadecimal build id, or a hash of the first bytes of the file if it has
	// none.
	BuildID string
	Symbols []Symbol // by name
}

// Symbol is a function in an Image.
type Symbol struct {
	Name   string
	Offset uint64 // file offset
	Code   []byte // first instructions
}

// ReadImage reads the wanted functions from a 64-bit little-endian ELF file. Functions that
// the file does not have are left out.
func ReadImage(r io.ReaderAt, wanted map[string]bool) (Image, error) {
	f, err := elf.NewFile(r)
	if err != nil {
		return Image{}, fmt.Errorf("cannot read ELF file: %w", err)
	}
	if f.Class != elf.ELFCLASS64 || f.Data != elf.ELFDATA2LSB {
		return Image{}, errors.New("not a 64-bit little-endian ELF file")
	}
	img := Image{Machine: f.Machine, BuildID: buildID(f)}
	if img.BuildID == "" {
		head := make([]byte, 4096)
		n, err := r.ReadAt(head, 0)
		if err != nil && !errors.Is(err, io.EOF) {
			return Image{}, err
		}
		sum := sha256.Sum256(head[:n])
		img.BuildID = "head-" + hex.EncodeToString(sum[:10])
	}
	values := map[string]uint64{}
	// A name in both tables is the same function; stripped files have only the dynamic one.
	for _, typ := range []elf.SectionType{elf.SHT_SYMTAB, elf.SHT_DYNSYM} {
		// A valid file has at most one of each; of more only the first is read.
		if s := f.SectionByType(typ); s != nil {
			if err := symbols(f, s, wanted, values); err != nil {
				return Image{}, fmt.Errorf("cannot read symbol table: %w", err)
			}
		}
	}
	for name, v := range values {
		off, ok := fileOffset(f, v)
		if !ok {
			continue
		}
		code := make([]byte, codeBytes)
		n, err := r.ReadAt(code, int64(off))
		if err != nil && !errors.Is(err, io.EOF) {
			return Image{}, err
		}
		img.Symbols = append(img.Symbols, Symbol{name, off, code[:n]})
	}
	slices.SortFunc(img.Symbols, func(a, b Symbol) int {
		return bytes.Compare([]byte(a.Name), []byte(b.Name))
	})
	return img, nil
}

// symbols stores the addresses of the wanted functions in values.
func symbols(f *elf.File, table *elf.Section, wanted map[string]bool, values map[string]uint64) error {
	if table.Link == 0 || int(table.Link) >= len(f.Sections) {
		return errors.New("no string table")
	}
	strs := f.Sections[table.Link]
	for _, s := range []*elf.Section{table, strs} {
		if s.Size > maxTable || s.Flags&elf.SHF_COMPRESSED != 0 || s.Type == elf.SHT_NOBITS {
			return fmt.Errorf("section of %d bytes is too large or compressed", s.Size)
		}
	}
	names, err := nameOffsets(io.NewSectionReader(strs, 0, int64(strs.Size)), wanted)
	if err != nil || len(names) == 0 {
		return err
	}
	r := bufio.NewReaderSize(io.NewSectionReader(table, 0, int64(table.Size)), 64<<10)
	var e [symbolSize]byte
	for {
		if _, err := io.ReadFull(r, e[:]); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		name, ok := names[binary.LittleEndian.Uint32(e[0:])]
		if !ok {
			continue
		}
		// The address of an indirect function (IFUNC) is that of its resolver.
		if t := elf.ST_TYPE(e[4]); t != elf.STT_FUNC && t != elf.STT_NOTYPE {
			continue
		}
		if v := binary.LittleEndian.Uint64(e[8:]); v != 0 && binary.LittleEndian.Uint16(e[6:]) != uint16(elf.SHN_UNDEF) {
			values[name] = v
		}
	}
}

// nameOffsets returns the offsets of the wanted names in a string table. Linkers let a name
// share the end of a longer one.
func nameOffsets(r io.Reader, wanted map[string]bool) (map[uint32]string, error) {
	var lengths []int
	for name := range wanted {
		lengths = append(lengths, len(name))
	}
	slices.Sort(lengths)
	lengths = slices.Compact(lengths)
	offsets := map[uint32]string{}
	br := bufio.NewReaderSize(r, maxSymbol)
	var at int64
	for {
		s, err := br.ReadSlice(0)
		if errors.Is(err, bufio.ErrBufferFull) {
			at += int64(len(s)) // too long; its end is still examined
			continue
		}
		if err != nil {
			if errors.Is(err, io.EOF) {
				return offsets, nil // an unterminated name is ignored
			}
			return nil, err
		}
		body := s[:len(s)-1]
		for _, n := range lengths {
			if n > len(body) {
				break
			}
			tail := body[len(body)-n:]
			if wanted[string(tail)] && len(offsets) < maxFound {
				offsets[uint32(at+int64(len(body)-n))] = string(tail)
			}
		}
		at += int64(len(s))
	}
}

// fileOffset converts an address to a file offset.
func fileOffset(f *elf.File, addr uint64) (uint64, bool) {
	for _, p := range f.Progs {
		if p.Type != elf.PT_LOAD || p.Flags&elf.PF_X == 0 || addr < p.Vaddr || addr-p.Vaddr >= p.Filesz {
			continue
		}
		off := addr - p.Vaddr + p.Off
		return off, off >= p.Off && off < 1<<62
	}
	return 0, false
}

// buildID returns the GNU build id in hexadecimal, or "".
func buildID(f *elf.File) string {
	notes := 0
	for _, p := range f.Progs {
		if p.Type != elf.PT_NOTE || p.Filesz > maxNotes {
			continue
		}
		if notes++; notes > 16 {
			break
		}
		b := make([]byte, p.Filesz)
		if _, err := p.ReadAt(b, 0); err != nil {
			continue
		}
		if id := parseNotes(b); id != "" {
			return id
		}
	}
	return ""
}

// parseNotes finds the GNU note of type 3 among notes with 4-byte alignment.
func parseNotes(b []byte) string {
	for len(b) >= 12 {
		nameLen := uint64(binary.LittleEndian.Uint32(b))
		descLen := uint64(binary.LittleEndian.Uint32(b[4:]))
		typ := binary.LittleEndian.Uint32(b[8:])
		name := b[12:]
		desc := (nameLen + 3) &^ 3
		end := desc + (descLen+3)&^3
		if desc+descLen > uint64(len(name)) {
			return ""
		}
		if typ == 3 && bytes.Equal(name[:nameLen], []byte("GNU\x00")) && descLen > 0 && descLen <= 64 {
			return hex.EncodeToString(name[desc : desc+descLen])
		}
		if end > uint64(len(name)) {
			return ""
		}
		b = name[end:]
	}
	return ""
}
