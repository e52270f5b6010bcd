// Definitions shared with user space. Go gets the types through bpf2go and has the numbers in
// internal/tracer; a test compares them.
#pragma once

#include "kernel.h"

// A cookie is a row of the operation table, packed by internal/tracer/ops.go.
#define OP(c) ((__u8)(c))
#define BODY(c) (((c) >> 8) & 63)
#define KIND(c) (((c) >> 14) & 7)
#define QUIET (1ull << 17)
#define ENTRY (1ull << 18)
#define PENDING (1ull << 19)
#define BYTES(c) (((c) >> 20) & 15)
#define TIMES(c) (((c) >> 24) & 15)
#define STREAM(c) (((c) >> 28) & 15)
#define POINTER(c) (((c) >> 32) & 15)
#define AUX(c) (((c) >> 36) & 15)
#define TYPE(c) (((c) >> 40) & 15)
#define REDUCE(c) (((c) >> 44) & 15)
#define PEER(c) (((c) >> 48) & 15)
#define SHIFT(c) (((c) >> 52) & 7)
#define VARIANT(c) (((c) >> 55) & 7)

enum body {
	BODY_CALL = 1,
	BODY_LAUNCH,
	BODY_LAUNCH_EX,
	BODY_WORK,
	BODY_CAPTURE,
	BODY_COPY,
	BODY_COPY_STRUCT,
	BODY_COPY_BATCH,
	BODY_SET,
	BODY_ALLOC,
	BODY_FREE,
	BODY_SYNC,
	BODY_STREAM_END,
	BODY_NAME,
	BODY_NAME_OF,
	BODY_ALIAS,
	BODY_UUID,
	BODY_CONTEXT,
	BODY_CURRENT,
	BODY_PUSH,
	BODY_POP,
	BODY_COLL,
	BODY_INIT,
	BODY_INIT_ALL,
	BODY_SPLIT,
	BODY_COMM_END,
	BODY_COMM_ASK,
	BODY_TORCH,
	BODY_SCALABLE,
	BODY_RESET,
	BODY_MARK,
	BODY_AFTER,
	BODY_MAP,
	BODY_UNMAP,
	BODY_POOL,
	BODY_CONTEXT_END,
};

enum memory { MEMORY_DEVICE = 1, MEMORY_MANAGED, MEMORY_HOST, MEMORY_HANDLE, MEMORY_PITCH, MEMORY_POOL };
#define POOL_THRESHOLD 4 // CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
enum sync { SYNC_CONTEXT = 1, SYNC_STREAM, SYNC_EVENT };
#define CAPTURE_WRONG_THREAD 908 // the capture goes on
enum coll { COLL_ALL, COLL_PAIR }; // of all ranks; of two
enum kind { KIND_NONE, KIND_HTOD, KIND_DTOH, KIND_DTOD, KIND_HTOH, KIND_PEER, KIND_DEFAULT };
enum type { TYPE_CALL = 1, TYPE_OUTLIER, TYPE_ERROR, TYPE_COMM_INIT, TYPE_COMM_END, TYPE_EXIT };

enum loss {
	LOSS_RING,
	LOSS_LIMITED,
	LOSS_NESTED,
	LOSS_NO_RETURN,
	LOSS_FAULT,
	LOSS_SPARED,
	FULL_TASKS,
	FULL_PROCS,
	FULL_OPS,
	FULL_ERRORS,
	FULL_KERNELS,
	FULL_NAMES,
	FULL_ALLOCS,
	FULL_DEVS,
	FULL_UUIDS,
	FULL_STREAMS,
	FULL_CONTEXTS,
	FULL_COMMS,
	FULL_COLLS,
	LOSSES,
};

#define TIME_BUCKETS 64
#define SIZE_BUCKETS 72
#define NAME_BYTES 256
#define UNKNOWN (-1) // device, rank or peer

// Each key starts with the process, so that entries of an exited process are found in all maps
// the same way. A pid has 22 bits; the bits above distinguish the current program of a process
// from those it ran before exec, which have ended.
#define PID_BITS 22
#define PID(tgid) ((tgid) & ((1u << PID_BITS) - 1))

