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

// another makes keys call the process of a pid differently from now on, and returns how.
__noinline __u32 another(__u32 tgid)
{
	struct proc_key key = { .tgid = tgid };
	__u32 next = __sync_fetch_and_add(&image_count, 1) & 511;

	next = tgid | (next + 1) << PID_BITS;
	if (bpf_map_update_elem(&images, &key, &next, BPF_ANY)) {
		lose(FULL_PROCS);
		return 0;
	}
	return next;
}

// begin handles the first call of a thread that is seen. Without a place for its process the thread stays
// as if it were unseen, so that each of its calls counts as lost.
__noinline int begin(struct task_state *st, __u32 pid)
{
	if (!st)
		return 0;
	struct task_struct *task = bpf_get_current_task_btf();
	struct proc_key key = { .tgid = image(pid) };
	struct proc_val *p = bpf_map_lookup_elem(&procs, &key);
	__u64 start = task->group_leader->start_boottime;

	st->depth = 0;
	if (p && p->start != start) { // it ended, and its pid was given out again before it was forgotten
		if (!p->ended)
			p->ended = bpf_ktime_get_ns();
		key.tgid = another(pid);
		if (!key.tgid)
			return 0;
		p = 0;
	}
	if (!p) {
		struct proc_val new = { .first = bpf_ktime_get_ns(), .start = start };

		bpf_probe_read_kernel(new.comm, sizeof(new.comm), task->group_leader->comm);
		if (bpf_map_update_elem(&procs, &key, &new, BPF_NOEXIST) && !bpf_map_lookup_elem(&procs, &key)) {
			lose(FULL_PROCS);
			return 0;
		}
	}
	st->tgid = key.tgid;
	return 1;
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
			if (create && !st->tgid && !begin(st, bpf_get_current_pid_tgid() >> 32))
				return 0;
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
		if (st && !begin(st, tgid))
			return 0;
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
	struct context_val *c = bpf_map_lookup_elem(&contexts, &key);

	return c ? c->dev + 1 : 0;
}

// made records that a context is on a device.
__noinline int made(struct task_state *st, __u64 context, __s32 dev)
{
	if (!st)
		return 0;
	struct handle_key key = { .tgid = st->tgid, .handle = context };
	struct proc_key pkey = { .tgid = st->tgid };
	struct proc_val *p = bpf_map_lookup_elem(&procs, &pkey);
	struct context_val new = { .since = bpf_ktime_get_ns(), .dev = dev }, *c;
	__u32 d = dev;

	c = bpf_map_lookup_elem(&contexts, &key); // a primary context is retained more than once
	if ((!c || c->dev != d) && bpf_map_update_elem(&contexts, &key, &new, BPF_ANY))
		lose(FULL_CONTEXTS);
	if (!p || p->only == d + 1)
		return 0;
	p->devices = p->only ? 2 : 1;
	if (!p->only)
		p->only = d + 1;
	ADD(context_epoch, 1);
	return 0;
}
