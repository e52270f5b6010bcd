// The maps. Plain hashes with atomic adds: per-CPU maps would take one copy per CPU, of which
// there may be hundreds. User space sets the sizes.
#pragma once

#include "tracer.h"

#define DEPTH 4 // calls inside calls that are followed

// INDEX is a number below DEPTH as an index of frames. The compiler knows the bound and would drop
// the mask, by which verifiers before Linux 6.16 know it.
#define INDEX(n)                                \
	({                                      \
		__u32 index = (n);              \
		asm volatile("" : "+r"(index)); \
		index & (DEPTH - 1);            \
	})

struct frame {
	__u64 cookie, start, sp;
	__u64 a, b, c; // as the body likes
	__u64 stream, bytes;
	__u64 run_queue, blocked;
	__u32 dims[7];
	__u32 kind;
	__s32 dev, rank, size;
	__u32 gen;
	__u32 inner; // a collective that another one makes: it is the same
	__u32 waits; // it is counted as waiting for the device
	__u32 idle, pad; // a synchronization with nothing to wait for
	__u64 waited; // ns of the call
};

#define STREAMS 4 // that a thread knows to be open

// State of a thread. Devices are stored plus 1, so that 0 means none.
struct task_state {
	__u32 tgid, depth;
	__u32 dev, only, epoch; // its context's; the process's one, as of epoch
	__u32 launched, capturing;
	__u32 stacked; // contexts below its own
	__u32 off;     // why it is not on a CPU
	__u64 context, stack[4];
	__u64 off_since, run_queue, blocked;
	__u64 synced; // when its last synchronisation ended, 0 once it has launched
	__u64 window; // when the current WINDOW of its calls began
	__u32 calls, costly; // number of calls; the last window had too many
	struct { // the last synchronization: which, of what, and when it began
		__u64 cookie, what, context, at;
	} sync;
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
HASH(streams, struct stream_key, struct stream_val, 16384);
HASH(contexts, struct handle_key, struct context_val, 8192);
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

// Events live long and are reused; the place of one that was recorded long ago is of no use.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct handle_key);
	__type(value, struct mark_val);
} marks SEC(".maps");

// Used if task storage is missing or temporarily unavailable.
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

// Always empty. See shared_stack.
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} nothing SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 512 << 10);
} events SEC(".maps");

// Set before loading.
const volatile bool task_storage = true;
const volatile __u32 limit = 200; // events of errors and outliers in a second
const volatile __u32 pace;	  // ns between two calls of a thread below which it is spared; 0: never

// Written by user space.
__u32 watch_epoch SEC(".data.control") = 1; // the watches have changed
// Probes that are kept for the next agent do nothing once none has come until then (ns of the monotonic
// clock). A probe that is asleep stays so: what it did not see cannot be made up for.
__u64 until SEC(".data.control") = ~0ull;
__u32 asleep SEC(".data.control");
// When tracing began: ns since boot, and the wall-clock time of the monotonic clock's zero.
__u64 began SEC(".data.control");
__u64 clock_zero SEC(".data.control");

// Counts new contexts: a process may now have more than one device.
__u32 context_epoch = 1;
// Counts synchronized streams by process and device, hashed into these slots.
__u32 stream_epochs[256];

// When a process last made a call that may give a device something to do; processes are hashed into these slots.
__u64 worked[256];

// Counts reports of PyTorch's allocator.
__u64 torch_reports;

// Counts programs replaced by exec.
__u32 image_count;

__u64 limit_second, limit_used;

// Zero value for new map entries.
const volatile __u8 zeros[1280];

_Static_assert(sizeof(struct coll_val) <= sizeof(zeros), "a new value must fit");
_Static_assert(sizeof(struct task_state) <= sizeof(zeros), "a new value must fit");

// The verifier checks non-static functions once; otherwise it would follow every path through
// them from every call, and through their many branches.
__noinline int lose(__u32 what)
{
	__u64 *n = bpf_map_lookup_elem(&losses, &what);

	if (n) // another task may run on this CPU in between
		__sync_fetch_and_add(n, 1);
	return 0;
}

#define ADD(field, n) ((void)__sync_fetch_and_add(&(field), (n)))

// GET looks up key in map and inserts a zero value if it is missing.
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
