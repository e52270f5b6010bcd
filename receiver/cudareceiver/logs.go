package cudareceiver

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/receiver"

	"github.com/gpumeter/gpumeter/internal/node"
	"github.com/gpumeter/gpumeter/internal/spans"
	"github.com/gpumeter/gpumeter/internal/ticks"
	"github.com/gpumeter/gpumeter/internal/tracer"
	"github.com/gpumeter/gpumeter/internal/tracer/journal"
	"github.com/gpumeter/gpumeter/internal/tracer/ledger"
	"github.com/gpumeter/gpumeter/receiver/cudareceiver/internal/metadata"
)

// Event names of records.
const (
	eventOutlier = "gpu.cuda.outlier" // a call that took far longer than usual
	eventError   = "gpu.cuda.error"   // a call that failed
	eventInit    = "nccl.comm.init"   // a communicator was created
	eventEnd     = "nccl.comm.end"    // a communicator was destroyed, finalized or aborted
	eventHang    = "nccl.hang"        // nccl.hang.state is active or over
	eventAnomaly = "gpumeter.anomaly"
)

// recorder converts readings to log records.
type recorder struct {
	cfg     *Config
	version string
	hangs   map[string]hang // by communicator
	board   *spans.Board    // nil: no spans
	dropped uint64          // records beyond MaxRecords so far

	list plog.LogRecordSlice
	now  time.Time
	left int
}

// hang is a communicator whose ranks wait.
type hang struct {
	behind  string
	waiting time.Time
	group   tracer.CommGroup
}

func newRecorder(cfg *Config, set receiver.Settings) *recorder {
	return &recorder{cfg: cfg, version: set.BuildInfo.Version, hangs: map[string]hang{}}
}

// emit returns the records of a reading, most important first: the rest may exceed the limit.
func (r *recorder) emit(l *ledger.Ledger, s *tracer.Snapshot, found []journal.Line, t *node.Tick) plog.Logs {
	ld := plog.NewLogs()
	rl := ld.ResourceLogs().AppendEmpty()
	ticks.Resource(metadata.NewResourceBuilder(r.cfg.ResourceAttributes), t).MoveTo(rl.Resource())
	sl := rl.ScopeLogs().AppendEmpty()
	sl.Scope().SetName(metadata.ScopeName)
	sl.Scope().SetVersion(r.version)
	r.list, r.now, r.left = sl.LogRecords(), t.Time, r.cfg.MaxRecords
	for i := range found {
		r.anomaly(l, &found[i])
	}
	r.hang(l, s)
	order := map[string]int{"comm_init": 0, "comm_end": 0, "error": 1, "outlier": 2}
	events := slices.SortedStableFunc(slices.Values(s.Events), func(a, b tracer.Event) int { return cmp.Compare(order[a.Type], order[b.Type]) })
	for i := range events {
		r.event(l, &events[i])
	}
	return ld
}

// add appends a record, if there is room.
func (r *recorder) add(name string, at time.Time, severity plog.SeverityNumber, body string) (rec plog.LogRecord, ok bool) {
	if r.left == 0 {
		r.dropped++
		return rec, false
	}
	r.left--
	rec = r.list.AppendEmpty()
	rec.SetEventName(name)
	rec.SetTimestamp(pcommon.NewTimestampFromTime(at))
	rec.SetObservedTimestamp(pcommon.NewTimestampFromTime(r.now))
	rec.SetSeverityNumber(severity)
	rec.SetSeverityText(map[plog.SeverityNumber]string{plog.SeverityNumberInfo: "INFO", plog.SeverityNumberWarn: "WARN"}[severity])
	rec.Body().SetStr(body)
	return rec, true
}

// who adds the owner, the device and the name of a process to a record.
func who(attrs pcommon.Map, l *ledger.Ledger, pid uint32, ordinal int) (name string) {
	attrs.PutInt("process.pid", int64(pid))
	p := l.Seen[pid]
	if p == nil {
		return "process " + strconv.FormatUint(uint64(pid), 10)
	}
	attrs.PutStr("process.executable.name", p.Name)
	if s := p.At[ordinal]; s != nil {
		label(attrs, s)
	} else {
		for _, a := range p.Pairs {
			attrs.PutStr(a.Key, a.Value)
		}
	}
	return p.Name
}

