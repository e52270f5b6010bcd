// Locations of arguments, by the System V ABI on x86-64 and AAPCS64 on arm64. A probe is on the
// first instructions, before the stack pointer moves.
#pragma once

#include "maps.h"

#if defined(__TARGET_ARCH_x86)
#define RESULT(ctx) ((__s32)(ctx)->ax)
#define STACK(ctx) ((ctx)->sp + 8) // above the return address
#define REGISTERS 6
typedef signed char c_char; // what C's plain char is there
#define R1(ctx) ((ctx)->di)
#define R2(ctx) ((ctx)->si)
#define R3(ctx) ((ctx)->dx)
#define R4(ctx) ((ctx)->cx)
#define R5(ctx) ((ctx)->r8)
#define R6(ctx) ((ctx)->r9)
#else
#define RESULT(ctx) ((__s32)(ctx)->regs[0])
#define STACK(ctx) ((ctx)->sp)
#define REGISTERS 8
typedef unsigned char c_char;
#define R1(ctx) ((ctx)->regs[0])
#define R2(ctx) ((ctx)->regs[1])
#define R3(ctx) ((ctx)->regs[2])
#define R4(ctx) ((ctx)->regs[3])
#define R5(ctx) ((ctx)->regs[4])
#define R6(ctx) ((ctx)->regs[5])
#endif

static __always_inline long from_user(void *to, __u32 size, __u64 address)
{
	long err = bpf_probe_read_user(to, size, (const void *)address);

	if (err)
		lose(LOSS_FAULT);
	return err;
}

// argument returns argument n, counted from 1. The caller knows its width.
static __noinline __u64 argument(struct pt_regs *ctx, __u64 n)
{
	__u64 v = 0;

	switch (n) {
	case 0:
		return 0;
	case 1:
		return R1(ctx);
	case 2:
		return R2(ctx);
	case 3:
		return R3(ctx);
	case 4:
		return R4(ctx);
	case 5:
		return R5(ctx);
	case 6:
		return R6(ctx);
#if REGISTERS == 8
	case 7:
		return ctx->regs[6];
	case 8:
		return ctx->regs[7];
#endif
	}
	from_user(&v, sizeof(v), STACK(ctx) + (n - REGISTERS - 1) * 8);
	return v;
}

// launch reads the arguments of cuLaunchKernel: function, six dimensions, bytes of shared
// memory, and stream.
static __always_inline void launch(struct pt_regs *ctx, struct frame *f)
{
#if REGISTERS == 6
	__u64 rest[3] = {};

	from_user(rest, sizeof(rest), STACK(ctx));
	f->dims[5] = rest[0];
	f->dims[6] = rest[1];
	f->stream = rest[2];
#else
	f->dims[5] = ctx->regs[6];
	f->dims[6] = ctx->regs[7];
	f->stream = 0;
	from_user(&f->stream, sizeof(f->stream), STACK(ctx));
#endif
	f->a = R1(ctx);
	f->dims[0] = R2(ctx);
	f->dims[1] = R3(ctx);
	f->dims[2] = R4(ctx);
	f->dims[3] = R5(ctx);
	f->dims[4] = R6(ctx);
}

// unique_id locates ncclUniqueId, 128 bytes passed by value, and the rank that follows it.
#if REGISTERS == 6
#define UNIQUE_ID(ctx) STACK(ctx)
#define RANK_BEHIND(ctx) ((__s32)R3(ctx))
#else
#define UNIQUE_ID(ctx) R3(ctx)
#define RANK_BEHIND(ctx) ((__s32)R4(ctx))
#endif
