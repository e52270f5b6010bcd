package slo

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/gpumeter/gpumeter/internal/fleet/serving"
	"github.com/gpumeter/gpumeter/internal/optional"
)

// Cause is a resource that may be the limit.
type Cause string

// Causes.
const (
	KVCache     Cause = "kv_cache"    // requests wait while the key-value cache is full
	QueueLimit  Cause = "queue_limit" // requests wait although the cache has room: the engine runs no more at a time
	Prefill     Cause = "prefill"     // prompts take long while the GPU computes
	Decode      Cause = "decode"      // tokens take long while the GPU's memory transfers
	Host        Cause = "host"        // requests run while the GPU is idle
	PowerCap    Cause = "power_cap"   // the GPU clocks lower to keep its power limit
	Thermal     Cause = "thermal"     // the GPU clocks lower because it is hot
	Network     Cause = "network"     // requests take longer at a router or gateway than in the engines behind it
	Unexplained Cause = "unexplained" // nothing that was measured explains it
)

// Share is the part of the lost time that a cause explains. Shares add up to 1.
type Share struct {
	Cause Cause
	Share float64
	Text  string // the numbers that it follows from
}

// Facts are what serving.Row does not have, over the same window.
type Facts struct {
	// Means per request, in seconds.
	FirstToken, Queue, Prefill, Request optional.Float

	FrontFirstToken, FrontRequest Front

	// Waits is the part of the time in which requests waited, and Full and Room the parts of that in which the
	// key-value cache was full and clearly was not. Full and Room are absent if the engine does not say.
	Waits, Full, Room optional.Float
	Running           optional.Float // mean number of requests that ran, while any ran or waited

	// What the devices did while requests ran on them. In the rest of the time they have nothing to do.
	SM, Utilization, DRAM optional.Float // parts of the time: computed, ran anything, transferred
	Power, Thermal        optional.Float // parts of the time in which they throttled
	Clock                 optional.Float // mean SM clock, as a part of the highest one in the window
}

// Thresholds of the limits.
const (
	fullCache = 0.95 // of the key-value cache: engines keep some blocks free
	roomCache = 0.8  // between the two, nothing is certain
	waitsLong = 0.1  // part of the time: a request waits a moment in any engine
	busySM    = 0.8  // part of the time
	busyGPU   = 0.95 // utilization says only that anything runs
	idleGPU   = 0.5
	busyDRAM  = 0.6  // memory-bound kernels measure 0.6 to 0.9
	leastPart = 0.01 // smaller shares are not worth a line
)

// Limit returns which resource is the limit of a model: nil if it misses no objective of latency and no request waits for long.
// missed are the missed objectives of s, over the window of s and f. A cause gets its share of the lost time, and what
// nothing explains is unexplained.
func Limit(s *serving.Row, f Facts, missed []Objective) []Share {
	l := &limit{s: s, f: f, parts: map[Cause]float64{}, texts: map[Cause][]string{}}
	total := 0.0
	for _, o := range missed {
		if o.Kind == Duration && len(missed) > 1 && slices.ContainsFunc(missed, func(o Objective) bool { return o.Kind == FirstToken || o.Kind == PerToken }) {
			continue // its time is that of the others
		}
		weight := l.excess(&o)
		if weight <= 0 {
			continue
		}
		total += weight
		switch o.Kind {
		case FirstToken:
			l.firstToken(weight)
		case PerToken:
			l.decode(weight, "")
		case Duration:
			l.duration(weight)
		}
	}
	if waits, ok := f.Waits.Get(); total == 0 && ok && waits >= waitsLong {
		total = 1
		l.queue(1, "")
	}
	if total == 0 {
		return nil
	}
	return l.shares(total)
}

// limit collects the parts of the lost time.
type limit struct {
	s     *serving.Row
	f     Facts
	parts map[Cause]float64
	texts map[Cause][]string

	alone bool // no router or gateway saw the requests
}

func (l *limit) add(c Cause, part float64, text string) {
	if part <= 0 {
		return
	}
	l.parts[c] += part
	if text != "" && !slices.Contains(l.texts[c], text) {
		l.texts[c] = append(l.texts[c], text)
	}
}

// excess returns how far the percentile of an objective is above its threshold, as a part of that: latencies of
// different length thus compare. It is 1 if the percentile is unknown, and 0 for what is no latency.
func (l *limit) excess(o *Objective) float64 {
	q, ok := map[Kind]serving.Quantiles{FirstToken: l.s.FirstToken, PerToken: l.s.PerToken, Duration: l.s.Request}[o.Kind]
	if !ok {
		return 0
	}
	limit := o.Threshold.Seconds()
	if worst := max(o.of(q).Default(0), o.of(l.f.front(o.Kind).Quantiles).Default(0)); worst > limit {
		return worst/limit - 1
	}
	return 1
}

