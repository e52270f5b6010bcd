// Memory that a process has from the driver.
#pragma once

#include "nccl.h"

// Kinds of keys in allocs; see alloc_key.
enum { AT_ADDRESS, AT_HANDLE, AT_MAPPING };

static __always_inline struct context_val *context_value(__u32 tgid, __u64 context)
{
	struct handle_key key = { .tgid = tgid, .handle = context };

	return bpf_map_lookup_elem(&contexts, &key);
}

// alive reports whether an allocation still exists: it is gone with its context, or with all memory of its
// device.
static __always_inline bool alive(__u32 tgid, struct dev_val *d, struct alloc_val *v)
{
	struct context_val *c;

	if (v->since <= d->reset)
		return false;
	if (!v->context)
		return true;
	c = context_value(tgid, v->context);
	return c && c->since <= v->since;
}

// reserve adds memory that a device's driver gave. Memory from a pool may have been in the pool before.
__noinline int reserve(struct dev_val *d, __u64 bytes, bool pool)
{
	if (!d)
		return 0;
	__u64 idle, used, reserved;

	ADD(d->allocs, 1);
	if (pool) {
		ADD(d->pool_used, bytes);
#pragma unroll
		for (int i = 0; i < 4; i++) {
			idle = d->pool_idle;
			used = idle < bytes ? idle : bytes;
			if (__sync_val_compare_and_swap(&d->pool_idle, idle, idle - used) == idle) {
				bytes -= used;
				break;
			}
		}
	}
	reserved = __sync_fetch_and_add(&d->reserved, bytes) + bytes;
	if (reserved > d->peak)
		d->peak = reserved;
	return 0;
}

// trimmed takes from the pools of a device what they hold beyond a limit and nobody uses.
__noinline int trimmed(struct dev_val *d, __u64 keep)
{
	if (!d)
		return 0;
	__u64 idle = d->pool_idle, used = d->pool_used;

	if (!idle || used + idle <= keep)
		return 0;
	keep = used < keep ? keep - used : 0; // of what is idle
	if (__sync_val_compare_and_swap(&d->pool_idle, idle, keep) == idle)
		ADD(d->reserved, keep - idle);
	return 0;
}

// unreserve is the opposite of reserve, for an allocation that is alive.
__noinline int unreserve(struct dev_val *d, struct alloc_val *v, __u32 tgid)
{
	if (!d || !v)
		return 0;
	struct context_val *c = v->context ? context_value(tgid, v->context) : 0;

	ADD(d->frees, 1);
	if (v->memory == MEMORY_POOL) { // the pool keeps it; see trimmed
		ADD(d->pool_used, -v->bytes);
		ADD(d->pool_idle, v->bytes);
		return 0;
	}
	ADD(d->reserved, -v->bytes);
	if (c)
		ADD(c->bytes, -v->bytes);
	return 0;
}

static __always_inline struct alloc_key alloc_key(struct task_state *st, struct frame *f)
{
	struct alloc_key key = {
		.tgid = st->tgid, .what = VARIANT(f->cookie) == MEMORY_HANDLE ? AT_HANDLE : AT_ADDRESS, .address = f->a,
	};

	return key;
}

// free_enter marks an allocation before it is freed: its address may be given out again before the call
// returns.
__noinline int free_enter(struct task_state *st, struct frame *f)
{
	if (!st || !f)
		return 0;
	struct alloc_key key = alloc_key(st, f);
	struct alloc_val *v = bpf_map_lookup_elem(&allocs, &key);
	struct dev_val *d;

	f->bytes = f->c = 0;
	if (!v)
		return 0;
	d = device_value(st->tgid, v->dev);
	if (!d || !alive(st->tgid, d, v)) {
		bpf_map_delete_elem(&allocs, &key);
		return 0;
	}
	v->freeing = 1;
	f->bytes = v->bytes;
	f->c = v->since;
	f->dev = v->dev;
	return 0;
}

__noinline int free_leave(struct task_state *st, struct frame *f, bool error)
{
	if (!st || !f || !f->c)
		return 0;
	struct alloc_key key = alloc_key(st, f);
	struct alloc_val *v = bpf_map_lookup_elem(&allocs, &key);

	if (!v || v->since != f->c || !v->freeing) // another one by now
		return 0;
	v->freeing = 0;
	if (error)
		return 0;
	if (key.what == AT_HANDLE && v->maps) { // it exists for as long as it is mapped
		v->released = 1;
		return 0;
	}
	if (v->memory != MEMORY_MANAGED)
		unreserve(device_value(st->tgid, v->dev), v, st->tgid);
	bpf_map_delete_elem(&allocs, &key);
	return 0;
}

