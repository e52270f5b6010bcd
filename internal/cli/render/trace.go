//go:build linux

package render

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gpumeter/gpumeter/internal/tracer"
	"github.com/gpumeter/gpumeter/internal/tracer/anomaly"
	"github.com/gpumeter/gpumeter/internal/tracer/inspect"
)

// Maximum number of lines of each kind per process.
const (
	shownOps     = 12
	shownKernels = 8
	shownComms   = 6
)

// traceReport is a report with the size of the terminal.
type traceReport struct {
	*inspect.Report

	width, height int
}

// Trace writes a report as text, in lines of at most width characters and, if height is above
// 0, at most as many lines as fit. Width 0 is 80.
func Trace(w io.Writer, report *inspect.Report, width, height int) {
	(&traceReport{report, width, height}).write(w)
}

func (r *traceReport) write(w io.Writer) {
	var b strings.Builder
	head := Plural(len(r.Processes)+r.Others, "process", "processes") + " traced"
	if r.Others > 0 {
		head += fmt.Sprintf(", %d of them not selected", r.Others)
	}
	probes, slow := 0, 0
	for _, l := range r.Libraries {
		probes, slow = probes+l.Probes, slow+l.Slow
	}
	head += fmt.Sprintf("; %s in %s", Plural(probes, "probe", "probes"), Plural(len(r.Libraries), "library", "libraries"))
	if r.Mode != "" {
		head += ", " + r.Mode
	}
	if slow > 0 {
		head += fmt.Sprintf(", %d slow", slow)
	}
	r.text(&b, "", r.Time.Format(time.TimeOnly)+"  "+head)
	if r.Problem != "" {
		r.text(&b, "", "The last reading failed, showing the previous one: "+r.Problem+".")
	}
	if lost := lostWords(&r.Losses); lost != "" {
		r.text(&b, "", "Missing from the numbers: "+lost+".")
	}
	for _, f := range r.Missing {
		r.text(&b, "", fmt.Sprintf("Without %s: %s.", f.Name, f.Reason))
	}
	for _, l := range r.Libraries {
		if l.Problem != "" {
			r.text(&b, "", l.Path+": "+l.Problem)
		}
	}
	for _, u := range r.Untraced {
		why := strings.ReplaceAll(u.Reason, "_", " ")
		if u.Detail != "" {
			why += ": " + u.Detail
		}
		r.text(&b, "", fmt.Sprintf("Process %d uses a GPU but is not traced: %s.", u.PID, why))
	}
	switch {
	case len(r.Processes) > 0:
	case r.Others > 0:
		r.text(&b, "", "\nNothing to show yet: no selected process has called CUDA.")
	default:
		r.text(&b, "", "\nNothing to show yet: no process has called CUDA since tracing started.")
	}
	order := slices.SortedStableFunc(slices.Values(r.Processes), func(a, b inspect.Process) int { return rank(&a) - rank(&b) })
	for i := range order {
		r.process(&b, &order[i])
	}
	lines := strings.SplitAfter(strings.TrimSuffix(b.String(), "\n"), "\n")
	if room := r.height - 1; room > 1 && len(lines) > room {
		left := len(lines) - room + 1
		lines = append(lines[:room-1], fmt.Sprintf("... %s: use --pid to select a process, --json for everything", Plural(left, "more line", "more lines")))
	}
	fmt.Fprintln(w, strings.Join(lines, ""))
}

// rank orders processes without calls last.
func rank(p *inspect.Process) int {
	if called(p) {
		return 0
	}
	return 1
}

// called reports whether a process made a call in the interval.
func called(p *inspect.Process) bool {
	return slices.ContainsFunc(p.Delta.Ops, func(o tracer.OpStat) bool { return o.Time.Count > 0 })
}

func (r *traceReport) text(w io.Writer, indent, words string) {
	wrap(w, cmp.Or(r.width, 80), indent, words)
}