struct proc_key {
	__u32 tgid;
};
struct proc_val {
	__u64 first, start, ended; // ns: of the monotonic clock; since boot; of the monotonic clock
	__u8 comm[16];
	__u32 only, devices; // its one device plus 1; how many it has contexts on, 2 for more
	__u64 threads, switches, run_queue, blocked, run_queue_in, blocked_in;
	__u64 other_count, other_ns; // launches of kernels that have no place
};

struct op_key {
	__u32 tgid;
	__u8 op, kind;
	__s16 dev;
};
// The count is the sum of the buckets, which saves one atomic add per call.
struct op_val {
	__u64 ns, bytes;
	__u64 wait; // ns of these that copies waited for earlier work
	__u64 over; // an event for each call that takes longer; 0: none
	__u64 last; // ns of the last one
	__u32 epoch, record;
	__u64 buckets[TIME_BUCKETS];
};

struct error_key {
	__u32 tgid;
	__u8 op, kind;
	__s16 dev;
	__s32 code;
};

struct kernel_key {
	__u32 tgid;
	__s32 dev;
	__u64 handle;
};
struct kernel_val {
	__u64 count, ns;
	__u32 dims[7]; // grid, block, bytes of shared memory
	__u32 pad;
};

struct handle_key {
	__u32 tgid, pad;
	__u64 handle;
};
struct name {
	__u8 text[NAME_BYTES];
};

struct alloc_key {
	__u32 tgid, what; // 0: an address, 1: a handle of memory without an address, 2: where one is mapped
	__u64 address;
};
struct alloc_val {
	__u64 bytes, since;
	__s32 dev;
	__u32 memory;
	__u64 context, handle; // of an address; of a mapping
	__u32 maps;	       // addresses that a handle is mapped at
	__u8 released, freeing, pad[2];
};

struct context_val {
	__u64 bytes, since; // allocated in it; when it was made
	__u32 dev, pad;
};

struct dev_key {
	__u32 tgid;
	__s32 dev;
};
struct dev_val {
	__u64 busy, wait, bubble;
	__u64 open, open_since; // generation << 32 | streams with work that was not waited for
	__u64 waiting, waiting_since;
	__u64 reserved, peak, allocs, frees;
	__u64 allocated, pool, framework; // as PyTorch said it, and when
	__u64 comm;			  // of the last collective since a synchronisation
	__u64 reset;			  // when all that was allocated before had been freed
	__u64 pool_used, pool_idle;	  // bytes from the driver's pools, and in them
	__u64 pool_keep;		  // bytes that they may hold after a synchronisation
	__u64 pace[2];			  // ns that a MiB takes to the device, and to the host
};
struct uuid {
	__u8 first[16], second[16]; // from the two versions of the call
	__u32 has, pad;
};

struct stream_key {
	__u32 tgid;
	__s32 dev;
	__u64 stream;
};
#define AFTER 4 // streams that a stream is known to have waited for
struct stream_val {
	__u64 generation; // the device's, plus 1, when work was submitted that nobody has waited for
	__u32 marks, work; // events recorded in it; how many of them before the last work
	struct {
		__u64 stream;
		__u32 marks, pad;
	} after[AFTER];
	__u32 afters, pad;
};
struct mark_val { // the place of an event
	__u64 stream;
	__s32 dev;
	__u32 marks;
};

struct comm_val {
	__u64 hash, seq, last_enter, splits;
	__s32 rank, size, dev;
	__u32 gen; // tells it from one that was at this address before
	__u8 last_op, ended, aborted, pad[5];
	__u64 barrier_ns, barrier[TIME_BUCKETS];
};

struct coll_key {
	__u32 tgid, gen;
	__u64 comm;
	__u8 op, type, reduce, pad;
	__s32 peer;
};
struct coll_val {
	__u64 ns, bytes, errors;
	__u64 time[TIME_BUCKETS], size[SIZE_BUCKETS];
};

struct watch_key {
	__u32 tgid, op; // op 0: every call
};

struct event {
	__u64 start, ns, bytes, handle, stream, run_queue, blocked, comm;
	__u32 tgid, tid;
	__s32 dev, code, rank, size;
	__u8 type, op, kind, pad[5];
};
