// Where things are counted. Plain hashes with atomic adds: per-CPU ones would take a copy
// for each of hundreds of CPUs. User space sets how many fit.
#pragma once

#include "tracer.h"

#define DEPTH 4 // calls inside calls that are followed

struct frame {
	__u64 cookie, start, sp;
	__u64 a, b, c; // as the body likes
	__u64 stream, bytes;
	__u64 run_queue, blocked;
	__u32 dims[7];
	__u32 kind;
	__s32 dev, rank, size;
	__u32 gen;
	__u32 inner, pad; // a collective that another one makes: it is the same
};

#define STREAMS 4 // that a thread knows to be open

// What is known of a thread. Devices are plus 1, so that 0 is none.
struct task_state {
	__u32 tgid, depth;
	__u32 dev, only, epoch; // its context's; the process's one, as of epoch
	__u32 launched, capturing;
	__u32 stacked, stack[4]; // devices of the contexts below
	__u32 off;		 // why it is not on a CPU
	__u64 off_since, run_queue, blocked;
	__u64 synced; // when its last synchronisation ended, 0 once it has launched
	struct {
		__u64 stream;
		__u32 epoch;
		__s32 dev;
	} open[STREAMS];
	struct frame frames[DEPTH];
};

#define HASH(name, k, v, n)                              \
	struct {                                         \
		__uint(type, BPF_MAP_TYPE_HASH);         \
		__uint(map_flags, BPF_F_NO_PREALLOC);    \
		__uint(max_entries, n);                  \
		__type(key, k);                          \
		__type(value, v);                        \
	} name SEC(".maps")

HASH(procs, struct proc_key, struct proc_val, 4096);
HASH(ops, struct op_key, struct op_val, 16384);
HASH(errors, struct error_key, __u64, 4096);
HASH(kernels, struct kernel_key, struct kernel_val, 65536);
HASH(names, struct handle_key, struct name, 65536);
HASH(allocs, struct alloc_key, struct alloc_val, 131072);
HASH(devs, struct dev_key, struct dev_val, 8192);
HASH(uuids, struct dev_key, struct uuid, 8192);
HASH(streams, struct stream_key, __u64, 16384);
HASH(contexts, struct handle_key, __u32, 8192);
HASH(comms, struct handle_key, struct comm_val, 4096);
HASH(colls, struct coll_key, struct coll_val, 16384);
HASH(watches, struct watch_key, __u64, 16384);
HASH(images, struct proc_key, __u32, 4096); // of a pid: how keys call its process since exec

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct task_state);
} tasks SEC(".maps");

// Where there is no task storage, or none is to be had for a moment.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, struct task_state);
} threads SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, LOSSES);
	__type(key, __u32);
	__type(value, __u64);
} losses SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct name);
} scratch SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 512 << 10);
} events SEC(".maps");

// Set before loading.
const volatile bool task_storage = true;
const volatile __u32 limit = 200; // events of errors and outliers in a second

// Written by user space: something in watches has changed.
__u32 watch_epoch SEC(".data.control") = 1;

// Counts contexts that came to be: a process may have more than one device now.
__u32 context_epoch = 1;
// Counts streams that were waited for, by process and device, as far as they differ here.
__u32 stream_epochs[256];

// Counts programs that ended by exec.
__u32 image_count;

__u64 limit_second, limit_used;

// A new value of any map.
const volatile __u8 zeros[1280];

_Static_assert(sizeof(struct coll_val) <= sizeof(zeros), "a new value must fit");
_Static_assert(sizeof(struct task_state) <= sizeof(zeros), "a new value must fit");

// Functions that are not static are looked at once by the verifier, which else follows every
// way through them from every call; so are their branches, and there are many.
__noinline int lose(__u32 what)
{
	__u64 *n = bpf_map_lookup_elem(&losses, &what);

	if (n)
		(*n)++;
	return 0;
}

#define ADD(field, n) ((void)__sync_fetch_and_add(&(field), (n)))

// GET looks key up in map, and puts a zero there first if need be.
#define GET(map, key, full)                                                      \
	({                                                                       \
		void *found = bpf_map_lookup_elem(&map, key);                    \
		if (!found) {                                                    \
			bpf_map_update_elem(&map, key, (void *)zeros, BPF_NOEXIST); \
			found = bpf_map_lookup_elem(&map, key);                  \
			if (!found)                                              \
				lose(full);                                      \
		}                                                                \
		found;                                                           \
	})
