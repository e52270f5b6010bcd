//go:build linux

package target

import (
	"bufio"
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
)

// Binary is an ELF file whose addresses and symbols are asked for. It holds no table in memory.
type Binary struct {
	f *elf.File
}

// OpenBinary reads the headers of a 64-bit little-endian ELF file.
func OpenBinary(r io.ReaderAt) (*Binary, error) {
	f, err := elf.NewFile(r)
	if err != nil {
		return nil, fmt.Errorf("cannot read ELF file: %w", err)
	}
	if f.Class != elf.ELFCLASS64 || f.Data != elf.ELFDATA2LSB {
		return nil, errors.New("not a 64-bit little-endian ELF file")
	}
	return &Binary{f}, nil
}

// Machine returns the architecture of the file.
func (b *Binary) Machine() elf.Machine { return b.f.Machine }

// FileOffset converts an address of code to a file offset.
func (b *Binary) FileOffset(addr uint64) (uint64, bool) { return fileOffset(b.f, addr) }

// Bias returns what the addresses of a mapping of this file are above those in the file.
func (b *Binary) Bias(m Mapping) (uint64, bool) {
	for _, p := range b.f.Progs {
		page := p.Off &^ 0xfff // a mapping begins at a page
		if p.Type == elf.PT_LOAD && p.Flags&elf.PF_X != 0 && m.Offset >= page && m.Offset < p.Off+p.Filesz {
			return m.Start - (m.Offset - p.Off + p.Vaddr), true
		}
	}
	return 0, false
}

// Values returns the addresses of symbols of any type.
func (b *Binary) Values(wanted map[string]bool) (map[string]uint64, error) {
	values := map[string]uint64{}
	err := b.tables(func(table, strs *elf.Section) error {
		names, err := nameOffsets(io.NewSectionReader(strs, 0, int64(strs.Size)), wanted)
		if err != nil || len(names) == 0 {
			return err
		}
		return eachSymbol(table, func(e []byte) {
			if name, ok := names[binary.LittleEndian.Uint32(e)]; ok && defined(e) {
				values[name] = binary.LittleEndian.Uint64(e[8:])
			}
		})
	})
	return values, err
}

// Prefixed returns the addresses of the functions whose names begin with a text.
func (b *Binary) Prefixed(prefix string) (addrs []uint64, err error) {
	err = b.tables(func(table, strs *elf.Section) error {
		offsets, err := prefixOffsets(io.NewSectionReader(strs, 0, int64(strs.Size)), []byte(prefix))
		if err != nil || len(offsets) == 0 {
			return err
		}
		return eachSymbol(table, func(e []byte) {
			if offsets[binary.LittleEndian.Uint32(e)] && defined(e) && elf.ST_TYPE(e[4]) == elf.STT_FUNC && len(addrs) < maxFound {
				addrs = append(addrs, binary.LittleEndian.Uint64(e[8:]))
			}
		})
	})
	slices.Sort(addrs)
	return slices.Compact(addrs), err
}

func prefixOffsets(r io.Reader, prefix []byte) (map[uint32]bool, error) {
	found := map[uint32]bool{}
	br := bufio.NewReaderSize(r, maxSymbol)
	for at, start := int64(0), true; ; {
		s, err := br.ReadSlice(0)
		if start && bytes.HasPrefix(s, prefix) && len(found) < maxFound {
			found[uint32(at)] = true
		}
		at += int64(len(s))
		start = !errors.Is(err, bufio.ErrBufferFull)
		switch {
		case err == nil || !start:
		case errors.Is(err, io.EOF):
			return found, nil
		default:
			return nil, err
		}
	}
}

// Names returns the names of the functions that have these addresses. An address that is in no known
// function is left out: a stripped file knows only what it exports.
func (b *Binary) Names(addrs []uint64) (map[uint64]string, error) {
	sorted := slices.Clone(addrs)
	slices.Sort(sorted)
	sorted = slices.Compact(sorted)
	names := map[uint64]string{}
	err := b.tables(func(table, strs *elf.Section) error {
		places := map[uint64]uint32{} // of names
		err := eachSymbol(table, func(e []byte) {
			if elf.ST_TYPE(e[4]) != elf.STT_FUNC || !defined(e) {
				return
			}
			value, size := binary.LittleEndian.Uint64(e[8:]), binary.LittleEndian.Uint64(e[16:])
			for i, _ := slices.BinarySearch(sorted, value); i < len(sorted) && sorted[i]-value < size; i++ {
				places[sorted[i]] = binary.LittleEndian.Uint32(e)
			}
		})
		for addr, place := range places {
			name := make([]byte, maxSymbol)
			n, _ := strs.ReadAt(name, int64(place))
			if end := bytes.IndexByte(name[:n], 0); end > 0 {
				names[addr] = string(name[:end])
			}
		}
		return err
	})
	return names, err
}

// tables calls f with the symbol tables and their strings: the dynamic one, then the full one if the file
// is not stripped.
func (b *Binary) tables(f func(table, strs *elf.Section) error) error {
	for _, typ := range []elf.SectionType{elf.SHT_DYNSYM, elf.SHT_SYMTAB} {
		table := b.f.SectionByType(typ)
		if table == nil {
			continue
		}
		if table.Link == 0 || int(table.Link) >= len(b.f.Sections) {
			return errors.New("no string table")
		}
		strs := b.f.Sections[table.Link]
		for _, s := range []*elf.Section{table, strs} {
			if s.Size > maxTable || s.Flags&elf.SHF_COMPRESSED != 0 || s.Type == elf.SHT_NOBITS {
				return fmt.Errorf("section of %d bytes is too large or compressed", s.Size)
			}
		}
		if err := f(table, strs); err != nil {
			return fmt.Errorf("cannot read symbol table: %w", err)
		}
	}
	return nil
}

func eachSymbol(table *elf.Section, f func(entry []byte)) error {
	r := bufio.NewReaderSize(io.NewSectionReader(table, 0, int64(table.Size)), 64<<10)
	var e [symbolSize]byte
	for {
		if _, err := io.ReadFull(r, e[:]); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		f(e[:])
	}
}

func defined(entry []byte) bool {
	return binary.LittleEndian.Uint64(entry[8:]) != 0 && binary.LittleEndian.Uint16(entry[6:]) != uint16(elf.SHN_UNDEF)
}
