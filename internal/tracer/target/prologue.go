//go:build linux

package target

import (
	"debug/elf"
	"encoding/binary"
)

// Place is where in a function a probe goes.
type Place struct {
	Offset uint64 // from its first byte
	// Cheap: the kernel emulates the instruction there. Else it runs it alone, with a trap
	// after it: some 6 to 13 microseconds a call on a nested virtual machine, about 1 on
	// bare metal, where an emulated one costs about 0.5.
	Cheap bool
}

// Decode returns the place for a probe in a function that begins with code. What runs
// before it leaves the arguments, the stack pointer and the return address as they were,
// so that a probe of the return works there too; with entry, that is not asked for, and
// only the arguments in registers are as they were.
//
// amd64: Linux emulates push, the one-byte nop, and relative jmp, call and jcc. endbr64
// and instructions that only touch registers no argument is in, or the flags, are passed
// over on the way to a push. libcuda of driver 535 begins its functions with a comparison
// and a jump, which is where the probe goes.
//
// arm64: the kernel simulates branches, adr, adrp, literal loads and (since 6.14) nop; all
// other instructions run out of line with a hardware step. The place is always the first
// instruction: paciasp signs the return address, and a probe of the return placed behind
// it would break the signature. None of this was measured on arm64.
func Decode(machine elf.Machine, code []byte, entry bool) Place {
	switch machine {
	case elf.EM_X86_64:
		return decodeAMD64(code, entry)
	case elf.EM_AARCH64:
		return Place{Cheap: len(code) >= 4 && simulated(binary.LittleEndian.Uint32(code))}
	}
	return Place{}
}

func decodeAMD64(code []byte, entry bool) Place {
	// cmpl $imm32, disp32(%rip); je: the driver asks whether a tool listens.
	if len(code) >= 12 && code[0] == 0x81 && code[1] == 0x3d && code[10] == 0x74 {
		return Place{10, true}
	}
	if len(code) > 0 && (isPush(code) || isBranch(code) || code[0] == 0x90) {
		return Place{0, true}
	}
	var first uint64 // the first place behind an endbr64, where a jump is still the entry
	for at := 0; at < len(code); {
		rest := code[at:]
		// Nothing jumps back to a push of the prologue, so it is passed once a call. Of a
		// branch that is not so sure, except directly at the entry; where only the entry
		// counts, what is said twice does no harm.
		if isPush(rest) || (entry || uint64(at) == first) && (isBranch(rest) || rest[0] == 0x90) {
			return Place{uint64(at), true}
		}
		n := harmless(rest, entry)
		if n == 0 {
			break
		}
		if at == 0 && isEndbr(rest) {
			first = 4
		}
		at += n
	}
	// Single-stepped. Behind endbr64 it is no dearer, and the same for all.
	return Place{first, false}
}

func isEndbr(code []byte) bool {
	return len(code) >= 4 && code[0] == 0xf3 && code[1] == 0x0f && code[2] == 0x1e && code[3] == 0xfa
}

// isPush: push of a register, with or without REX.B.
func isPush(code []byte) bool {
	if len(code) > 1 && code[0] == 0x41 {
		code = code[1:]
	}
	return len(code) > 0 && code[0]&0xf8 == 0x50
}

// isBranch: jmp, call or jcc with a relative target.
func isBranch(code []byte) bool {
	switch {
	case len(code) == 0:
		return false
	case code[0] == 0xeb, code[0] == 0xe9, code[0] == 0xe8, code[0]&0xf0 == 0x70:
		return true
	}
	return len(code) > 1 && code[0] == 0x0f && code[1]&0xf0 == 0x80
}