// wrap writes words in lines of at most width characters. Continuation lines begin with
// indent.
func wrap(w io.Writer, width int, indent, words string) {
	for line := range strings.SplitSeq(words, "\n") {
		used := 0
		for i, word := range strings.Split(line, " ") {
			n := utf8.RuneCountInString(word)
			switch {
			case i == 0:
			case word != "" && used+1+n > width:
				fmt.Fprint(w, "\n"+indent)
				used = len(indent)
			default:
				fmt.Fprint(w, " ")
				used++
			}
			fmt.Fprint(w, word)
			used += n
		}
		fmt.Fprintln(w)
	}
}

// labels is the width of the label column in the lines of a process.
const labels = 12

// row writes words after a label.
func (r *traceReport) row(w io.Writer, label, words string) {
	r.text(w, strings.Repeat(" ", labels), fmt.Sprintf("%-*s", labels, "  "+label+" ")+words)
}

// lostWords describes lost data, empty if nothing is lost. Unknown kernel names do not count.
func lostWords(l *tracer.Losses) string {
	full := uint64(0)
	for _, n := range l.MapFull {
		full += n
	}
	var parts []string
	for _, x := range []struct {
		n    uint64
		what string
	}{
		{l.Events, "events dropped for lack of buffer space"},
		{full, "counts dropped for lack of map space"},
		{l.Missed, "calls missed by the kernel's probes"},
		{l.Nested, "calls nested too deeply"},
		{l.NoReturn, "calls that never returned"},
		{l.Faults, "arguments that could not be read"},
		{l.Spared, "calls counted without measuring their duration, because tracing would have cost too much"},
	} {
		if x.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", x.n, x.what))
		}
	}
	return strings.Join(parts, ", ")
}

func (r *traceReport) process(w io.Writer, p *inspect.Process) {
	who := fmt.Sprintf("\n%s (pid %d", p.Name, p.PID)
	if p.Workload != nil && p.Workload.Kind != "process" { // otherwise the workload repeats the process name
		who += ", " + plain(workloadName(*p.Workload))
	}
	who += ")"
	if p.Ended {
		who += ", ended"
	}
	v := p.Verdict
	d := &p.Delta
	switch {
	case !called(p):
		who += fmt.Sprintf(": no calls in these %.1f s", r.Seconds)
	case v == nil:
		who += ": not judged yet"
	default:
		who += ": " + strings.ReplaceAll(string(v.Kind), "_", "-")
	}
	r.text(w, "  ", who)
	if p.Older {
		r.text(w, "  ", "  Started before tracing: earlier kernel names and allocations are unknown.")
	}
	if v != nil && called(p) {
		r.row(w, "waits for", verdictWords(v))
	}
	r.devices(w, d, p.Older)
	if h := &d.Host; h.Known && h.Threads > 0 {
		r.row(w, "host", fmt.Sprintf("launching threads: runnable without a CPU %s (%s in calls), asleep %s (%s in calls)",
			r.part(h.RunQueue), r.part(h.RunQueueInCall), r.part(h.Blocked), r.part(h.BlockedInCall)))
	}
	r.collectives(w, d)
	for _, o := range d.Ops {
		for _, e := range o.Errors {
			r.row(w, "failed", fmt.Sprintf("%s with %d, %s", o.Op, e.Code, Plural(int(e.Count), "time", "times")))
		}
	}
	r.operations(w, d)
	r.kernels(w, d)
}

func verdictWords(v *anomaly.Verdict) string {
	return fmt.Sprintf("GPU %s, host %s, copies %s, communication %s; idle %s",
		wholePercent(v.GPU), wholePercent(v.Host), wholePercent(v.Copy), wholePercent(v.Communication), wholePercent(v.Idle))
}

// part returns a duration as a percentage of the interval.
func (r *traceReport) part(d time.Duration) string {
	if r.Seconds <= 0 {
		return none
	}
	return wholePercent(d.Seconds() / r.Seconds)
}

func wholePercent(share float64) string { return fmt.Sprintf("%.0f%%", 100*share) }

