// Counting calls, and sending the few events that are worth it.
#pragma once

#include "streams.h"

#define ROOT2 0xb504f333f9de6484ull // the square root of 2, times 2^63

// bucket is 0 up to 1, and i for n above 2^((i-1)/2) up to 2^(i/2); see tracer.SizeBucket.
__noinline __u32 bucket(__u64 n)
{
	__u64 v;
	__u32 log = 0;

	if (n <= 1)
		return 0;
	v = --n;
	if (v >> 32) {
		v >>= 32;
		log += 32;
	}
	if (v >> 16) {
		v >>= 16;
		log += 16;
	}
	if (v >> 8) {
		v >>= 8;
		log += 8;
	}
	if (v >> 4) {
		v >>= 4;
		log += 4;
	}
	if (v >> 2) {
		v >>= 2;
		log += 2;
	}
	if (v >> 1)
		log += 1;
	return 1 + 2 * log + (n >= ROOT2 >> ((63 - log) & 63));
}

// time_bucket; see tracer.TimeBucket.
static __always_inline __u32 time_bucket(__u64 ns)
{
	__u32 b;

	if (ns > 1ull << 40)
		ns = 1ull << 40;
	b = bucket(ns + ((ns * 19331) >> 18));
	if (b <= 13)
		return 0;
	return b - 13 < TIME_BUCKETS ? b - 13 : TIME_BUCKETS - 1;
}

static __always_inline __u32 size_bucket(__u64 n)
{
	__u32 b = bucket(n);

	return b < SIZE_BUCKETS ? b : SIZE_BUCKETS - 1;
}

// limited reports whether the rate limit of this second is exhausted.
static __always_inline bool limited(__u64 now)
{
	__u64 second = now >> 30;

	if (limit_second != second) {
		limit_second = second;
		limit_used = 0;
	}
	if (limit_used >= limit) {
		lose(LOSS_LIMITED);
		return true;
	}
	ADD(limit_used, 1);
	return false;
}

struct told {
	__u64 ns, comm;
	__u32 type;
	__s32 code;
};

// tell writes an event of a call to the ring buffer without a wakeup: the reader polls.
__noinline int tell(struct task_state *st, struct frame *f, struct told *t)
{
	if (!st || !f || !t)
		return 0;
	struct event *e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);

	if (!e) {
		lose(LOSS_RING);
		return 0;
	}
	__builtin_memset(e, 0, sizeof(*e));
	e->start = f->start;
	e->ns = t->ns;
	e->bytes = f->bytes;
	if (BODY(f->cookie) == BODY_LAUNCH || BODY(f->cookie) == BODY_LAUNCH_EX)
		e->handle = f->a;
	e->stream = f->stream;
	e->run_queue = st->run_queue - f->run_queue;
	e->blocked = st->blocked - f->blocked;
	e->comm = t->comm;
	e->tgid = st->tgid;
	e->tid = bpf_get_current_pid_tgid();
	e->dev = f->dev;
	e->code = t->code;
	e->rank = f->rank;
	e->size = f->size;
	e->type = t->type;
	e->op = OP(f->cookie);
	e->kind = f->kind;
	bpf_ringbuf_submit(e, BPF_RB_NO_WAKEUP);
	return 0;
}

// refresh reloads what user space wants to know about an operation.
__noinline int refresh(struct op_val *v, __u32 tgid, __u32 op)
{
	if (!v)
		return 0;
	struct watch_key key = { .tgid = PID(tgid), .op = op };
	__u64 *over = bpf_map_lookup_elem(&watches, &key);

	v->epoch = watch_epoch;
	v->over = over ? *over : 0;
	key.op = 0;
	v->record = bpf_map_lookup_elem(&watches, &key) ? 1 : 0;
	return 0;
}

__noinline int failed(struct task_state *st, struct frame *f, struct told *t)
{
	if (!st || !f || !t)
		return 0;
	struct error_key key = {
		.tgid = st->tgid, .op = OP(f->cookie), .kind = f->kind, .dev = f->dev, .code = t->code,
	};
	__u64 *n = GET(errors, &key, FULL_ERRORS);

	if (n)
		ADD(*n, 1);
	if (!limited(f->start + t->ns)) {
		t->type = TYPE_ERROR;
		tell(st, f, t);
	}
	return 0;
}

// observe counts a call.
static __always_inline void observe(struct task_state *st, struct frame *f, __u64 ns, __s32 code, bool error)
{
	struct op_key key = { .tgid = st->tgid, .op = OP(f->cookie), .kind = f->kind, .dev = f->dev };
	struct op_val *v = GET(ops, &key, FULL_OPS);
	struct told t = { .ns = ns, .code = code };

	if (v) {
		// Of synchronizations that of those with nothing to wait for, not of one that lost its CPU.
		if (BODY(f->cookie) != BODY_SYNC || (f->idle && (!v->last || ns < 2 * v->last)))
			v->last = ns;
		ADD(v->ns, ns);
		if (f->bytes && !error)
			ADD(v->bytes, f->bytes);
		if (f->waited)
			ADD(v->wait, f->waited);
		ADD(v->buckets[time_bucket(ns) & (TIME_BUCKETS - 1)], 1);
		if (v->epoch != watch_epoch)
			refresh(v, st->tgid, OP(f->cookie));
		if (v->record) {
			t.type = TYPE_CALL;
			tell(st, f, &t);
		} else if (v->over && ns > v->over && !error && !limited(f->start + ns)) {
			t.type = TYPE_OUTLIER;
			tell(st, f, &t);
		}
	}
	if (error)
		failed(st, f, &t);
}