// event records one call.
func (r *recorder) event(l *ledger.Ledger, e *tracer.Event) {
	var name, body string
	severity := plog.SeverityNumberInfo
	switch e.Type {
	case "outlier":
		name, body = eventOutlier, fmt.Sprintf("%s took %s", e.Op, round(e.Duration))
	case "error":
		name, severity, body = eventError, plog.SeverityNumberWarn, fmt.Sprintf("%s failed with %d", e.Op, e.Code)
	case "comm_init":
		name, body = eventInit, fmt.Sprintf("rank %d of %d of communicator %s was created in %s", e.Rank, e.Size, e.Comm, round(e.Duration))
	case "comm_end":
		name, body = eventEnd, fmt.Sprintf("rank %d of %d of communicator %s ended by %s", e.Rank, e.Size, e.Comm, e.Op)
	default:
		return // not worth a record: recorded calls, exits
	}
	rec, ok := r.add(name, e.Time, severity, "")
	if !ok {
		return
	}
	attrs := rec.Attributes()
	rec.Body().SetStr(who(attrs, l, e.PID, e.Device) + ": " + body)
	attrs.PutStr("gpu.cuda.operation", e.Op)
	attrs.PutDouble("gpu.cuda.duration", e.Duration.Seconds())
	attrs.PutInt("thread.id", int64(e.TID))
	if e.Code != 0 {
		attrs.PutInt("gpu.cuda.error.code", int64(e.Code))
	}
	if e.Bytes > 0 {
		attrs.PutInt("gpu.cuda.bytes", int64(e.Bytes))
	}
	if e.Kernel != "" {
		attrs.PutStr("gpu.cuda.kernel.name", ledger.Cut(e.Kernel))
	}
	if e.RunQueue > 0 || e.Blocked > 0 {
		attrs.PutDouble("gpu.cuda.host.run_queue.time", e.RunQueue.Seconds())
		attrs.PutDouble("gpu.cuda.host.blocked.time", e.Blocked.Seconds())
	}
	if e.Comm != "" {
		attrs.PutStr("comm_id_hash", e.Comm)
		attrs.PutInt("rank", int64(e.Rank))
		attrs.PutInt("nranks", int64(e.Size))
	}
}

// hang records a communicator that hangs, once when it is certain and once when it is over.
func (r *recorder) hang(l *ledger.Ledger, s *tracer.Snapshot) {
	now := map[string]hang{}
	for _, g := range s.Groups {
		if g.Behind = late(&g); len(g.Behind) == 0 || g.Waiting.IsZero() || s.Time.Sub(g.Waiting) < r.cfg.HangAfter {
			continue
		}
		h := hang{fmt.Sprint(g.Behind), g.Waiting, g}
		now[g.ID] = h
		if was, ok := r.hangs[g.ID]; !ok || was.behind != h.behind {
			r.stuck(l, h, s.Time, true)
		}
	}
	for id, was := range r.hangs {
		if _, ok := now[id]; !ok {
			r.stuck(l, was, s.Time, false)
		}
	}
	r.hangs = now
}

// late returns the ranks that have not arrived: local ranks that lag, and any rank that NCCL misses.
func late(g *tracer.CommGroup) []int {
	list := slices.Concat(g.Behind, g.Missing)
	slices.Sort(list)
	return slices.Compact(list)
}

func (r *recorder) stuck(l *ledger.Ledger, h hang, now time.Time, active bool) {
	g := &h.group
	ranks := make([]string, len(g.Behind))
	for i, rank := range g.Behind {
		ranks[i] = strconv.Itoa(rank)
	}
	waited := now.Sub(h.waiting)
	severity, state := plog.SeverityNumberWarn, "active"
	body := fmt.Sprintf("communicator %s of %d ranks hangs: rank %s has not arrived, others have waited for %s",
		g.ID, g.Size, strings.Join(ranks, ", "), round(waited))
	if !active {
		severity, state = plog.SeverityNumberInfo, "over"
		body = fmt.Sprintf("communicator %s no longer hangs: others waited for rank %s for %s", g.ID, strings.Join(ranks, ", "), round(waited))
	}
	rec, ok := r.add(eventHang, now, severity, body)
	if !ok {
		return
	}
	attrs := rec.Attributes()
	// Attribute the hang to the missing rank if it is on this machine.
	for _, seen := range slices.SortedStableFunc(slices.Values(g.Ranks), func(a, b tracer.RankSeen) int {
		return cmp.Compare(b2i(!slices.Contains(g.Behind, a.Rank)), b2i(!slices.Contains(g.Behind, b.Rank)))
	}) {
		if p := l.Seen[seen.PID]; p != nil {
			who(attrs, l, seen.PID, deviceOf(p, g.ID, seen.Rank))
			break
		}
	}
	attrs.PutStr("nccl.hang.state", state)
	attrs.PutStr("comm_id_hash", g.ID)
	attrs.PutInt("nranks", int64(g.Size))
	attrs.PutDouble("nccl.hang.duration", waited.Seconds())
	missing := attrs.PutEmptySlice("nccl.hang.ranks")
	for _, rank := range g.Behind {
		missing.AppendEmpty().SetInt(int64(rank))
	}
}

func deviceOf(p *ledger.Presence, id string, rank int) int {
	for i := range p.Comms {
		if p.Comms[i].ID == id && p.Comms[i].Rank == rank {
			return p.Comms[i].Device
		}
	}
	return -1
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// round rounds a duration to a readable precision.
func round(d time.Duration) time.Duration {
	switch {
	case d > 10*time.Second:
		return d.Round(time.Second)
	case d > 10*time.Millisecond:
		return d.Round(time.Millisecond)
	}
	return d.Round(time.Microsecond)
}
