// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)

// The profiler: counts the launches of chosen processes by kernel, and samples the stacks of the
// threads that launch and wait. It is an object of its own, loaded while somebody profiles.
#include "profile.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define BPF_F_USER_STACK (1ull << 8)
#define THREADS 512 // of a process that are searched for one of Python's

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
#if defined(__TARGET_ARCH_x86)
struct thread_struct {
	unsigned long fsbase;
};
#else
struct thread_struct {
	struct {
		unsigned long tp_value;
	} uw;
};
#endif
struct task_struct___profile {
	__u64 start_boottime, self_exec_id;
	struct thread_struct thread;
};
#pragma clang attribute pop

// Set before loading: ns between two samples of a thread.
const volatile __u64 pace = 10101010;

struct profile_thread {
	__u64 exec;
	__u32 epoch, chosen; // of the processes; it is one of them
	__u32 tgid, pad;
	__u64 python;	// its thread state
	__u64 searched; // when it was last searched for in vain
	// Of launches, and of waits:
	struct turn {
		__u64 at;	   // the last sample
		__u32 since, next; // calls since then; at which the next one is
		__u32 every, pad;
	} turns[2];
	__u64 wait_since, wait_sp;
	__u32 wait_calls, wait_pad;
	struct profile_sample_key wait;
	struct profile_stack stack;
};

#define HASH(name, k, v, n)                              \
	struct {                                         \
		__uint(type, BPF_MAP_TYPE_HASH);         \
		__uint(map_flags, BPF_F_NO_PREALLOC);    \
		__uint(max_entries, n);                  \
		__type(key, k);                          \
		__type(value, v);                        \
	} name SEC(".maps")

HASH(targets, __u32, struct profile_target, 1024);
HASH(counts, struct profile_count_key, __u64, 65536);
HASH(samples, struct profile_sample_key, struct profile_sample, 32768);
HASH(stacks, __u64, struct profile_stack, 4096);

// The stack of a program is too small for a stack of frames, and a map by CPU is unsafe: a uprobe may
// be preempted.
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct profile_thread);
} threads SEC(".maps");

// Always empty. A program that may make a tail call runs on the stack of its task, as those of tracer.bpf.c
// do: a uprobe may be preempted on one by CPU. See docs/adr/0016.
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} nothing SEC(".maps");

#define shared_stack(ctx)                                \
	do {                                             \
		if (!(ctx)->sp)                          \
			bpf_tail_call(ctx, &nothing, 0); \
	} while (0)

__u64 lost[PROFILE_LOSSES];

// Written by user space: counts changes of targets.
__u32 epoch SEC(".data.control") = 1;

#define ADD(field, n) ((void)__sync_fetch_and_add(&(field), (n)))

static __always_inline __u64 word(__u64 at)
{
	__u64 v = 0;

	if (bpf_probe_read_user(&v, sizeof(v), (const void *)at))
		return 0;
	return v;
}

// same reports whether a thread of Python is the one with this thread pointer: pthread_self(), which is
// the thread pointer itself on x86-64, and some way below it on arm64.
static __always_inline bool same(__u64 id, __u64 pointer)
{
#if defined(__TARGET_ARCH_x86)
	return id == pointer;
#else
	return id && pointer - id < 8192;
#endif
}

static __always_inline __u64 thread_pointer(struct task_struct___profile *task)
{
#if defined(__TARGET_ARCH_x86)
	return task->thread.fsbase;
#else
	return task->thread.uw.tp_value;
#endif
}

// search sets the state of a thread of Python.
static __noinline int search(struct profile_thread *st, struct profile_target *p, __u64 pointer)
{
	__u64 interp, thread = 0;
	bool begun = false;

	if (!st || !p)
		return 0;
	interp = word(p->heads);
	for (int i = 0; i < THREADS; i++) {
		if (!thread) {
			if (begun && interp)
				interp = word(interp + p->interp_next);
			if (!interp)
				break;
			begun = true;
			thread = word(interp + p->interp_threads);
			continue;
		}
		if (same(word(thread + p->thread_id), pointer)) {
			st->python = thread;
			return 0;
		}
		thread = word(thread + p->thread_next);
	}
	st->searched = bpf_ktime_get_ns();
	return 0;
}

// python returns the state of the current thread in Python, or 0.
static __always_inline __u64 python(struct profile_thread *st, struct profile_target *p)
{
	__u64 pointer = thread_pointer((struct task_struct___profile *)bpf_get_current_task_btf());

	if (!pointer)
		return 0;
	if (st->python && same(word(st->python + p->thread_id), pointer))
		return st->python;
	st->python = 0;
	if (st->searched && bpf_ktime_get_ns() - st->searched < 1000000000)
		return 0;
	search(st, p, pointer);
	return st->python;
}

