// Threads, processes and devices.
#pragma once

#include "arch.h"

// image is the key value for the process of a pid.
__noinline __u32 image(__u32 tgid)
{
	struct proc_key key = { .tgid = tgid };
	__u32 *v = bpf_map_lookup_elem(&images, &key);

	return v ? *v : tgid;
}

// begin handles the first call of a thread that is seen.
__noinline int begin(struct task_state *st, __u32 tgid)
{
	if (!st)
		return 0;
	tgid = image(tgid);
	struct task_struct *task = bpf_get_current_task_btf();
	struct proc_key key = { .tgid = tgid };
	struct proc_val *p = bpf_map_lookup_elem(&procs, &key);

	st->tgid = tgid;
	st->depth = 0;
	if (p)
		return 0;
	struct proc_val new = {
		.first = bpf_ktime_get_ns(),
		.start = task->group_leader->start_boottime,
	};
	bpf_probe_read_kernel(new.comm, sizeof(new.comm), task->group_leader->comm);
	if (bpf_map_update_elem(&procs, &key, &new, BPF_NOEXIST) && !bpf_map_lookup_elem(&procs, &key))
		lose(FULL_PROCS);
	return 0;
}

// thread returns the state of the current thread. Task storage is cheaper and is freed with the
// thread.
static __always_inline struct task_state *thread(bool create)
{
	struct task_state *st;
	__u64 id;

	if (task_storage) {
		st = bpf_task_storage_get(&tasks, bpf_get_current_task_btf(), 0, create ? BPF_LOCAL_STORAGE_GET_F_CREATE : 0);
		if (st) {
			if (create && !st->tgid)
				begin(st, bpf_get_current_pid_tgid() >> 32);
			return st;
		}
	}
	id = bpf_get_current_pid_tgid();
	__u32 tid = id, tgid = id >> 32;

	st = bpf_map_lookup_elem(&threads, &tid);
	if (st && st->tgid != image(tgid)) { // of one that had the number before
		if (!create)
			return 0;
		bpf_map_delete_elem(&threads, &tid);
		st = 0;
	}
	if (!st && create) {
		st = GET(threads, &tid, FULL_TASKS);
		if (st)
			begin(st, tgid);
	}
	return st;
}

// stray reports that the frame of a call is not where it is looked up, because task storage was
// temporarily unavailable when the call began. The frame is dropped.
__noinline int stray(void)
{
	__u32 tid = bpf_get_current_pid_tgid();
	struct task_state *st;

	if (!task_storage)
		return 0;
	st = bpf_map_lookup_elem(&threads, &tid);
	if (!st || !st->depth)
		return 0;
	st->depth = 0;
	return 1;
}

__noinline int only_device(struct task_state *st)
{
	if (!st)
		return 0;
	struct proc_key key = { .tgid = st->tgid };
	struct proc_val *p = bpf_map_lookup_elem(&procs, &key);

	st->epoch = context_epoch;
	st->only = p && p->devices == 1 ? p->only : 0;
	return 0;
}

// device returns the device of a thread's calls: that of its context, or the only one.
static __always_inline __s32 device(struct task_state *st)
{
	if (st->dev)
		return (__s32)st->dev - 1;
	if (st->epoch != context_epoch)
		only_device(st);
	return (__s32)st->only - 1;
}

static __always_inline struct dev_val *device_value(__u32 tgid, __s32 dev)
{
	struct dev_key key = { .tgid = tgid, .dev = dev };

	return GET(devs, &key, FULL_DEVS);
}

static __always_inline __u32 context_device(__u32 tgid, __u64 context)
{
	struct handle_key key = { .tgid = tgid, .handle = context };
	__u32 *dev = bpf_map_lookup_elem(&contexts, &key);

	return dev ? *dev + 1 : 0;
}

// made records that a context is on a device.
__noinline int made(struct task_state *st, __u64 context, __s32 dev)
{
	if (!st)
		return 0;
	struct handle_key key = { .tgid = st->tgid, .handle = context };
	struct proc_key pkey = { .tgid = st->tgid };
	struct proc_val *p = bpf_map_lookup_elem(&procs, &pkey);
	__u32 d = dev;

	if (bpf_map_update_elem(&contexts, &key, &d, BPF_ANY))
		lose(FULL_CONTEXTS);
	if (!p || p->only == d + 1)
		return 0;
	p->devices = p->only ? 2 : 1;
	if (!p->only)
		p->only = d + 1;
	ADD(context_epoch, 1);
	return 0;
}

static __always_inline __u32 *stream_epoch(__u32 tgid, __s32 dev)
{
	return &stream_epochs[(tgid * 31 + dev) & 255];
}

// submitted records that a stream has work that nobody waited for. Most launches are on a stream
// for which the thread already knows that.
__noinline int submitted(struct task_state *st, struct frame *f)
{
	if (!st || !f)
		return 0;
	__u32 slot = (f->stream ^ f->stream >> 4 ^ f->stream >> 12) & (STREAMS - 1);
	__u32 epoch = *stream_epoch(st->tgid, f->dev) + 1; // 0 is never
	struct stream_key key = { .tgid = st->tgid, .dev = f->dev, .stream = f->stream };
	struct dev_val *d;
	__u64 *generation, old;

	if (st->open[slot].epoch == epoch && st->open[slot].stream == f->stream && st->open[slot].dev == f->dev)
		return 0;
	d = device_value(st->tgid, f->dev);
	generation = GET(streams, &key, FULL_STREAMS);
	if (!d || !generation)
		return 0;
#pragma unroll
	for (int i = 0; i < 4; i++) {
		__u64 now = d->open, count = (__u32)now;

		// A stream is open if it has the device's generation, which starts at 1.
		old = *generation;
		if (old == (now >> 32) + 1)
			break;
		if (!count) // before others see that something is open
			d->open_since = f->start;
		if (__sync_val_compare_and_swap(&d->open, now, now + 1) != now)
			continue;
		__sync_lock_test_and_set(generation, (now >> 32) + 1);
		break;
	}
	st->open[slot].stream = f->stream;
	st->open[slot].dev = f->dev;
	st->open[slot].epoch = epoch;
	return 0;
}

// waited closes one stream of a device, or all.
static __always_inline void waited(struct task_state *st, struct dev_val *d, __s32 dev, __u64 stream, bool all, __u64 at)
{
	struct stream_key key = { .tgid = st->tgid, .dev = dev, .stream = stream };
	__u64 *generation = 0;

	if (!all) {
		generation = bpf_map_lookup_elem(&streams, &key);
		if (!generation)
			return;
	}
#pragma unroll
	for (int i = 0; i < 4; i++) {
		__u64 now = d->open, count = (__u32)now, since = d->open_since, next;

		if (!count || (generation && *generation != (now >> 32) + 1))
			return;
		next = all || count == 1 ? ((now >> 32) + 1) << 32 : now - 1;
		if (__sync_val_compare_and_swap(&d->open, now, next) != now)
			continue;
		if (generation)
			__sync_lock_test_and_set(generation, 0);
		if (!(__u32)next && at > since)
			ADD(d->busy, at - since);
		ADD(*stream_epoch(st->tgid, dev), 1);
		return;
	}
}