func (r *traceReport) place(d *tracer.Device) string {
	if name := r.Places[d.UUID]; name != "" {
		return name
	}
	if d.Ordinal < 0 {
		return "GPU ?" // of a context created before tracing started
	}
	return fmt.Sprintf("device %d", d.Ordinal) // CUDA ordinal, as the process sees it
}

func (r *traceReport) devices(w io.Writer, p *tracer.Process, older bool) {
	for i := range p.Devices {
		d := &p.Devices[i]
		r.row(w, r.place(d), fmt.Sprintf("has work %s; host waits for device %s, device waits for host %s", r.part(d.Busy), r.part(d.Wait), r.part(d.Bubble)))
		r.row(w, "  memory", memoryWords(&d.Memory, older))
		if d.Memory.Leak {
			r.row(w, "", fmt.Sprintf("LEAK? Growing by %s/s, less is freed than allocated.", byteSize(d.Memory.Growth)))
		}
	}
}

// memoryWords describes the reserved memory. For a process older than the tracer it is a lower
// bound.
func memoryWords(m *tracer.Memory, older bool) string {
	held := max(m.Reserved, m.Pool)
	if older && held == 0 {
		return "unknown: reserved before tracing started"
	}
	words := byteSize(float64(held)) + " reserved"
	if older && !m.Framework {
		words = "at least " + words
	}
	if m.Peak > 0 {
		words += fmt.Sprintf(", peak %s, oldest %s", byteSize(float64(m.Peak)), m.Oldest.Round(time.Second))
	}
	if m.Framework {
		words += fmt.Sprintf("; PyTorch uses %s", byteSize(float64(m.Allocated)))
		if pool := cmp.Or(m.Pool, m.Reserved); pool > 0 {
			words += fmt.Sprintf(" (%s fragmented)", wholePercent(max(0, 1-float64(m.Allocated)/float64(pool))))
		}
	}
	return words
}

func (r *traceReport) operations(w io.Writer, p *tracer.Process) {
	type row struct {
		name   string
		time   tracer.Histogram
		bytes  uint64
		errors uint64
	}
	rows := map[string]*row{}
	for i := range p.Ops {
		o := &p.Ops[i]
		name := o.Op
		if o.Kind != "" && !strings.Contains(strings.ToLower(o.Op), o.Kind) {
			name += " " + o.Kind
		}
		x := rows[name]
		if x == nil {
			x = &row{name: name}
			rows[name] = x
		}
		x.time = x.time.Add(o.Time)
		x.bytes += o.Bytes
		for _, e := range o.Errors {
			x.errors += e.Count
		}
	}
	var list []*row
	for _, x := range rows {
		if x.time.Count > 0 {
			list = append(list, x)
		}
	}
	slices.SortFunc(list, func(a, b *row) int { return cmp.Or(cmp.Compare(b.time.Sum, a.time.Sum), cmp.Compare(a.name, b.name)) })
	if len(list) == 0 {
		return
	}
	const format = "  %-25s %8s %5s %8s %9s %10s %6s\n" // 78 characters
	fmt.Fprintf(w, format, "OPERATION", "CALLS/S", "TIME", "MEAN", "P99", "BYTES/S", "ERRORS")
	for _, x := range list[:min(len(list), shownOps)] {
		bytes, errors := none, none
		if x.bytes > 0 {
			bytes = byteSize(float64(x.bytes) / r.Seconds)
		}
		if x.errors > 0 {
			errors = fmt.Sprint(x.errors)
		}
		fmt.Fprintf(w, format, shortenTo(x.name, 25), r.rate(x.time.Count), wholePercent(x.time.Sum/r.Seconds),
			spanOf(x.time.Sum/float64(x.time.Count)), "<"+spanOf(x.time.Quantile(0.99)), bytes, errors)
	}
	if n := len(list) - shownOps; n > 0 {
		fmt.Fprintf(w, "  and %s\n", Plural(n, "more operation", "more operations"))
	}
}

