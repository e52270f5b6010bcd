// Streams with work that nobody has waited for, and the events that mark places in them.
#pragma once

#include "state.h"

static __always_inline __u32 *stream_epoch(__u32 tgid, __s32 dev)
{
	return &stream_epochs[(tgid * 31 + dev) & 255];
}

static __always_inline __u64 *worked_at(__u32 tgid) { return &worked[tgid & 255]; }

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
	struct stream_val *sv;

	if (st->open[slot].epoch == epoch && st->open[slot].stream == f->stream && st->open[slot].dev == f->dev)
		return 0;
	d = device_value(st->tgid, f->dev);
	sv = GET(streams, &key, FULL_STREAMS);
	if (!d || !sv)
		return 0;
	sv->work = sv->marks;
#pragma unroll
	for (int i = 0; i < 4; i++) {
		__u64 now = d->open, count = (__u32)now;

		// A stream is open if it has the device's generation, which starts at 1.
		if (sv->generation == (now >> 32) + 1)
			break;
		if (!count) // before others see that something is open
			d->open_since = f->start;
		if (__sync_val_compare_and_swap(&d->open, now, now + 1) != now)
			continue;
		__sync_lock_test_and_set(&sv->generation, (now >> 32) + 1);
		break;
	}
	st->open[slot].stream = f->stream;
	st->open[slot].dev = f->dev;
	st->open[slot].epoch = epoch;
	return 0;
}

// closed handles that all work of one stream of a device is done, or with no stream that of all.
static __always_inline void closed(struct task_state *st, struct dev_val *d, __s32 dev, struct stream_val *sv, __u64 at)
{
#pragma unroll
	for (int i = 0; i < 4; i++) {
		__u64 now = d->open, count = (__u32)now, since = d->open_since, next;

		if (!count || (sv && sv->generation != (now >> 32) + 1))
			return;
		next = !sv || count == 1 ? ((now >> 32) + 1) << 32 : now - 1;
		if (__sync_val_compare_and_swap(&d->open, now, next) != now)
			continue;
		if (sv)
			__sync_lock_test_and_set(&sv->generation, 0);
		if (!(__u32)next && at > since)
			ADD(d->busy, at - since);
		ADD(*stream_epoch(st->tgid, dev), 1);
		return;
	}
}

struct place {
	__u64 stream, at;
	__u32 marks; // up to which event; 0: all of the stream
	__s32 dev;
};

// reached handles that a stream got to a place, which ends its work unless there is more behind it.
__noinline int reached(struct task_state *st, struct place *p)
{
	if (!st || !p)
		return 0;
	struct stream_key key = { .tgid = st->tgid, .dev = p->dev, .stream = p->stream };
	struct stream_val *sv = bpf_map_lookup_elem(&streams, &key);
	struct dev_val *d = device_value(st->tgid, p->dev);

	if (d && sv && (!p->marks || sv->work < p->marks))
		closed(st, d, p->dev, sv, p->at);
	return 0;
}

// waited handles that all work of a stream of a device is done, and with it what the stream waited for.
__noinline int waited(struct task_state *st, struct dev_val *d, struct place *p)
{
	if (!st || !d || !p)
		return 0;
	struct stream_key key = { .tgid = st->tgid, .dev = p->dev, .stream = p->stream };
	struct stream_val *sv = bpf_map_lookup_elem(&streams, &key);
	struct place before = *p;

	if (!sv)
		return 0;
	closed(st, d, p->dev, sv, p->at);
	if (!sv->afters)
		return 0;
	for (int i = 0; i < AFTER; i++) {
		before.stream = sv->after[i].stream;
		before.marks = sv->after[i].marks;
		if (before.marks)
			reached(st, &before);
		sv->after[i].marks = 0;
	}
	return 0;
}

// marked handles that an event is recorded in a stream.
__noinline int marked(struct task_state *st, __u64 stream, __u64 event)
{
	if (!st)
		return 0;
	struct handle_key key = { .tgid = st->tgid, .handle = event };
	struct mark_val mark = { .stream = stream, .dev = device(st) };
	struct stream_key at = { .tgid = st->tgid, .dev = mark.dev, .stream = stream };
	struct stream_val *sv = bpf_map_lookup_elem(&streams, &at);

	if (!sv) { // without work
		bpf_map_delete_elem(&marks, &key);
		return 0;
	}
	mark.marks = __sync_fetch_and_add(&sv->marks, 1) + 1;
	bpf_map_update_elem(&marks, &key, &mark, BPF_ANY);
	ADD(*stream_epoch(st->tgid, mark.dev), 1); // what is submitted next is behind it
	return 0;
}

// after handles that a stream waits, on the device, for an event.
__noinline int after(struct task_state *st, __u64 stream, __u64 event)
{
	if (!st)
		return 0;
	struct handle_key key = { .tgid = st->tgid, .handle = event };
	struct mark_val *mark = bpf_map_lookup_elem(&marks, &key);
	struct stream_key at = { .tgid = st->tgid, .dev = device(st), .stream = stream };
	struct stream_val *sv;
	__u32 slot;

	if (!mark || mark->dev != at.dev || mark->stream == stream)
		return 0;
	sv = GET(streams, &at, FULL_STREAMS);
	if (!sv)
		return 0;
	slot = AFTER;
	for (__u32 i = 0; i < AFTER; i++)
		if (sv->after[i].stream == mark->stream)
			slot = i;
	if (slot == AFTER)
		slot = __sync_fetch_and_add(&sv->afters, 1) & (AFTER - 1);
	slot &= AFTER - 1;
	sv->after[slot].stream = mark->stream;
	sv->after[slot].marks = mark->marks;
	return 0;
}

// wait_begins counts a call that waits for the device.
__noinline int wait_begins(struct task_state *st, struct frame *f)
{
	if (!st || !f)
		return 0;
	struct dev_val *d = device_value(st->tgid, f->dev);

	f->waits = 1;
	if (d && !__sync_fetch_and_add(&d->waiting, 1))
		d->waiting_since = f->start;
	return 0;
}

static __always_inline void wait_over(struct dev_val *d, struct frame *f)
{
	f->waits = 0;
	if (d && __sync_fetch_and_add(&d->waiting, -1ull) == 1)
		d->waiting_since = 0;
}

// abandoned handles a call that is left without a return.
__noinline int abandoned(struct task_state *st, struct frame *f)
{
	if (st && f && f->waits)
		wait_over(device_value(st->tgid, f->dev), f);
	return 0;
}