static __always_inline __u64 innermost(struct profile_target *p, __u64 thread)
{
	__u64 at = word(thread + p->thread_frame);

	return p->frame_of && at ? word(at + p->frame_of - 1) : at;
}

// A reference to a code object may have tags in its lowest bits.
#define UNTAGGED(v) ((v) & ~7ull)

static __noinline int walk(struct profile_stack *s, struct profile_target *p, __u64 frame)
{
	if (!s || !p)
		return 0;
	for (int i = 0; i < PYTHON_FRAMES + 32; i++) {
		__u32 n = s->pythons;
		__u64 code, instr;

		if (!frame)
			return 0;
		if (n >= PYTHON_FRAMES) {
			s->flags |= STACK_PYTHON_CUT;
			return 0;
		}
		code = UNTAGGED(word(frame + p->frame_code));
		instr = word(frame + p->frame_instr);
		if (code && word(code + p->object_type) == p->code) {
			s->python[n].code = code;
			s->python[n].instr = p->code_start ? instr - code - p->code_start : instr;
			s->python[n].check = word(code + p->code_name) >> 3;
			s->pythons = n + 1;
		} else if (!code) {
			s->flags |= STACK_PYTHON_BROKEN;
			return 0;
		} // else an entry frame of the interpreter, which has no code
		frame = word(frame + p->frame_previous);
	}
	s->flags |= STACK_PYTHON_CUT;
	return 0;
}

static __noinline int pythons(struct profile_thread *st, struct profile_target *p)
{
	__u64 thread, frame;

	if (!st || !p)
		return 0;
	if (!p->heads) {
		st->stack.flags |= STACK_NO_PYTHON;
		return 0;
	}
	thread = python(st, p);
	if (thread) {
		walk(&st->stack, p, innermost(p, thread));
		if (thread == p->backward)
			return 0;
	}
	st->stack.turn = st->stack.pythons;
	// A worker of the backward pass. Its caller waits without the lock of the interpreter, so its
	// frames do not change; that it still waits is seen by where it is.
	if (p->backward) {
		frame = innermost(p, p->backward);
		if (frame && frame == p->backward_frame && word(frame + p->frame_instr) == p->backward_instr) {
			st->stack.flags |= STACK_BACKWARD;
			walk(&st->stack, p, frame);
			return 0;
		}
	}
	if (!thread)
		st->stack.flags |= STACK_NO_THREAD;
	return 0;
}

#define CALLER_BYTES ((NATIVE_FRAMES - 1) * sizeof(__u64))

// natives stores the return address of the probed function, which is exact, and what follows it in the
// chain of frame pointers, which is only that where the code keeps them.
static __noinline int natives(struct pt_regs *ctx, struct profile_stack *s)
{
	long got;

	if (!ctx || !s)
		return 0;
#if defined(__TARGET_ARCH_x86)
	s->native[0] = word(ctx->sp);
#else
	s->native[0] = ctx->regs[30];
#endif
	s->natives = 1;
	got = bpf_get_stack(ctx, &s->native[1], CALLER_BYTES, BPF_F_USER_STACK);
	if (got > 0)
		s->natives += got / sizeof(__u64);
	return 0;
}

static __always_inline __u64 mix(__u64 hash, __u64 v)
{
	hash ^= v;
	hash *= 0x9e3779b97f4a7c15ull;
	return hash ^ hash >> 29;
}

// record stores the stack and returns its hash; 0 if it does not fit.
static __noinline __u64 record(struct pt_regs *ctx, struct profile_thread *st, struct profile_target *p)
{
	struct profile_stack *s;
	__u64 hash = 0;

	if (!ctx || !st || !p)
		return 0;
	s = &st->stack;
	s->pythons = s->natives = s->flags = s->turn = 0;
	s->tgid = bpf_get_current_pid_tgid() >> 32;
	pythons(st, p);
	natives(ctx, s);
	hash = mix(hash, s->tgid);
	hash = mix(hash, s->flags);
	for (int i = 0; i < PYTHON_FRAMES && i < s->pythons; i++) {
		hash = mix(hash, s->python[i].code);
		hash = mix(hash, (__u64)s->python[i].check << 32 | s->python[i].instr);
	}
	for (int i = 0; i < NATIVE_FRAMES && i < s->natives; i++)
		hash = mix(hash, s->native[i]);
	if (!hash)
		hash = 1;
	if (!bpf_map_lookup_elem(&stacks, &hash) && bpf_map_update_elem(&stacks, &hash, s, BPF_NOEXIST) && !bpf_map_lookup_elem(&stacks, &hash)) {
		ADD(lost[PROFILE_FULL_STACKS], 1);
		return 0;
	}
	return hash;
}