// harmless returns the length of the instruction if it changes neither control flow, nor a
// register that an argument may be in, nor, unless only the entry counts, memory, the
// stack pointer or a register that belongs to the caller; else 0. It knows the few that
// compilers put at the beginning of a function.
func harmless(code []byte, entry bool) int {
	if isEndbr(code) {
		return 4
	}
	at := 0
	for at < len(code) && (code[at] == 0x66 || code[at] == 0x64 || code[at] == 0x2e || entry && code[at] == 0xf3) { // size, %fs, padding of a nop
		at++
	}
	short := at > 0 && code[0] == 0x66 // an immediate of 4 bytes would have 2
	var rex byte
	if at < len(code) && code[at]&0xf0 == 0x40 {
		rex = code[at]
		at++
	}
	next := func() (b byte) {
		if at < len(code) {
			b = code[at]
		}
		at++
		return b
	}
	imm := 0   // bytes of an immediate that follow
	dest := -1 // the register that is written
	op := next()
	var reg, rm byte
	var isReg bool
	modrm := func() {
		m := next()
		reg, rm, isReg = m>>3&7|rex&4<<1, m&7|rex&1<<3, m>>6 == 3
		if isReg {
			return
		}
		if m&7 == 4 {
			if next()&7 == 5 && m>>6 == 0 {
				at += 4
			}
		} else if m&7 == 5 && m>>6 == 0 {
			at += 4 // relative to the instruction pointer
		}
		at += [3]int{0, 1, 4}[m>>6]
	}
	switch op {
	case 0x90: // nop
	case 0x0f:
		switch b := next(); {
		case b == 0x1f: // nop of several bytes
		case entry && (b == 0x10 || b == 0x11 || b == 0x28 || b == 0x29 || b == 0x57 || b == 0xef || b == 0x6f || b == 0x7f):
			// Moves to and from vector registers, and clearing them. No argument is there.
		default:
			return 0
		}
		modrm()
	case 0x8b, 0x8d: // mov r, r/m; lea
		modrm()
		if op == 0x8d && isReg {
			return 0
		}
		dest = int(reg)
	case 0x89, 0x31: // mov r/m, r; xor: to a register only
		modrm()
		if isReg {
			dest = int(rm)
		} else if !entry {
			return 0
		}
	case 0x33: // xor r, r/m
		modrm()
		dest = int(reg)
	case 0x39, 0x3b, 0x85, 0x38, 0x3a, 0x84: // cmp, test
		modrm()
	case 0x80, 0x83, 0x81: // cmp $imm, and what changes the stack pointer
		modrm()
		if reg&7 != 7 && (!entry || !isReg || rm != stackPointer) {
			return 0
		}
		imm = 1
		if op == 0x81 {
			imm = 4
		}
	case 0xc6, 0xc7: // mov $imm to memory
		modrm()
		if !entry || isReg {
			return 0
		}
		imm = 1
		if op == 0xc7 {
			imm = 4
		}
	case 0xb8, 0xb9, 0xba, 0xbb, 0xbc, 0xbd, 0xbe, 0xbf: // mov $imm, r
		dest = int(op&7 | rex&1<<3)
		imm = 4
		if rex&8 != 0 {
			imm = 8
		}
	default:
		return 0
	}
	at += imm
	if at > len(code) || imm == 4 && short || dest >= 0 && !scratch(dest) && (!entry || argument(dest)) {
		return 0
	}
	return at
}

const stackPointer = 4

// scratch: rax, r10 and r11 carry no argument of an integer or pointer and belong to the
// function that is called.
func scratch(reg int) bool { return reg == 0 || reg == 10 || reg == 11 }

// argument: rcx, rdx, rsi, rdi, r8 and r9.
func argument(reg int) bool { return reg == 1 || reg == 2 || reg >= 6 && reg <= 9 }

// simulated: the arm64 kernel does the instruction itself.
func simulated(insn uint32) bool {
	switch {
	case insn&0x7c000000 == 0x14000000, // b, bl
		insn&0xff000010 == 0x54000000, // b.cond
		insn&0x7e000000 == 0x34000000, // cbz, cbnz
		insn&0x7e000000 == 0x36000000, // tbz, tbnz
		insn&0x1f000000 == 0x10000000, // adr, adrp
		insn&0xbf000000 == 0x18000000, // ldr literal
		insn == 0xd503201f:            // nop
		return true
	}
	return false
}
