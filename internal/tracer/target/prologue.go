//go:build linux

package target

import (
	"debug/elf"
	"encoding/binary"
)

// Place is where in a function a probe goes.
type Place struct {
	Offset uint64 // from the first byte of the function
	// Cheap is set if the kernel emulates the instruction there. Otherwise the kernel
	// single-steps it: about 6 to 13 microseconds per call on a nested virtual machine, about
	// 1 on bare metal, where an emulated one costs about 0.5.
	Cheap bool
}

// Decode returns the place for a probe in a function that starts with code. Instructions
// before that place leave the arguments, the stack pointer and the return address unchanged,
// so a return probe works there too. With entry, only arguments in registers have to be
// unchanged.
//
// amd64: Linux emulates push, the one-byte nop, and relative jmp, call and jcc. On the way to
// a push, endbr64 and instructions that only touch flags or registers without arguments are
// skipped. Functions of libcuda 535 start with a comparison and a jump, which is where the
// probe goes.
//
// arm64: the kernel simulates branches, adr, adrp, literal loads and (since 6.14) nop; all
// other instructions run out of line with a hardware step. The place is always the first
// instruction: paciasp signs the return address, and a return probe placed after it would
// break the signature. None of this was measured on arm64.
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
	// cmpl $imm32, disp32(%rip); je: the driver checks whether a tool is attached.
	if len(code) >= 12 && code[0] == 0x81 && code[1] == 0x3d && code[10] == 0x74 {
		return Place{10, true}
	}
	if len(code) > 0 && (isPush(code) || isBranch(code) || code[0] == 0x90) {
		return Place{0, true}
	}
	var first uint64 // first place after endbr64, where a branch is still the entry
	for at := 0; at < len(code); {
		rest := code[at:]
		// No jump leads back to a push in the prologue, so it is executed once per call. A branch
		// is only certain to be so directly at the entry. If only the entry is probed, a second
		// hit does no harm.
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
	// Single-stepped. The place after endbr64 costs the same and is the same for all.
	return Place{first, false}
}

func isEndbr(code []byte) bool {
	return len(code) >= 4 && code[0] == 0xf3 && code[1] == 0x0f && code[2] == 0x1e && code[3] == 0xfa
}

// isPush reports a push of a register, with or without REX.B.
func isPush(code []byte) bool {
	if len(code) > 1 && code[0] == 0x41 {
		code = code[1:]
	}
	return len(code) > 0 && code[0]&0xf8 == 0x50
}

// isBranch reports a jmp, call or jcc with a relative target.
func isBranch(code []byte) bool {
	switch {
	case len(code) == 0:
		return false
	case code[0] == 0xeb, code[0] == 0xe9, code[0] == 0xe8, code[0]&0xf0 == 0x70:
		return true
	}
	return len(code) > 1 && code[0] == 0x0f && code[1]&0xf0 == 0x80
}

// harmless returns the length of an instruction that changes neither control flow nor a
// register that may hold an argument and, unless only the entry is probed, neither memory,
// the stack pointer nor a callee-saved register; otherwise 0. It knows the few instructions
// that compilers put at the beginning of a function.
func harmless(code []byte, entry bool) int {
	if isEndbr(code) {
		return 4
	}
	at := 0
	for at < len(code) && (code[at] == 0x66 || code[at] == 0x64 || code[at] == 0x2e || entry && code[at] == 0xf3) { // operand size, %fs, nop padding
		at++
	}
	short := at > 0 && code[0] == 0x66 // a 4-byte immediate would have 2 bytes
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
	imm := 0   // bytes of the immediate
	dest := -1 // destination register
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
		case b == 0x1f: // multi-byte nop
		case entry && (b == 0x10 || b == 0x11 || b == 0x28 || b == 0x29 || b == 0x57 || b == 0xef || b == 0x6f || b == 0x7f):
			// Moves to, from and between vector registers, which hold no arguments.
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

// scratch reports rax, r10 and r11, which hold no integer or pointer argument and are
// caller-saved.
func scratch(reg int) bool { return reg == 0 || reg == 10 || reg == 11 }

// argument reports rcx, rdx, rsi, rdi, r8 and r9.
func argument(reg int) bool { return reg == 1 || reg == 2 || reg >= 6 && reg <= 9 }

// simulated reports whether the arm64 kernel simulates the instruction.
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