// due reports whether a call is sampled, and returns how many it stands for: all since the last one. How
// many are left out follows the rate of the thread, so that there is one about every pace; the number is
// random, because work is periodic.
static __always_inline __u32 due(struct turn *t)
{
	__u64 now, every;
	__u32 n = t->since + 1;

	t->since = n;
	if (n < t->next)
		return 0;
	now = bpf_ktime_get_ns();
	every = t->every ? t->every : 1;
	if (t->at && now > t->at) {
		__u64 right = pace * n / (now - t->at); // calls of a pace

		if (right > every * 4)
			right = every * 4;
		every = (every * 3 + right + 3) / 4;
		if (every > 1 << 20)
			every = 1 << 20;
	}
	t->at = now;
	t->every = every;
	t->since = 0;
	t->next = 1 + bpf_get_prandom_u32() % (2 * (__u32)every - 1 ? 2 * (__u32)every - 1 : 1);
	return n;
}

// meet finds out whether the current thread is profiled: the first time, after exec, and when the processes
// that are have changed.
static __always_inline struct profile_thread *meet(struct profile_thread *st)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u64 exec = ((struct task_struct___profile *)task)->self_exec_id;
	__u32 tgid = bpf_get_current_pid_tgid() >> 32;
	struct profile_target *p = bpf_map_lookup_elem(&targets, &tgid);

	if (p && p->stamp != exec + 1) { // another program after exec has its Python elsewhere
		if (p->stamp) {
			bpf_map_delete_elem(&targets, &tgid);
			p = 0;
		} else {
			p->stamp = exec + 1;
		}
	}
	if (!st && !p)
		return 0;
	if (!st)
		st = bpf_task_storage_get(&threads, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!st) {
		ADD(lost[PROFILE_FULL_THREADS], 1);
		return 0;
	}
	if (st->exec != exec)
		st->python = st->searched = st->wait_since = 0;
	st->exec = exec;
	st->epoch = epoch;
	st->tgid = tgid;
	st->chosen = p != 0;
	return p ? st : 0;
}

// of returns the state of the thread if its process is profiled. Most calls find it at once.
static __always_inline struct profile_thread *of(void)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct profile_thread *st = bpf_task_storage_get(&threads, task, 0, 0);

	if (st && st->epoch == epoch && st->exec == ((struct task_struct___profile *)task)->self_exec_id)
		return st->chosen ? st : 0;
	return meet(st);
}

// target returns the process of a thread.
static __always_inline struct profile_target *target(struct profile_thread *st)
{
	return bpf_map_lookup_elem(&targets, &st->tgid);
}

static __noinline int add(struct profile_sample_key *key, struct profile_sample *more)
{
	struct profile_sample *v;

	if (!key || !more)
		return 0;
	v = bpf_map_lookup_elem(&samples, key);
	if (!v) {
		struct profile_sample zero = {};

		bpf_map_update_elem(&samples, key, &zero, BPF_NOEXIST);
		v = bpf_map_lookup_elem(&samples, key);
		if (!v) {
			ADD(lost[PROFILE_FULL_SAMPLES], more->calls);
			return 0;
		}
	}
	ADD(v->samples, more->samples);
	ADD(v->calls, more->calls);
	ADD(v->ns, more->ns);
	ADD(v->threads, more->threads);
	return 0;
}

#if defined(__TARGET_ARCH_x86)
#define R1(ctx) ((ctx)->di)
#define R2(ctx) ((ctx)->si)
#define R3(ctx) ((ctx)->dx)
#define R4(ctx) ((ctx)->cx)
#define R5(ctx) ((ctx)->r8)
#define R6(ctx) ((ctx)->r9)
#else
#define R1(ctx) ((ctx)->regs[0])
#define R2(ctx) ((ctx)->regs[1])
#define R3(ctx) ((ctx)->regs[2])
#define R4(ctx) ((ctx)->regs[3])
#define R5(ctx) ((ctx)->regs[4])
#define R6(ctx) ((ctx)->regs[5])
#endif

// device_threads returns the number of threads of a launch on the device.
static __noinline __u64 device_threads(struct pt_regs *ctx, __u64 cookie)
{
	__u64 block_z = 0;
	__u32 dims[6] = {};

	switch (BODY(cookie)) {
	case BODY_LAUNCH:
#if defined(__TARGET_ARCH_x86)
		block_z = (__u32)word(ctx->sp + 8);
#else
		block_z = (__u32)ctx->regs[6];
#endif
		return (__u64)(__u32)R2(ctx) * (__u32)R3(ctx) * (__u32)R4(ctx) * (__u32)R5(ctx) * (__u32)R6(ctx) * block_z;
	case BODY_LAUNCH_EX:
		if (bpf_probe_read_user(dims, sizeof(dims), (const void *)R1(ctx)))
			return 0;
		return (__u64)dims[0] * dims[1] * dims[2] * dims[3] * dims[4] * dims[5];
	}
	return 0;
}

