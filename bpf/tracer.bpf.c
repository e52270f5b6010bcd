// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)

// The programs: one body at the entry of a function and one at its return, for each way in which
// the kernel can call them; and those that see threads leave and return to a CPU, execute another
// program, and exit.
#include "calls.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

extern __u64 *bpf_session_cookie(void) __ksym __weak;
extern bool bpf_session_is_return(void) __ksym __weak;

static __always_inline void arguments(struct pt_regs *ctx, struct task_state *st, struct frame *f)
{
	__u64 c = f->cookie;
	struct {
		__u32 dims[7], pad;
		__u64 stream;
	} config = {};

	switch (BODY(c)) {
	case BODY_LAUNCH:
		launch(ctx, f);
		return;
	case BODY_LAUNCH_EX:
		from_user(&config, sizeof(config), R1(ctx));
		__builtin_memcpy(f->dims, config.dims, sizeof(f->dims));
		f->stream = config.stream;
		f->a = R2(ctx);
		return;
	}
	f->stream = STREAM(c) ? argument(ctx, STREAM(c)) : 0;
	switch (BODY(c)) {
	case BODY_COPY:
	case BODY_SET:
		f->bytes = argument(ctx, BYTES(c)) << SHIFT(c);
		if (TIMES(c))
			f->bytes *= argument(ctx, TIMES(c));
		copy_enter(st, f);
		return;
	case BODY_COPY_STRUCT:
		f->a = argument(ctx, POINTER(c));
		copy_struct(f);
		copy_enter(st, f);
		return;
	case BODY_COPY_BATCH:
		f->a = argument(ctx, POINTER(c));
		f->b = argument(ctx, TIMES(c));
		copy_batch(f);
		copy_enter(st, f);
		return;
	case BODY_ALLOC:
		f->bytes = BYTES(c) ? argument(ctx, BYTES(c)) : 0;
		f->c = TIMES(c) ? argument(ctx, TIMES(c)) : 0;
		f->a = argument(ctx, POINTER(c));
		f->b = argument(ctx, AUX(c));
		return;
	case BODY_FREE:
		f->a = argument(ctx, POINTER(c));
		free_enter(st, f);
		return;
	case BODY_SYNC:
		f->a = POINTER(c) ? argument(ctx, POINTER(c)) : 0;
		sync_enter(st, f);
		return;
	case BODY_MAP:
	case BODY_UNMAP:
		f->bytes = argument(ctx, BYTES(c));
		break;
	case BODY_COLL:
		collective(st, f, ctx);
		return;
	case BODY_INIT:
	case BODY_SCALABLE:
	case BODY_INIT_ALL:
	case BODY_SPLIT:
		init_enter(st, f, ctx);
		return;
	case BODY_COMM_END:
		f->a = argument(ctx, AUX(c));
		return;
	case BODY_CONTEXT:
		f->dev = (__s32)argument(ctx, AUX(c));
	}
	f->a = argument(ctx, POINTER(c));
	f->b = argument(ctx, AUX(c));
}

// enter returns the number of the call's frame, counted from 1, or 0 if its return is of no
// interest.
static __noinline int enter(struct pt_regs *ctx)
{
	__u64 cookie = bpf_get_attach_cookie(ctx);
	struct task_state *st;
	struct frame *f;
	__u32 n;

	if (asleep)
		return 0;
	st = thread(true);
	if (!st)
		return 0;
	if (cookie & ENTRY) {
		once(ctx, st, cookie);
		return 0;
	}
	n = st->depth;
	// A frame below the stack pointer belongs to a call that no longer exists: it was left by
	// longjmp or an exception, or its probe was removed meanwhile.
#pragma unroll
	for (int i = 0; i < DEPTH; i++) {
		if (n && n <= DEPTH && st->frames[INDEX(n - 1)].sp < ctx->sp) {
			n--;
			abandoned(st, &st->frames[INDEX(n)]);
			lose(LOSS_NO_RETURN);
		}
	}
	st->depth = n + 1;
	if (n >= DEPTH) {
		lose(LOSS_NESTED);
		return n + 1;
	}
	f = &st->frames[INDEX(n)];
	f->cookie = cookie;
	f->sp = ctx->sp;
	f->run_queue = st->run_queue;
	f->blocked = st->blocked;
	f->bytes = 0;
	f->kind = KIND(cookie);
	f->rank = f->size = 0;
	f->inner = f->waits = f->idle = 0;
	f->waited = 0;
	f->dev = device(st);
	f->start = bpf_ktime_get_ns();
	if (!(++st->calls % WINDOW)) {
		st->costly = f->start - st->window < (__u64)pace * WINDOW;
		st->window = f->start;
	}
	if (BODY(cookie) != BODY_SYNC)
		*worked_at(st->tgid) = f->start;
	arguments(ctx, st, f);
	if (st->costly && st->calls % MEASURED && spared(st, f)) {
		st->depth = n;
		return 0;
	}
	return n + 1;
}

