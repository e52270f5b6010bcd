// Functions with the real signatures and a chosen prologue. On amd64, PROLOGUE 580 is that of
// driver 580, 535 that of driver 535, and 64 what compilers emit first with CET; the probe
// goes to offset 0, 10 and 4, respectively. On arm64 it goes to the first instruction: one that
// saves registers, one that signs the return address, and one that marks a target of branches.
#pragma once
#include <stddef.h>
#include <stdint.h>

#if defined(__aarch64__)
#if PROLOGUE == 535
#define BEGIN "paciasp\n autiasp\n"
#elif PROLOGUE == 64
#define BEGIN "bti c\n stp x29, x30, [sp, #-16]!\n ldp x29, x30, [sp], #16\n"
#else
#define BEGIN "stp x29, x30, [sp, #-16]!\n ldp x29, x30, [sp], #16\n"
#endif
#define JUMP "b"
#elif PROLOGUE == 535
__attribute__((used, visibility("hidden"))) int stub_flag;
#define BEGIN "cmpl $0x321cba00, stub_flag(%rip)\n je 1f\n 1:\n"
#elif PROLOGUE == 64
#define BEGIN "endbr64\n push %rbp\n pop %rbp\n"
#else
#define BEGIN "push %rbp\n pop %rbp\n"
#endif
#ifndef JUMP
#define JUMP "jmp"
#endif

#define FN(name, parameters, ...)                                                   \
	__attribute__((used, visibility("hidden"))) int impl_##name parameters __VA_ARGS__ \
	asm(".text\n .globl " #name "\n .type " #name ",@function\n .p2align 4\n" #name ":\n" BEGIN \
	    " " JUMP " impl_" #name "\n .size " #name ", .-" #name "\n");
