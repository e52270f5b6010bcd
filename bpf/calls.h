// What each body does at the entry of a call and at its return.
#pragma once

#include "memory.h"

// copy_struct reads a CUDA_MEMCPY2D or CUDA_MEMCPY3D.
__noinline int copy_struct(struct frame *f)
{
	if (!f)
		return 0;
	__u64 at = f->a, three = VARIANT(f->cookie) == 3;
	__u64 extent[3] = { 0, 0, 1 };
	__u32 from = 0, to = 0;

	from_user(&from, sizeof(from), at + (three ? 32 : 16));
	from_user(&to, sizeof(to), at + (three ? 120 : 72));
	if (three)
		from_user(extent, 24, at + 176);
	else
		from_user(extent, 16, at + 112);
	f->bytes = extent[0] * extent[1] * extent[2];
	if (f->kind)
		return 0;
	// CUmemorytype: 1 is the host, 2 the device, 3 an array on the device, 4 is unified.
	if (from == 4 || to == 4 || !from || !to)
		f->kind = KIND_DEFAULT;
	else if (from == 1)
		f->kind = to == 1 ? KIND_HTOH : KIND_HTOD;
	else
		f->kind = to == 1 ? KIND_DTOH : KIND_DTOD;
	return 0;
}

#define BATCH 128 // copies of one call whose sizes are added

__noinline int copy_batch(struct frame *f)
{
	if (!f)
		return 0;
	__u64 sum = 0, size = 0, at = f->a, n = f->b;

	for (__u32 i = 0; i < BATCH && i < n; i++) {
		if (from_user(&size, sizeof(size), at + i * 8))
			break;
		sum += size;
	}
	if (n > BATCH)
		lose(LOSS_FAULT);
	f->bytes = sum;
	return 0;
}

// name_leave stores the name of a kernel. The string is read after the driver has read it:
// before that, its page may not be present.
__noinline int name_leave(struct task_state *st, struct frame *f)
{
	if (!st || !f)
		return 0;
	struct handle_key key = { .tgid = st->tgid };
	__u32 body = BODY(f->cookie);
	struct name *n, *known = 0;
	__u64 out = 0;

	if (from_user(&out, sizeof(out), f->a) || !out)
		return 0;
	if (body == BODY_ALIAS) {
		key.handle = f->b;
		known = bpf_map_lookup_elem(&names, &key);
		if (!known)
			return 0;
	}
	key.handle = body == BODY_NAME_OF ? f->b : out;
	// In place: it is too large for the stack, and a buffer per CPU would be another task's after
	// a preemption.
	n = GET(names, &key, FULL_NAMES);
	if (!n)
		return 0;
	if (known) {
		bpf_probe_read_kernel(n, sizeof(*n), known);
	} else if (bpf_probe_read_user_str((char *)n->text, sizeof(n->text), (const void *)(body == BODY_NAME_OF ? out : f->b)) < 0) {
		lose(LOSS_FAULT);
		bpf_map_delete_elem(&names, &key);
	}
	return 0;
}

__noinline int uuid_leave(struct task_state *st, struct frame *f)
{
	if (!st || !f)
		return 0;
	struct dev_key key = { .tgid = st->tgid, .dev = (__s32)f->b };
	struct uuid *u = GET(uuids, &key, FULL_UUIDS);

	if (!u)
		return 0;
	if (VARIANT(f->cookie) == 2) {
		if (!from_user(u->second, sizeof(u->second), f->a))
			u->has |= 2;
	} else if (!from_user(u->first, sizeof(u->first), f->a))
		u->has |= 1;
	return 0;
}

__noinline int context_leave(struct task_state *st, struct frame *f)
{
	if (!st || !f)
		return 0;
	__u64 context = 0;
	__s32 dev = f->b;

	if (from_user(&context, sizeof(context), f->a) || dev < 0 || dev > 255)
		return 0;
	made(st, context, dev);
	if (VARIANT(f->cookie)) { // and it is current
		st->dev = dev + 1;
		st->context = context;
	}
	return 0;
}

#define IDLE 20000 // ns that a synchronization with nothing to wait for takes at most

// sync_enter tells a synchronization that cannot have anything to wait for: this thread has waited for the same
// before, and its process has made no call since that may have given a device something to do.
static __always_inline void sync_enter(struct task_state *st, struct frame *f)
{
	f->idle = st->sync.cookie == f->cookie && st->sync.what == f->stream + f->a && st->sync.context == st->context &&
		  *worked_at(st->tgid) < st->sync.at;
	if (!f->idle)
		wait_begins(st, f);
}