__noinline int alloc_leave(struct task_state *st, struct frame *f, __u64 now)
{
	if (!st || !f)
		return 0;
	__u32 memory = VARIANT(f->cookie);
	struct alloc_key key = alloc_key(st, f);
	struct alloc_val v = { .since = now, .memory = memory }, *old;
	struct context_val *c = 0;
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
	} else {
		c = context_value(st->tgid, st->context);
		v.context = c ? st->context : 0;
	}
	v.bytes = f->bytes;
	v.dev = f->dev;
	old = bpf_map_lookup_elem(&allocs, &key);
	if (old && old->memory != MEMORY_MANAGED) { // its free has not returned, or was not seen
		d = device_value(st->tgid, old->dev);
		if (d && alive(st->tgid, d, old))
			unreserve(d, old, st->tgid);
	}
	if (bpf_map_update_elem(&allocs, &key, &v, BPF_ANY)) {
		lose(FULL_ALLOCS);
		return 0;
	}
	if (memory == MEMORY_MANAGED)
		return 0; // where it is only the driver knows
	if (c && memory != MEMORY_POOL)
		ADD(c->bytes, v.bytes);
	return reserve(device_value(st->tgid, f->dev), v.bytes, memory == MEMORY_POOL);
}

// map_leave handles that memory of a handle is mapped at an address.
__noinline int map_leave(struct task_state *st, struct frame *f, __u64 now)
{
	if (!st || !f)
		return 0;
	struct alloc_key handle = { .tgid = st->tgid, .what = AT_HANDLE, .address = f->b };
	struct alloc_key key = { .tgid = st->tgid, .what = AT_MAPPING, .address = f->a };
	struct alloc_val v = { .since = now, .bytes = f->bytes, .handle = f->b }, *h;

	h = bpf_map_lookup_elem(&allocs, &handle);
	if (!h)
		return 0;
	v.dev = h->dev;
	if (bpf_map_update_elem(&allocs, &key, &v, BPF_NOEXIST)) {
		lose(FULL_ALLOCS);
		return 0;
	}
	__sync_fetch_and_add(&h->maps, 1);
	return 0;
}

#define MAPPINGS 32 // that one call may unmap

// unmap_leave handles the end of all mappings in a range.
__noinline int unmap_leave(struct task_state *st, struct frame *f)
{
	if (!st || !f)
		return 0;
	struct alloc_key key = { .tgid = st->tgid, .what = AT_MAPPING, .address = f->a };
	struct alloc_key handle = { .tgid = st->tgid, .what = AT_HANDLE };
	__u64 end = f->a + f->bytes, next;
	struct alloc_val *v, *h;

	for (int i = 0; i < MAPPINGS && key.address < end; i++) {
		v = bpf_map_lookup_elem(&allocs, &key);
		if (!v || !v->bytes)
			return 0;
		handle.address = v->handle;
		next = key.address + v->bytes;
		bpf_map_delete_elem(&allocs, &key);
		key.address = next;
		h = bpf_map_lookup_elem(&allocs, &handle);
		if (h && __sync_fetch_and_add(&h->maps, -1) == 1 && h->released) {
			unreserve(device_value(st->tgid, h->dev), h, st->tgid);
			bpf_map_delete_elem(&allocs, &handle);
		}
	}
	return 0;
}

// pool_leave handles a pool's limit, and its trimming to one. Pools of a device count as one.
__noinline int pool_leave(struct task_state *st, struct frame *f)
{
	if (!st || !f)
		return 0;
	struct dev_val *d = device_value(st->tgid, f->dev);
	__u64 keep = 0;

	if (!d)
		return 0;
	if (VARIANT(f->cookie) == 2)
		return trimmed(d, f->a);
	if ((__u32)f->b == POOL_THRESHOLD && !from_user(&keep, sizeof(keep), f->a))
		d->pool_keep = keep;
	return 0;
}

// reset_leave handles the reset of a device's primary context with all its memory. Memory of
// other contexts on the device also counts as freed.
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
	__sync_lock_test_and_set(&d->pool_used, 0);
	__sync_lock_test_and_set(&d->pool_idle, 0);
	closed(st, d, key.dev, 0, now);
	return 0;
}

// popped makes the context below the current one current.
__noinline int popped(struct task_state *st)
{
	if (!st)
		return 0;
	__u32 n = st->stacked;

	st->context = 0;
	if (n) {
		st->stacked = --n;
		st->context = st->stack[n & 3];
	}
	st->dev = context_device(st->tgid, st->context);
	return 0;
}

// context_end handles the end of a context with all its memory. Pools belong to the device.
__noinline int context_end(struct task_state *st, struct frame *f)
{
	if (!st || !f)
		return 0;
	struct handle_key key = { .tgid = st->tgid, .handle = f->a };
	struct context_val *c = bpf_map_lookup_elem(&contexts, &key);
	struct dev_val *d;

	if (!c)
		return 0;
	d = device_value(st->tgid, c->dev);
	if (d)
		ADD(d->reserved, -c->bytes);
	bpf_map_delete_elem(&contexts, &key);
	if (st->context == f->a)
		popped(st);
	return 0;
}