// of returns the percentile that is nearest to that of the objective.
func (o *Objective) of(q serving.Quantiles) optional.Float {
	switch {
	case o.Target >= 0.99:
		return q.P99
	case o.Target >= 0.9:
		return q.P95
	}
	return q.P50
}

// network explains by what a router or gateway saw beyond the engines, and returns the rest of the weight.
func (l *limit) network(weight float64, f *Front, engines optional.Float, what string) float64 {
	seen, ok := f.Mean.Get()
	own, known := engines.Get()
	if !ok || !known || !(seen > 0) {
		l.alone = true
		return weight
	}
	part := weight * max(0, 1-own/seen)
	l.add(Network, part, seconds(seen)+" "+what+" at "+f.Name+", "+seconds(own)+" in the engines")
	return weight - part
}

// firstToken divides the time to the first token into network, queue and prefill.
func (l *limit) firstToken(weight float64) {
	weight = l.network(weight, &l.f.FrontFirstToken, l.f.FirstToken, "to the first token")
	mean, ok := l.f.FirstToken.Get()
	queue, hasQueue := l.f.Queue.Ratio(l.f.FirstToken).Get()
	prefill, hasPrefill := l.f.Prefill.Ratio(l.f.FirstToken).Get()
	if !ok || !hasQueue && !hasPrefill {
		l.add(Unexplained, weight, "the engine does not say how much of the time to the first token is queue")
		return
	}
	queue = min(queue, 1)
	rest := 1 - queue
	if !hasPrefill {
		prefill = rest // all that is not queue
	}
	prefill = min(prefill, rest)
	of := " of " + seconds(mean) + " to the first token"
	if hasQueue {
		l.queue(weight*queue, "queue "+seconds(queue*mean)+of)
	}
	l.prefill(weight*prefill, "prefill "+seconds(prefill*mean)+of)
	l.add(Unexplained, weight*(rest-prefill), seconds((rest-prefill)*mean)+of+" is neither queue nor prefill")
}

// duration divides the time of a request into network, queue, prefill and decode.
func (l *limit) duration(weight float64) {
	weight = l.network(weight, &l.f.FrontRequest, l.f.Request, "per request")
	queue, hasQueue := l.f.Queue.Ratio(l.f.Request).Get()
	first, hasFirst := l.f.FirstToken.Ratio(l.f.Request).Get()
	mean, ok := l.f.Request.Get()
	if !ok || !hasQueue || !hasFirst {
		l.add(Unexplained, weight, "the engine does not say how much of the time of a request is queue")
		return
	}
	queue = min(queue, 1)
	first = min(max(first, queue), 1)
	of := " of " + seconds(mean) + " per request"
	l.queue(weight*queue, "queue "+seconds(queue*mean)+of)
	l.prefill(weight*(first-queue), "prefill "+seconds((first-queue)*mean)+of)
	l.decode(weight*(1-first), "output "+seconds((1-first)*mean)+of)
}

// queue explains time in the queue: by a full cache, or by the engine's own limit.
func (l *limit) queue(part float64, text string) {
	waits, ok := l.f.Waits.Get()
	full, known := l.f.Full.Get()
	room := l.f.Room.Default(0)
	switch {
	case !ok || waits < waitsLong:
		l.add(Unexplained, part, join(text, "hardly any request was seen waiting"))
		return
	case !known:
		l.add(Unexplained, part, join(text, "the use of the KV cache is unknown"))
		return
	}
	while := "requests waited in " + percent(waits) + " of the hour"
	l.add(KVCache, part*full, join(text, while+", in "+percent(full)+" of that with at least "+percent(fullCache)+" of the KV cache in use"))
	running, hasRunning := l.f.Running.Get()
	sm, hasSM := l.f.SM.Get()
	used, hasUsed := l.f.Utilization.Get()
	switch {
	case hasRunning && running < 1:
		l.add(Unexplained, part*room, "requests waited while hardly any ran")
	case hasUsed && used < idleGPU:
		l.add(Unexplained, part*room, "requests waited with room in the KV cache and a utilization of "+percent(used)+": the engine's limit, or the host")
	case hasSM && sm >= busySM: // a higher limit would only divide the GPU among more requests
		l.add(Unexplained, part*room, "requests waited with room in the KV cache and SM activity of "+percent(sm)+": the engine's limit, or the GPU")
	default:
		l.add(QueueLimit, part*room, join(text, while+", in "+percent(room)+" of that with less than "+percent(roomCache)+" of the KV cache in use"))
	}
	l.add(Unexplained, part*max(0, 1-full-room), "the KV cache was between "+percent(roomCache)+" and "+percent(fullCache))
}