__noinline int sync_leave(struct task_state *st, struct frame *f, __u64 now, bool error)
{
	if (!st || !f)
		return 0;
	struct place p = { .stream = f->stream, .dev = f->dev, .at = now };
	struct handle_key key = { .tgid = st->tgid, .handle = f->a };
	struct mark_val *mark;
	struct dev_val *d;

	st->synced = now;
	if (f->idle && !error && now - f->start < IDLE)
		return 0;
	st->sync.cookie = 0; // it failed, or did wait: for something that was not seen
	d = device_value(st->tgid, f->dev);
	if (!d)
		return 0;
	if (f->waits)
		wait_over(d, f);
	ADD(d->wait, now - f->start);
	if (d->comm)
		first_wait(st->tgid, d, now - f->start);
	if (error)
		return 0;
	st->sync.cookie = f->cookie;
	st->sync.what = f->stream + f->a;
	st->sync.context = st->context;
	st->sync.at = f->start;
	trimmed(d, d->pool_keep);
	switch (VARIANT(f->cookie)) {
	case SYNC_CONTEXT:
		closed(st, d, f->dev, 0, now);
		break;
	case SYNC_STREAM:
		waited(st, d, &p);
		break;
	case SYNC_EVENT:
		mark = bpf_map_lookup_elem(&marks, &key);
		if (!mark)
			break;
		p.stream = mark->stream;
		p.dev = mark->dev;
		p.marks = mark->marks;
		reached(st, &p);
	}
	return 0;
}

#define COPY_START 20000 // ns until the first byte of a copy, at most
#define COPY_PACE 1000000 // ns that a MiB takes at most, with a page fault for each page: 1 GB/s
#define COPY_FAST 15000  // ns that a MiB takes at least, 70 GB/s: a faster call did not wait for its bytes

static __always_inline bool with_host(struct frame *f)
{
	return f->kind == KIND_HTOD || f->kind == KIND_DTOH || f->kind == KIND_DEFAULT;
}

// copy_enter handles a copy from or to the host behind work that nobody has waited for. It waits for that
// work if it is synchronous or the host's memory is not pinned.
__noinline int copy_enter(struct task_state *st, struct frame *f)
{
	if (!st || !f)
		return 0;
	struct dev_key key = { .tgid = st->tgid, .dev = f->dev };
	struct stream_key at = { .tgid = st->tgid, .dev = f->dev, .stream = f->stream };
	struct dev_val *d = bpf_map_lookup_elem(&devs, &key);
	struct stream_val *sv;

	if (!d || !(__u32)d->open || !with_host(f) || st->capturing)
		return 0;
	if (f->stream) { // the default stream waits for others
		sv = bpf_map_lookup_elem(&streams, &at);
		if (!sv || sv->generation != (d->open >> 32) + 1)
			return 0;
	}
	return wait_begins(st, f);
}

// copy_leave tells copying from waiting for earlier work: what a call took longer than its bytes take.
__noinline int copy_leave(struct task_state *st, struct frame *f, __u64 now, bool error)
{
	if (!st || !f)
		return 0;
	struct place p = { .stream = f->stream, .dev = f->dev, .at = now };
	__u64 ns = now - f->start, mib = f->bytes >> 20, pace, each;
	__u32 to_host = f->kind == KIND_DTOH, behind = f->waits;
	struct dev_val *d;

	if (!with_host(f) || st->capturing)
		return 0;
	d = device_value(st->tgid, f->dev);
	if (f->waits)
		wait_over(d, f);
	if (!d || error)
		return 0;
	pace = d->pace[to_host];
	if (mib) {
		each = ns / mib;
		// Behind work a copy takes this long at most; without, it does.
		if (each >= COPY_FAST && (!behind || (pace ?: COPY_PACE) > each)) {
			pace = behind || !pace ? each : (7 * pace + each) / 8;
			d->pace[to_host] = pace;
		}
	}
	if (!behind)
		return 0;
	each = COPY_START + ((f->bytes >> 10) * (pace ?: COPY_PACE) >> 10);
	if (ns > each) {
		f->waited = ns - each;
		ADD(d->wait, f->waited);
		st->synced = now;
		if (d->comm)
			first_wait(st->tgid, d, f->waited);
	}
	if (!STREAM(f->cookie)) { // it is synchronous
		st->synced = now;
		waited(st, d, &p);
	}
	return 0;
}

// first handles the first launch of a thread.
__noinline int first(struct task_state *st)
{
	if (!st)
		return 0;
	struct proc_key key = { .tgid = st->tgid };
	struct proc_val *p = bpf_map_lookup_elem(&procs, &key);

	st->launched = 1;
	if (p)
		ADD(p->threads, 1);
	return 0;
}

__noinline int bubble(struct task_state *st, struct frame *f)
{
	if (!st || !f)
		return 0;
	struct dev_val *d = device_value(st->tgid, f->dev);

	if (d && f->start > st->synced)
		ADD(d->bubble, f->start - st->synced);
	st->synced = 0;
	return 0;
}

