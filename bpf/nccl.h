// Communicators and collectives.
#pragma once

#include "record.h"

static __always_inline __u64 mix(__u64 hash, __u64 v)
{
	return (hash ^ v) * 0x100000001b3ull ^ hash >> 29;
}

// hash_id is the same in all ranks, because it is computed from the 128-byte unique id that
// they share, the way older versions of NCCL compute the hash in their log, RAS and Inspector. Package
// live replaces it by NCCL's own where it can read that.
__noinline __u64 hash_id(__u64 address)
{
	__u64 hash = 5381;
	c_char id[128];

	if (from_user(id, sizeof(id), address))
		return 0;
	for (int i = 0; i < (int)sizeof(id); i++)
		hash = ((hash << 5) + hash) ^ (__u64)id[i];
	return hash;
}

static __always_inline __u32 type_size(__u64 type)
{
	// ncclDataType_t: log2 of the size, 4 bits each, lowest first.
	return type < 12 ? 1 << ((0x001321332200ull >> (type * 4)) & 15) : 0;
}

static __always_inline struct comm_val *comm_value(__u32 tgid, __u64 comm)
{
	struct handle_key key = { .tgid = tgid, .handle = comm };

	return bpf_map_lookup_elem(&comms, &key);
}

// born registers a communicator. f has its hash in c, its rank and its size.
__noinline int born(struct task_state *st, struct frame *f, __u64 comm)
{
	if (!st || !f)
		return 0;
	struct handle_key key = { .tgid = st->tgid, .handle = comm };
	struct told t = { .type = TYPE_COMM_INIT, .comm = f->c };
	struct comm_val *v;

	if (!comm)
		return 0;
	bpf_map_update_elem(&comms, &key, (void *)zeros, BPF_ANY);
	v = bpf_map_lookup_elem(&comms, &key);
	if (!v) {
		lose(FULL_COMMS);
		return 0;
	}
	v->hash = f->c;
	v->rank = f->rank;
	v->size = f->size;
	v->dev = f->dev;
	t.ns = bpf_ktime_get_ns();
	v->gen = t.ns >> 10 | 1;
	t.ns -= f->start;
	return tell(st, f, &t);
}

// collective handles the entry: a rank that waits for others is in a collective or after it.
static __noinline int collective(struct task_state *st, struct frame *f, struct pt_regs *ctx)
{
	__u64 c = f->cookie, type = (__u32)argument(ctx, TYPE(c));
	__u64 reduce = REDUCE(c) ? (__u32)argument(ctx, REDUCE(c)) : 255;
	__s32 peer = PEER(c) ? (__s32)argument(ctx, PEER(c)) : UNKNOWN;
	struct handle_key key = { .tgid = st->tgid };
	__u32 n = st->depth; // with this call
	struct comm_val *v;
	struct frame *outer;
	struct dev_val *d;

	f->a = key.handle = argument(ctx, AUX(c));
	if (n > 1 && n <= DEPTH) { // ncclBcast calls ncclBroadcast
		outer = &st->frames[INDEX(n - 2)];
		if (BODY(outer->cookie) == BODY_COLL && outer->a == f->a) {
			f->inner = 1;
			return 0;
		}
	}
	if (type > 254)
		type = 254;
	if (reduce > 255)
		reduce = 254;
	f->b = (__u64)(__u32)peer << 32 | reduce << 8 | type;
	f->bytes = argument(ctx, BYTES(c)) * type_size(type);
	f->rank = UNKNOWN;
	f->gen = 0;
	v = bpf_map_lookup_elem(&comms, &key);
	if (!v) { // it is older than we are
		v = GET(comms, &key, FULL_COMMS);
		if (!v)
			return 0;
		v->rank = UNKNOWN;
		v->dev = f->dev;
		v->gen = f->start >> 10 | 1;
	}
	if (VARIANT(c) != COLL_PAIR) {
		ADD(v->seq, 1);
		v->last_enter = f->start;
		v->last_op = OP(c);
	}
	if (v->dev >= 0)
		f->dev = v->dev;
	f->c = v->hash;
	f->rank = v->rank;
	f->size = v->size;
	f->gen = v->gen;
	d = device_value(st->tgid, f->dev);
	if (d)
		d->comm = f->a;
	return 0;
}