func (r *traceReport) rate(n uint64) string {
	v := float64(n) / r.Seconds
	if v < 10 {
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}

func (r *traceReport) kernels(w io.Writer, p *tracer.Process) {
	list := slices.SortedFunc(slices.Values(p.Kernels), func(a, b tracer.Kernel) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Name, b.Name))
	})
	list = slices.DeleteFunc(list, func(k tracer.Kernel) bool { return k.Count == 0 })
	if len(list) == 0 {
		return
	}
	const format = "  %10s %11s %9s  "
	fmt.Fprintf(w, format+"%s\n", "LAUNCHES/S", "GRID", "BLOCK", "KERNEL")
	room := max(20, cmp.Or(r.width, 80)-len(fmt.Sprintf(format, "", "", "")))
	for _, k := range list[:min(len(list), shownKernels)] {
		grid, block, name := none, none, k.Name
		if k.Grid[0] > 0 {
			grid, block = dimensions(k.Grid), dimensions(k.Block)
		}
		switch name {
		case tracer.KernelUnknown:
			name = "unknown (registered before tracing started)"
		case tracer.KernelOther:
			name = "all others"
		}
		fmt.Fprintf(w, format+"%s\n", r.rate(k.Count), grid, block, shortenTo(name, room))
	}
	if n := len(list) - shownKernels; n > 0 {
		fmt.Fprintf(w, "  and %s\n", Plural(n, "more kernel", "more kernels"))
	}
}

func (r *traceReport) collectives(w io.Writer, p *tracer.Process) {
	shown := 0
	for i := range p.Comms {
		c := &p.Comms[i]
		if c.Ended {
			continue
		}
		if shown++; shown > shownComms {
			continue
		}
		words := fmt.Sprintf("%s, rank %d of %d: %d collectives", c.ID, c.Rank, c.Size, c.Sequence)
		if c.ID == "" {
			words = fmt.Sprintf("created before tracing, rank unknown: %d collectives", c.Sequence)
		}
		if !c.LastEnter.IsZero() {
			words += fmt.Sprintf(", the last %s ago (%s)", r.Time.Sub(c.LastEnter).Round(10*time.Millisecond), c.LastOp)
		}
		if b := c.BarrierWait; b.Count > 0 {
			words += fmt.Sprintf("; %s average wait after each", spanOf(b.Sum/float64(b.Count)))
		}
		r.row(w, "NCCL", words)
		for _, o := range c.Ops {
			if o.Time.Count == 0 {
				continue
			}
			r.row(w, "", fmt.Sprintf("%s: %s/s of %s, %s/s, %s per call", strings.Join(strings.Fields(o.Op+" "+o.Type+" "+o.Reduce), " "), r.rate(o.Time.Count),
				byteSize(o.Size.Sum/float64(o.Time.Count)), byteSize(o.Size.Sum/r.Seconds), spanOf(o.Time.Sum/float64(o.Time.Count))))
		}
		for _, m := range p.Measured {
			if c.ID != "" && m.Comm == c.ID && m.Rank == c.Rank && m.Time > 0 {
				r.row(w, "", fmt.Sprintf("%s measured by NCCL: %s each, %s/s bus bandwidth", m.Op, spanOf(m.Time.Seconds()/float64(max(1, m.Count))), byteSize(m.Bus/m.Time.Seconds())))
			}
		}
		for _, g := range r.Groups {
			if late := slices.Concat(g.Behind, g.Missing); g.ID == c.ID && len(late) > 0 {
				slices.Sort(late)
				r.row(w, "", fmt.Sprintf("WAITING for rank %s for %s", strings.Trim(strings.ReplaceAll(fmt.Sprint(slices.Compact(late)), " ", ", "), "[]"), r.Time.Sub(g.Waiting).Round(10*time.Millisecond)))
			}
		}
	}
	if shown > shownComms {
		r.row(w, "", "and "+Plural(shown-shownComms, "more communicator", "more communicators"))
	}
}