static __noinline int sampled(struct pt_regs *ctx, struct profile_thread *st, struct profile_count_key *key, __u32 calls)
{
	struct profile_sample_key sample = { .kind = PROFILE_LAUNCH };
	struct profile_sample more = { .samples = 1, .calls = calls };
	struct profile_target *p;

	if (!ctx || !st || !key)
		return 0;
	p = target(st);
	if (!p)
		return 0;
	more.threads = calls * device_threads(ctx, bpf_get_attach_cookie(ctx));
	sample.tgid = key->tgid;
	sample.op = key->op;
	sample.handle = key->handle;
	sample.stack = record(ctx, st, p);
	return add(&sample, &more);
}

SEC("uprobe")
int profile_launch(struct pt_regs *ctx)
{
	struct profile_thread *st = of();
	struct profile_count_key key = {};
	__u64 one = 1, cookie, first, second, *count;
	__u32 calls;

	shared_stack(ctx);
	if (!st)
		return 0;
	cookie = bpf_get_attach_cookie(ctx);
	key.tgid = st->tgid;
	key.op = OP(cookie);
	// Both registers are read before the choice: otherwise the compiler chooses between their addresses, which
	// the verifier refuses.
	first = *(volatile unsigned long *)&R1(ctx);
	second = *(volatile unsigned long *)&R2(ctx);
	if (BODY(cookie) == BODY_LAUNCH)
		key.handle = first;
	else if (BODY(cookie) == BODY_LAUNCH_EX)
		key.handle = second;
	count = bpf_map_lookup_elem(&counts, &key);
	if (!count && bpf_map_update_elem(&counts, &key, &one, BPF_NOEXIST)) {
		count = bpf_map_lookup_elem(&counts, &key); // of another thread meanwhile
		if (!count) {
			ADD(lost[PROFILE_FULL_COUNTS], 1);
			return 0;
		}
	}
	if (count)
		ADD(*count, 1);
	calls = due(&st->turns[0]);
	if (calls)
		sampled(ctx, st, &key, calls);
	return 0;
}

// A wait is sampled where it begins, and counted where it ends.
SEC("uprobe")
int profile_wait(struct pt_regs *ctx)
{
	struct profile_thread *st = of();
	struct profile_target *p;

	shared_stack(ctx);
	if (!st || (st->wait_since && ctx->sp < st->wait_sp)) // inside another one
		return 0;
	st->wait_since = 0;
	st->wait_calls = due(&st->turns[1]);
	if (!st->wait_calls)
		return 0;
	p = target(st);
	if (!p)
		return 0;
	__builtin_memset(&st->wait, 0, sizeof(st->wait));
	st->wait.tgid = st->tgid;
	st->wait.kind = PROFILE_WAIT;
	st->wait.op = OP(bpf_get_attach_cookie(ctx));
	st->wait.stack = record(ctx, st, p);
	st->wait_sp = ctx->sp;
	st->wait_since = bpf_ktime_get_ns();
	return 0;
}

SEC("uprobe")
int profile_waited(struct pt_regs *ctx)
{
	struct profile_thread *st = bpf_task_storage_get(&threads, bpf_get_current_task_btf(), 0, 0);
	struct profile_sample_key key;
	struct profile_sample more = { .samples = 1 };

	shared_stack(ctx);
	if (!st || !st->wait_since || ctx->sp < st->wait_sp || st->wait.op != OP(bpf_get_attach_cookie(ctx)))
		return 0;
	more.calls = st->wait_calls;
	more.ns = (bpf_ktime_get_ns() - st->wait_since) * more.calls;
	key = st->wait;
	st->wait_since = 0;
	add(&key, &more);
	return 0;
}

// PyTorch's backward pass runs in threads of its own. The thread that calls it is remembered, with where
// it is in Python; see pythons.
SEC("uprobe")
int profile_backward(struct pt_regs *ctx)
{
	struct profile_thread *st = of();
	struct profile_target *p;
	__u64 thread;

	shared_stack(ctx);
	p = st ? target(st) : 0;
	if (!p || !p->heads)
		return 0;
	thread = python(st, p);
	if (!thread)
		return 0; // nested: called by a worker
	p->backward_frame = innermost(p, thread);
	p->backward_instr = word(p->backward_frame + p->frame_instr);
	p->backward = thread;
	return 0;
}

// Types that no map uses, kept in BTF for user space.
const enum profile_flag *_flag __attribute__((unused));
const enum profile_kind *_kind __attribute__((unused));
const enum profile_loss *_loss __attribute__((unused));