__noinline int collected(struct task_state *st, struct frame *f, __u64 ns, bool error)
{
	if (!st || !f)
		return 0;
	struct coll_key key = {
		.tgid = st->tgid,
		.gen = f->gen,
		.comm = f->a,
		.op = OP(f->cookie),
		.type = f->b,
		.reduce = f->b >> 8,
		.peer = f->b >> 32,
	};
	struct coll_val *v = GET(colls, &key, FULL_COLLS);
	__u32 size = size_bucket(f->bytes);

	if (!v)
		return 0;
	ADD(v->ns, ns);
	ADD(v->time[time_bucket(ns) & (TIME_BUCKETS - 1)], 1);
	if (size < SIZE_BUCKETS)
		ADD(v->size[size], 1);
	ADD(v->bytes, f->bytes);
	if (error)
		ADD(v->errors, 1);
	return 0;
}

// first_wait handles the first synchronization of a device after a collective.
__noinline int first_wait(__u32 tgid, struct dev_val *d, __u64 ns)
{
	if (!d)
		return 0;
	struct comm_val *v = comm_value(tgid, d->comm);

	d->comm = 0;
	if (v) {
		ADD(v->barrier_ns, ns);
		ADD(v->barrier[time_bucket(ns) & (TIME_BUCKETS - 1)], 1);
	}
	return 0;
}

// init_enter reads the members of a new communicator.
static __noinline int init_enter(struct task_state *st, struct frame *f, struct pt_regs *ctx)
{
	__u64 c = f->cookie;
	struct comm_val *parent;

	f->a = argument(ctx, POINTER(c));
	f->size = TIMES(c) ? (__s32)argument(ctx, TIMES(c)) : 0;
	f->rank = UNKNOWN;
	f->c = 0;
	switch (BODY(c)) {
	case BODY_INIT:
		f->rank = RANK_BEHIND(ctx);
		f->c = hash_id(UNIQUE_ID(ctx));
		break;
	case BODY_SCALABLE:
		f->rank = (__s32)argument(ctx, PEER(c));
		f->c = hash_id(argument(ctx, AUX(c)));
		break;
	case BODY_INIT_ALL:
		f->b = argument(ctx, AUX(c));
		break;
	case BODY_SPLIT:
		parent = comm_value(st->tgid, argument(ctx, AUX(c)));
		if (!parent || !parent->hash)
			break;
		// All ranks split in the same order.
		f->c = mix(mix(parent->hash, (__u32)argument(ctx, PEER(c))), ++parent->splits) ?: 1;
		if (parent->dev >= 0)
			f->dev = parent->dev;
	}
	return 0;
}

#define INIT_ALL 64 // devices that one process may make communicators for at once

// init_leave reads the new communicators.
__noinline int init_leave(struct task_state *st, struct frame *f)
{
	if (!st || !f)
		return 0;
	__u64 comm = 0, base = f->a;
	__s32 dev = f->dev, n = f->size;

	if (BODY(f->cookie) != BODY_INIT_ALL) {
		if (!from_user(&comm, sizeof(comm), base))
			born(st, f, comm);
		return 0;
	}
	f->c = mix(mix(0xcbf29ce484222325ull, st->tgid), f->start) ?: 1;
	for (int i = 0; i < INIT_ALL && i < n; i++) {
		f->rank = i;
		f->dev = i;
		if (f->b && from_user(&f->dev, sizeof(f->dev), f->b + i * 4))
			f->dev = UNKNOWN;
		if (!from_user(&comm, sizeof(comm), base + i * 8))
			born(st, f, comm);
	}
	if (n > INIT_ALL)
		lose(FULL_COMMS);
	f->dev = dev;
	return 0;
}

__noinline int comm_end(struct task_state *st, struct frame *f, __u64 ns)
{
	if (!st || !f)
		return 0;
	struct comm_val *v = comm_value(st->tgid, f->a);
	struct told t = { .type = TYPE_COMM_END, .ns = ns };

	if (!v)
		return 0;
	if (VARIANT(f->cookie) == 2)
		v->aborted = 1;
	if (v->ended)
		return 0;
	v->ended = 1;
	f->rank = v->rank;
	f->size = v->size;
	t.comm = v->hash;
	return tell(st, f, &t);
}

__noinline int comm_ask(struct task_state *st, struct frame *f)
{
	if (!st || !f)
		return 0;
	struct comm_val *v = comm_value(st->tgid, f->b);
	__s32 answer = 0;

	if (!v || from_user(&answer, sizeof(answer), f->a))
		return 0;
	switch (VARIANT(f->cookie)) {
	case 1:
		v->rank = answer;
		break;
	case 2:
		v->size = answer;
		break;
	case 3:
		v->dev = answer;
	}
	return 0;
}