// prefill explains time in which prompts were computed.
func (l *limit) prefill(part float64, text string) {
	if l.idle(part, text) {
		return
	}
	part = l.throttled(part)
	sm, hasSM := l.f.SM.Get()
	used, hasUsed := l.f.Utilization.Get()
	switch {
	case hasSM && sm >= busySM:
		l.add(Prefill, part, join(text, "SM activity "+percent(sm)))
	case !hasSM && hasUsed && used >= busyGPU:
		l.add(Prefill, part, join(text, "utilization "+percent(used)))
	case hasSM:
		l.add(Unexplained, part, join(text, "SM activity only "+percent(sm)))
	default:
		l.add(Unexplained, part, join(text, "the activity of the GPU while requests ran is unknown or low"))
	}
}

// decode explains time in which output was generated.
func (l *limit) decode(part float64, text string) {
	if l.idle(part, text) {
		return
	}
	dram, ok := l.f.DRAM.Get()
	if ok && dram >= busyDRAM { // the SM clock hardly matters
		l.add(Decode, part, join(text, "DRAM activity "+percent(dram)))
		return
	}
	part = l.throttled(part)
	if ok {
		l.add(Unexplained, part, join(text, "DRAM activity only "+percent(dram)))
		return
	}
	l.add(Unexplained, part, join(text, "DRAM activity is unknown"))
}

// idle explains time by the host if the GPU does nothing while requests run.
func (l *limit) idle(part float64, text string) bool {
	used, ok := l.f.Utilization.Get()
	if !ok || used >= idleGPU {
		return false
	}
	text = join(text, "utilization "+percent(used)+" while requests ran")
	if n, known := l.f.Running.Get(); known {
		text += fmt.Sprintf(", %.1f at a time", n)
	}
	l.add(Host, part, text)
	return true
}

// throttled explains the part of computing time by which the clock was lower, and returns the rest. A clock that is lower without a reported
// reason explains nothing.
func (l *limit) throttled(part float64) float64 {
	clock, ok := l.f.Clock.Get()
	power, heat := l.f.Power.Default(0), l.f.Thermal.Default(0)
	lost := part * max(0, 1-clock) * min(1, max(power, heat))
	if !ok || lost <= 0 {
		return part
	}
	for cause, throttled := range map[Cause]float64{PowerCap: power, Thermal: heat} {
		l.add(cause, lost*throttled/(power+heat), "throttled in "+percent(throttled)+" of the time in which requests ran, SM clock at "+percent(clock)+" of its highest")
	}
	return part - lost
}

// shares returns the parts of the total, the largest first and what is unexplained last.
func (l *limit) shares(total float64) []Share {
	var out []Share
	rest := 1.0
	for cause, part := range l.parts {
		if part /= total; cause != Unexplained && part >= leastPart {
			out = append(out, Share{cause, part, strings.Join(l.texts[cause], "; ")})
			rest -= part
		}
	}
	slices.SortFunc(out, func(a, b Share) int {
		return cmp.Or(cmp.Compare(math.Round(b.Share*1e9), math.Round(a.Share*1e9)), cmp.Compare(a.Cause, b.Cause))
	})
	if rest >= leastPart || len(out) == 0 {
		texts := l.texts[Unexplained]
		if l.alone {
			texts = append(texts, "the network is in no number: a router or gateway in front of just these engines would tell, if it was read")
		}
		return append(out, Share{Unexplained, rest, strings.Join(texts, "; ")})
	}
	for i := range out { // so that they add up
		out[i].Share /= 1 - rest
	}
	return out
}

// Sentence returns shares as one line.
func Sentence(list []Share) string {
	parts := make([]string, len(list))
	for i, s := range list {
		parts[i] = s.Cause.Name() + " " + percent(s.Share)
		if s.Text != "" {
			parts[i] += " (" + s.Text + ")"
		}
	}
	return strings.Join(parts, ", ")
}

func join(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + ", " + b
}

func percent(v float64) string { return fmt.Sprintf("%.0f %%", 100*v) }

func seconds(v float64) string {
	if v < 1 {
		return fmt.Sprintf("%.0f ms", 1000*v)
	}
	return fmt.Sprintf("%.1f s", v)
}