// leave handles the return from the call of a frame; 0 means the newest with its cookie.
static __noinline int leave(struct pt_regs *ctx, __u32 frame)
{
	__u64 now = bpf_ktime_get_ns(), cookie = bpf_get_attach_cookie(ctx), ns;
	struct task_state *st = thread(false);
	struct frame *f;
	__s32 code;
	__u32 n;
	bool error;

	if (now > until)
		asleep = 1;
	if (!st || !st->depth || st->depth < frame) {
		if (stray() || frame) // else it began before we looked
			lose(LOSS_NO_RETURN);
		return 0;
	}
	if (frame) {
		n = frame - 1;
		if (n < DEPTH && st->frames[INDEX(n)].cookie != cookie) {
			stray();
			lose(LOSS_NO_RETURN);
			return 0;
		}
	} else {
		n = st->depth - 1;
#pragma unroll
		for (int i = 0; i < DEPTH - 1; i++)
			if (n && n < DEPTH && st->frames[INDEX(n)].cookie != cookie)
				n--;
		if (n < DEPTH && st->frames[INDEX(n)].cookie != cookie) {
			if (stray())
				lose(LOSS_NO_RETURN);
			return 0;
		}
	}
#pragma unroll
	for (__u32 i = 1; i < DEPTH; i++) { // calls inside of it that were left otherwise
		if (i > n && i < st->depth) {
			abandoned(st, &st->frames[i]);
			lose(LOSS_NO_RETURN);
		}
	}
	st->depth = n;
	if (n >= DEPTH)
		return 0;
	f = &st->frames[INDEX(n)];
	ns = now - f->start;
	code = RESULT(ctx);
	error = code && !((f->cookie & PENDING) && code == 7);
	switch (BODY(f->cookie)) {
	case BODY_LAUNCH:
	case BODY_LAUNCH_EX:
		launched(st, f, ns);
		work(st, f);
		break;
	case BODY_WORK:
		work(st, f);
		break;
	case BODY_CAPTURE:
		if (VARIANT(f->cookie) == 1 && !error)
			st->capturing = 1;
		else if (VARIANT(f->cookie) == 2 && code != CAPTURE_WRONG_THREAD) // a failed capture has ended, too
			st->capturing = 0;
		break;
	case BODY_COPY:
	case BODY_COPY_STRUCT:
	case BODY_COPY_BATCH:
		copy_leave(st, f, now, error);
		break;
	case BODY_ALLOC:
		if (!error)
			alloc_leave(st, f, now);
		break;
	case BODY_FREE:
		free_leave(st, f, error);
		break;
	case BODY_SYNC:
		sync_leave(st, f, now, error);
		break;
	case BODY_NAME:
	case BODY_NAME_OF:
	case BODY_ALIAS:
		if (!error)
			name_leave(st, f);
		break;
	case BODY_UUID:
		if (!error)
			uuid_leave(st, f);
		break;
	case BODY_CONTEXT:
		if (!error)
			context_leave(st, f);
		break;
	case BODY_RESET:
		if (!error)
			reset_leave(st, f, now);
		break;
	case BODY_MAP:
		if (!error)
			map_leave(st, f, now);
		break;
	case BODY_UNMAP:
		if (!error)
			unmap_leave(st, f);
		break;
	case BODY_POOL:
		if (!error)
			pool_leave(st, f);
		break;
	case BODY_CONTEXT_END:
		if (!error)
			context_end(st, f);
		break;
	case BODY_COLL:
		if (f->inner)
			return 0;
		collected(st, f, ns, error);
		break;
	case BODY_INIT:
	case BODY_SCALABLE:
	case BODY_INIT_ALL:
	case BODY_SPLIT:
		if (!error)
			init_leave(st, f);
		break;
	case BODY_COMM_END:
		if (!error)
			comm_end(st, f, ns);
		break;
	case BODY_COMM_ASK:
		if (!error)
			comm_ask(st, f);
	}
	if (!(f->cookie & QUIET))
		observe(st, f, ns, code, error);
	return 0;
}

// shared_stack keeps a program on the stack of its task. Since Linux 6.13 a program of its type that
// uses much stack is given one per CPU instead, but a uprobe may be preempted: the next task on that CPU
// then runs on the same stack, and the kernel follows a pointer that the other task left there. A program
// that may make a tail call gets none. This one is never made: no task calls with a stack pointer of 0, and
// the array is empty. See docs/adr/0016.
#define shared_stack(ctx)                                \
	do {                                             \
		if (!(ctx)->sp)                          \
			bpf_tail_call(ctx, &nothing, 0); \
	} while (0)

// The loader sets how these two are attached: as perf events, or as a multi link.
SEC("uprobe")
int call_enter(struct pt_regs *ctx)
{
	shared_stack(ctx);
	enter(ctx);
	return 0;
}

SEC("uprobe")
int call_leave(struct pt_regs *ctx)
{
	shared_stack(ctx);
	return leave(ctx, 0);
}

