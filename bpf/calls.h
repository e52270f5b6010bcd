// What each body does at the entry of a call and at its return.
#pragma once

#include "nccl.h"

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

// free_enter removes an allocation before it is freed: its address may be reused before the
// call returns.
__noinline int free_enter(struct task_state *st, struct frame *f)
{
	if (!st || !f)
		return 0;
	struct alloc_key key = { .tgid = st->tgid, .handle = VARIANT(f->cookie) == MEMORY_HANDLE, .address = f->a };
	struct alloc_val *v;
	struct dev_val *d;

	f->bytes = 0;
	f->b = 0;
	v = bpf_map_lookup_elem(&allocs, &key);
	if (!v)
		return 0;
	d = device_value(st->tgid, v->dev);
	if (d && v->since <= d->reset) {
		bpf_map_delete_elem(&allocs, &key);
		return 0;
	}
	f->bytes = v->bytes;
	f->c = v->since;
	f->b = v->memory;
	f->dev = v->dev;
	bpf_map_delete_elem(&allocs, &key);
	return 0;
}

__noinline int free_leave(struct task_state *st, struct frame *f, bool error)
{
	if (!st || !f)
		return 0;
	struct alloc_key key = { .tgid = st->tgid, .handle = VARIANT(f->cookie) == MEMORY_HANDLE, .address = f->a };
	struct dev_val *d;

	if (!f->b)
		return 0;
	if (error) {
		struct alloc_val back = { .bytes = f->bytes, .since = f->c, .dev = f->dev, .memory = f->b };

		bpf_map_update_elem(&allocs, &key, &back, BPF_ANY);
		return 0;
	}
	if (f->b == MEMORY_MANAGED)
		return 0;
	d = device_value(st->tgid, f->dev);
	if (d) {
		ADD(d->reserved, -f->bytes);
		ADD(d->frees, 1);
	}
	return 0;
}

__noinline int alloc_leave(struct task_state *st, struct frame *f, __u64 now)
{
	if (!st || !f)
		return 0;
	__u32 memory = VARIANT(f->cookie);
	struct alloc_key key = { .tgid = st->tgid, .handle = memory == MEMORY_HANDLE };
	struct alloc_val v = { .since = now, .memory = memory }, *old;
	struct dev_val *d;

	if (memory == MEMORY_HOST || from_user(&key.address, sizeof(key.address), f->a))
		return 0;
	if (memory == MEMORY_PITCH) { // bytes of a row, as the driver chose them, times rows
		__u64 pitch = 0;

		from_user(&pitch, sizeof(pitch), f->b);
		f->bytes = pitch * f->c;
	}
	if (memory == MEMORY_HANDLE) { // CUmemAllocationProp.location: its type, 1 is a device, and number
		__s32 location[2] = {};

		if (from_user(location, sizeof(location), f->b + 8) || location[0] != 1)
			return 0;
		f->dev = location[1];
	}
	v.bytes = f->bytes;
	v.dev = f->dev;
	old = bpf_map_lookup_elem(&allocs, &key);
	if (old && old->memory != MEMORY_MANAGED) { // its free was not seen: with a context, all is freed
		d = device_value(st->tgid, old->dev);
		if (d && old->since > d->reset) {
			ADD(d->reserved, -old->bytes);
			ADD(d->frees, 1);
		}
	}
	if (bpf_map_update_elem(&allocs, &key, &v, BPF_ANY)) {
		lose(FULL_ALLOCS);
		return 0;
	}
	if (memory == MEMORY_MANAGED)
		return 0; // where it is only the driver knows
	d = device_value(st->tgid, f->dev);
	if (d) {
		__u64 reserved = __sync_fetch_and_add(&d->reserved, v.bytes) + v.bytes;

		ADD(d->allocs, 1);
		if (reserved > d->peak)
			d->peak = reserved;
	}
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
	if (VARIANT(f->cookie)) // and it is current
		st->dev = dev + 1;
	return 0;
}

__noinline int sync_enter(struct task_state *st, struct frame *f)
{
	if (!st || !f)
		return 0;
	struct dev_val *d = device_value(st->tgid, f->dev);

	if (d && !__sync_fetch_and_add(&d->waiting, 1))
		d->waiting_since = f->start;
	return 0;
}

__noinline int sync_leave(struct task_state *st, struct frame *f, __u64 now, bool error)
{
	if (!st || !f)
		return 0;
	struct dev_val *d = device_value(st->tgid, f->dev);
	__u32 what = VARIANT(f->cookie);

	st->synced = now;
	if (!d)
		return 0;
	if (__sync_fetch_and_add(&d->waiting, -1ull) == 1)
		d->waiting_since = 0;
	ADD(d->wait, now - f->start);
	if (d->comm)
		first_wait(st->tgid, d, now - f->start);
	if (!error && what != SYNC_EVENT)
		waited(st, d, f->dev, f->stream, what == SYNC_CONTEXT, now);
	return 0;
}

// reset_leave handles the reset of a device's primary context with all its memory. Memory of
// other contexts on the device also counts as freed: allocations do not record their context.
__noinline int reset_leave(struct task_state *st, struct frame *f, __u64 now)
{
	if (!st || !f)
		return 0;
	struct dev_key key = { .tgid = st->tgid, .dev = (__s32)f->b };
	struct dev_val *d = bpf_map_lookup_elem(&devs, &key);

	if (!d)
		return 0;
	d->reset = now;
	__sync_lock_test_and_set(&d->reserved, 0);
	waited(st, d, key.dev, 0, true, now);
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
		d->framework = 1;
	}
	return 0;
}

// once handles calls of which only the entry is probed.
static __noinline int once(struct pt_regs *ctx, struct task_state *st, __u64 cookie)
{
	struct stream_key key = { .tgid = st->tgid };
	__u32 n = st->stacked & 3;
	struct dev_val *d;

	switch (BODY(cookie)) {
	case BODY_CURRENT:
		st->dev = context_device(st->tgid, argument(ctx, POINTER(cookie)));
		break;
	case BODY_PUSH:
		st->stack[n] = st->dev;
		st->stacked++;
		st->dev = context_device(st->tgid, argument(ctx, POINTER(cookie)));
		break;
	case BODY_POP:
		n = st->stacked;
		st->dev = 0;
		if (n) {
			st->stacked = --n;
			st->dev = st->stack[n & 3];
		}
		break;
	case BODY_STREAM_END:
		key.dev = device(st);
		key.stream = argument(ctx, STREAM(cookie));
		d = device_value(st->tgid, key.dev);
		if (d)
			waited(st, d, key.dev, key.stream, false, bpf_ktime_get_ns());
		bpf_map_delete_elem(&streams, &key);
		break;
	case BODY_TORCH:
		torch(st, ctx);
	}
	return 0;
}
