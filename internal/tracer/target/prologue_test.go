//go:build linux

package target

import (
	"debug/elf"
	"encoding/hex"
	"strings"
	"testing"
)

// The probe must be where the kernel emulates, and never where an argument, the stack pointer
// or the return address has changed.
func TestDecode(t *testing.T) {
	f := func(name, code string, want Place) {
		t.Helper()
		b, err := hex.DecodeString(strings.ReplaceAll(code, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		if got := Decode(elf.EM_X86_64, b, false); got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
	f("push rbp (driver 580)", "55 4889e5", Place{0, true})
	f("push r12", "4154 53", Place{0, true})
	f("endbr64, push", "f30f1efa 55 4889e5", Place{4, true})
	f("endbr64, sub rsp", "f30f1efa 4883ec18 53", Place{4, false})
	f("endbr64, jmp", "f30f1efa e900000000", Place{4, true})
	f("stub of driver 535", "813d11223344 00ba2132 7405 c3", Place{10, true})
	f("the same with another jump", "813d11223344 00ba2132 7505 c3 9090", Place{0, false})
	f("nop", "90 c3", Place{0, true})
	f("long nop, push", "0f1f440000 55", Place{5, true})
	f("long nop with a size prefix, push", "662e0f1f840000000000 53", Place{10, true})
	f("long nop alone", "0f1f440000 4889f8 c3", Place{0, false})
	f("jmp", "e912345678", Place{0, true})
	f("je", "0f8412345678", Place{0, true})
	f("mov rax,fs:0x28, push", "64488b042528000000 55", Place{9, true})
	f("mov r10,[rip], push r15", "4c8b1511223344 4157", Place{7, true})
	f("lea r11,[rsp+8], push", "4c8d5c2408 53", Place{5, true})
	f("xor eax,eax; test rdi,rdi; push", "31c0 4885ff 53", Place{5, true})
	f("mov eax,imm32; push", "b801000000 53", Place{5, true})
	f("movabs r10,imm64; push", "49ba1122334455667788 53", Place{10, true})
	f("cmp dword [rip],imm8; push", "833d1122334400 55", Place{7, true})
	f("mov rbx is saved by the caller's callee", "4889fb 53", Place{0, false})
	f("mov edi changes an argument", "89f7 53", Place{0, false})
	f("mov ecx,imm changes an argument", "b901000000 53", Place{0, false})
	f("sub rsp", "4883ec08 53", Place{0, false})
	f("mov to memory", "48890424 53", Place{0, false})
	f("jcc in the middle may be the head of a loop", "4885ff 7405", Place{0, false})
	f("indirect jmp is not emulated", "ff2511223344", Place{0, false})
	f("call with a size prefix is not emulated", "66e8112233", Place{0, false})
	f("cut short", "48", Place{0, false})
	f("nothing", "", Place{})
}

// If only the entry is probed, more may run before the probe, but no argument may change.
func TestDecodeEntry(t *testing.T) {
	f := func(name, code string, want Place) {
		t.Helper()
		b, err := hex.DecodeString(strings.ReplaceAll(code, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		if got := Decode(elf.EM_X86_64, b, true); got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
	f("push", "55", Place{0, true})
	f("sub rsp, call", "4883ec18 e811223344", Place{4, true})
	f("sub rsp of 4 bytes, mov rax,fs:0x28, mov [rsp+8],rax, je", "4881ec88000000 64488b042528000000 4889442408 7405", Place{21, true})
	f("mov rbx,rdi; mov [rsp],imm; push", "4889fb c7042401000000 53", Place{10, true})
	f("pxor xmm0; movaps [rsp],xmm0; call", "660fefc0 0f290424 e811223344", Place{8, true})
	f("movdqa load with a prefix; push", "f30f6f442410 53", Place{6, true})
	f("mov edi changes an argument", "4883ec18 89f7 53", Place{0, false})
	f("lea rsi changes an argument", "488d7424ff 53", Place{0, false})
	f("sub rdi changes an argument", "4883ef08 53", Place{0, false})
	f("ret ends it", "4883ec18 c3 53", Place{0, false})
}

func TestDecodeARM64(t *testing.T) {
	f := func(name string, insn uint32, want Place) {
		t.Helper()
		code := []byte{byte(insn), byte(insn >> 8), byte(insn >> 16), byte(insn >> 24)}
		if got := Decode(elf.EM_AARCH64, code, true); got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
	f("b", 0x14000010, Place{0, true})
	f("nop", 0xd503201f, Place{0, true})
	f("adrp x16", 0x90000010, Place{0, true})
	f("paciasp", 0xd503233f, Place{0, false})
	f("bti c", 0xd503245f, Place{0, false})
	f("stp x29,x30,[sp,-16]!", 0xa9bf7bfd, Place{0, false})
	if got := Decode(elf.EM_RISCV, []byte{0x90}, true); got != (Place{}) {
		t.Errorf("an unknown machine has a cheap place: %+v", got)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte{0xf3, 0x0f, 0x1e, 0xfa, 0x55})
	f.Add([]byte{0x64, 0x48, 0x8b, 0x04, 0x25})
	f.Fuzz(func(t *testing.T, code []byte) {
		for _, m := range []elf.Machine{elf.EM_X86_64, elf.EM_AARCH64} {
			for _, entry := range []bool{false, true} {
				p := Decode(m, code, entry)
				if p.Offset > uint64(len(code)) || p.Cheap && p.Offset >= uint64(len(code)) {
					t.Errorf("%x: %+v", code, p)
				}
			}
		}
	})
}