SEC("uprobe.session")
int call_session(struct pt_regs *ctx)
{
	__u64 *frame = bpf_session_cookie();

	shared_stack(ctx);
	if (bpf_session_is_return())
		return leave(ctx, *frame);
	*frame = enter(ctx);
	return !*frame; // 1: not called at the return
}

enum { ON_CPU, PREEMPTED, SLEEPING };

static __always_inline struct task_state *launcher(struct task_struct *task)
{
	struct task_state *st = bpf_task_storage_get(&tasks, task, 0, 0);

	return st && st->launched ? st : 0;
}

// account adds the time since a thread left its CPU or was woken.
static __always_inline void account(struct task_state *st, __u64 now)
{
	struct proc_key key = { .tgid = st->tgid };
	struct proc_val *p = bpf_map_lookup_elem(&procs, &key);
	__u64 ns = now - st->off_since;

	st->off_since = now;
	if (st->off == SLEEPING) {
		st->blocked += ns;
		if (p)
			ADD(p->blocked, ns);
		if (p && st->depth)
			ADD(p->blocked_in, ns);
	} else {
		st->run_queue += ns;
		if (p)
			ADD(p->run_queue, ns);
		if (p && st->depth)
			ADD(p->run_queue_in, ns);
	}
}

// sched_switch(preempt, prev, next, state of prev); the last argument exists since 5.18.
SEC("tp_btf/sched_switch")
int on_switch(__u64 *ctx)
{
	struct task_state *st;
	struct proc_val *p;
	__u64 now;

	if (asleep)
		return 0;
	st = launcher((struct task_struct *)ctx[1]);
	if (st) {
		struct proc_key key = { .tgid = st->tgid };

		st->off = ctx[0] || !ctx[3] ? PREEMPTED : SLEEPING;
		st->off_since = bpf_ktime_get_ns();
		p = bpf_map_lookup_elem(&procs, &key);
		if (p)
			ADD(p->switches, 1);
	}
	st = launcher((struct task_struct *)ctx[2]);
	if (st && st->off) {
		now = bpf_ktime_get_ns();
		account(st, now);
		st->off = ON_CPU;
	}
	return 0;
}

SEC("tp_btf/sched_wakeup")
int on_wakeup(__u64 *ctx)
{
	struct task_state *st = launcher((struct task_struct *)ctx[0]);

	if (st && st->off == SLEEPING) {
		account(st, bpf_ktime_get_ns());
		st->off = PREEMPTED; // it is ready, and waits for a CPU
	}
	return 0;
}

// A thread that exits in a call never returns from it; with its last thread, a process exits.
SEC("tp_btf/sched_process_exit")
int on_exit(__u64 *ctx)
{
	struct task_struct *task = (struct task_struct *)ctx[0];
	struct proc_key key = { .tgid = image(task->tgid) }, pid = { .tgid = task->tgid };
	struct proc_val *p = bpf_map_lookup_elem(&procs, &key);
	struct task_state *st;
	struct event *e;
	__u32 n;

	if (!p) {
		if (key.tgid != pid.tgid && !task->signal->live.counter) // its program since exec does not use CUDA
			bpf_map_delete_elem(&images, &pid);
		return 0;
	}
	st = task_storage ? bpf_task_storage_get(&tasks, task, 0, 0) : 0;
	n = st ? st->depth : 0;
#pragma unroll
	for (int i = 0; i < DEPTH; i++) {
		if (!st || i >= (int)n)
			break;
		lose(LOSS_NO_RETURN);
		abandoned(st, &st->frames[i]);
	}
	if (st)
		st->depth = 0;
	if (task->signal->live.counter)
		return 0;
	p->ended = bpf_ktime_get_ns();
	bpf_map_delete_elem(&images, &pid);
	e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);
	if (!e) {
		lose(LOSS_RING);
		return 0;
	}
	__builtin_memset(e, 0, sizeof(*e));
	e->start = p->ended;
	e->tgid = e->tid = key.tgid;
	e->dev = UNKNOWN;
	e->type = TYPE_EXIT;
	bpf_ringbuf_submit(e, BPF_RB_NO_WAKEUP);
	return 0;
}

// A process that executes another program loses its memory, contexts and communicators. It
// counts as another process from now on.
SEC("tp_btf/sched_process_exec")
int on_exec(__u64 *ctx)
{
	struct task_struct *task = (struct task_struct *)ctx[0];
	__u32 tid = task->pid, tgid = task->tgid;
	struct proc_key key = { .tgid = image(tgid) };
	struct proc_val *p = bpf_map_lookup_elem(&procs, &key);

	if (!p)
		return 0;
	if (!another(tgid))
		return 0;
	p->ended = bpf_ktime_get_ns();
	if (task_storage)
		bpf_task_storage_delete(&tasks, task);
	bpf_map_delete_elem(&threads, &tid);
	return 0;
}

// Types that no map uses, kept in BTF for user space.
const struct event *_event __attribute__((unused));
const enum body *_body __attribute__((unused));
const enum loss *_loss __attribute__((unused));
const enum type *_type __attribute__((unused));