static __always_inline void work(struct task_state *st, struct frame *f)
{
	if (!st->launched)
		first(st);
	if (st->capturing) // it is noted down, not run
		return;
	if (st->synced)
		bubble(st, f);
	submitted(st, f);
}

__noinline int no_place(struct task_state *st, __u64 ns)
{
	if (!st)
		return 0;
	struct proc_key key = { .tgid = st->tgid };
	struct proc_val *p = bpf_map_lookup_elem(&procs, &key);

	if (p) {
		ADD(p->other_count, 1);
		ADD(p->other_ns, ns);
	}
	return 0;
}

static __always_inline void launched(struct task_state *st, struct frame *f, __u64 ns)
{
	struct kernel_key key = { .tgid = st->tgid, .dev = f->dev, .handle = f->a };
	struct kernel_val *k = GET(kernels, &key, FULL_KERNELS);

	if (!k) {
		no_place(st, ns);
		return;
	}
	ADD(k->count, 1);
	ADD(k->ns, ns);
	__builtin_memcpy(k->dims, f->dims, sizeof(k->dims));
}

#define WINDOW 1024 // calls over which the cost of tracing a thread is judged
#define MEASURED 32 // of how many calls of a thread that is spared one is measured

// spared reports whether the return of a call need not be probed, which is half of the cost: the thread calls
// so often that tracing slows it down. Counts stay exact, but the call is taken to last as long as the last
// one that was measured. Only calls that do little more than to submit work are spared, and synchronizations with
// nothing to wait for, but none while somebody records them.
__noinline int spared(struct task_state *st, struct frame *f)
{
	if (!st || !f)
		return 0;
	struct op_key key = { .tgid = st->tgid, .op = OP(f->cookie), .kind = f->kind, .dev = f->dev };
	__u32 body = BODY(f->cookie);
	struct op_val *v;
	__u64 ns;

	if (body != BODY_LAUNCH && body != BODY_LAUNCH_EX && body != BODY_SET && !f->idle)
		return 0;
	v = bpf_map_lookup_elem(&ops, &key);
	if (!v || v->record || v->epoch != watch_epoch)
		return 0;
	ns = *(volatile __u64 *)&v->last; // other threads write it
	if (!ns)
		return 0;
	ADD(v->ns, ns);
	if (f->bytes)
		ADD(v->bytes, f->bytes);
	ADD(v->buckets[time_bucket(ns) & (TIME_BUCKETS - 1)], 1);
	if (f->idle) {
		st->synced = f->start;
	} else if (body != BODY_SET) {
		launched(st, f, ns);
		work(st, f);
	}
	lose(LOSS_SPARED);
	return 1;
}

// torch is c10::reportMemoryUsageToProfiler(address, bytes, allocated, reserved, device).
static __noinline int torch(struct task_state *st, struct pt_regs *ctx)
{
	__u64 device = R5(ctx); // two bytes: the type, 1 is CUDA, and the number
	struct dev_val *d;

	if ((device & 255) != 1 || (__s32)(device >> 8 & 255) > 127)
		return 0;
	d = device_value(st->tgid, device >> 8 & 255);
	if (d) {
		d->allocated = R3(ctx);
		d->pool = R4(ctx);
		d->framework = bpf_ktime_get_ns();
	}
	ADD(torch_reports, 1);
	return 0;
}

// once handles calls of which only the entry is probed.
static __noinline int once(struct pt_regs *ctx, struct task_state *st, __u64 cookie)
{
	struct stream_key key = { .tgid = st->tgid };
	struct place p = { .at = bpf_ktime_get_ns() };
	__u32 n = st->stacked & 3;

	switch (BODY(cookie)) {
	case BODY_CURRENT:
		st->context = argument(ctx, POINTER(cookie));
		st->dev = context_device(st->tgid, st->context);
		break;
	case BODY_PUSH:
		st->stack[n] = st->context;
		st->stacked++;
		st->context = argument(ctx, POINTER(cookie));
		st->dev = context_device(st->tgid, st->context);
		break;
	case BODY_POP:
		popped(st);
		break;
	case BODY_STREAM_END:
		key.dev = p.dev = device(st);
		key.stream = p.stream = argument(ctx, STREAM(cookie));
		waited(st, device_value(st->tgid, p.dev), &p);
		bpf_map_delete_elem(&streams, &key);
		break;
	case BODY_MARK:
		*worked_at(st->tgid) = p.at;
		if (!st->capturing)
			marked(st, argument(ctx, STREAM(cookie)), argument(ctx, POINTER(cookie)));
		break;
	case BODY_AFTER:
		*worked_at(st->tgid) = p.at;
		if (!st->capturing)
			after(st, argument(ctx, STREAM(cookie)), argument(ctx, POINTER(cookie)));
		break;
	case BODY_TORCH:
		torch(st, ctx);
	}
	return 0;
}
