// Package encode writes profiles: as pprof, as OTLP, as folded stacks and as JSON for the page.
package encode

import (
	"cmp"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/gpumeter/gpumeter/internal/tracer/profile"
)

// Format is a form of a profile.
type Format string

// The formats.
const (
	Pprof    Format = "pprof"     // for go tool pprof, Pyroscope, Parca and others
	OTLP     Format = "otlp"      // OTLP profiles, as protobuf
	OTLPJSON Format = "otlp.json" // the same as JSON
	Folded   Format = "folded"    // a line for each stack, for flamegraph.pl, speedscope and others
	JSON     Format = "json"      // for the page of the hub
)

// Formats lists them.
var Formats = []Format{Pprof, OTLP, OTLPJSON, Folded, JSON}

// endings of file names, the longer ones first.
var endings = []struct {
	ending string
	format Format
}{
	{".otlp.json", OTLPJSON}, {".otlp", OTLP}, {".pb.gz", Pprof}, {".pprof", Pprof}, {".folded", Folded}, {".txt", Folded}, {".json", JSON},
}

// FormatOf returns the format that the name of a file asks for.
func FormatOf(file string) (Format, error) {
	for _, e := range endings {
		if strings.HasSuffix(path.Base(file), e.ending) {
			return e.format, nil
		}
	}
	var known []string
	for _, e := range endings {
		known = append(known, e.ending)
	}
	return "", fmt.Errorf("the name of the file says no format: %q should end in %s", file, strings.Join(known, ", "))
}

// Valid reports whether a profile can be written in this format.
func (f Format) Valid() bool { return slices.Contains(Formats, f) }

// Media returns the media type of a format.
func (f Format) Media() string {
	switch f {
	case Folded:
		return "text/plain; charset=utf-8"
	case JSON, OTLPJSON:
		return "application/json"
	case OTLP:
		return "application/x-protobuf"
	}
	return "application/octet-stream"
}

// Write writes a profile in a format.
func Write(w io.Writer, f Format, p *profile.Profile) error {
	switch f {
	case Pprof:
		return writePprof(w, p)
	case OTLP, OTLPJSON:
		return writeOTLP(w, f, p)
	case Folded:
		return writeFolded(w, p)
	case JSON:
		return writeJSON(w, p)
	}
	return fmt.Errorf("unknown format %q", f)
}

// estimated reports whether the time on the device is known, by an estimate.
func estimated(p *profile.Profile) bool {
	return slices.ContainsFunc(p.Processes, func(x profile.Process) bool { return x.Busy > 0 })
}

// writeFolded writes launches, or waits in microseconds, by stack. Both in one file would be added up.
func writeFolded(w io.Writer, p *profile.Profile) error {
	for _, s := range p.Samples {
		if s.Calls == 0 || s.Wait > 0 || isWait(&s) {
			continue
		}
		parts := make([]string, 0, 1+len(s.Frames))
		parts = append(parts, clean(process(p, s.PID)))
		for _, f := range s.Frames {
			parts = append(parts, clean(label(f)))
		}
		if _, err := fmt.Fprintf(w, "%s %d\n", strings.Join(parts, ";"), s.Calls); err != nil {
			return err
		}
	}
	return nil
}

func isWait(s *profile.Sample) bool {
	return len(s.Frames) > 0 && s.Frames[len(s.Frames)-1].Kind == profile.Wait
}

// label is a frame as one text.
func label(f profile.Frame) string {
	if f.Kind != profile.Python {
		return f.Function
	}
	name := fmt.Sprintf("%s (%s", f.Function, path.Base(f.File))
	if f.Line > 0 {
		name += fmt.Sprintf(":%d", f.Line)
	}
	return name + ")"
}

func clean(s string) string { return strings.ReplaceAll(s, ";", ":") }

// process names a process with its pid.
func process(p *profile.Profile, pid uint32) string {
	for _, x := range p.Processes {
		if x.PID == pid {
			return fmt.Sprintf("%s %d", cmp.Or(x.Name, "process"), pid)
		}
	}
	return fmt.Sprintf("process %d", pid)
}

// comments say what a reader of the profile must know.
func comments(p *profile.Profile) []string {
	out := []string{fmt.Sprintf("gpumeter: %s of launches; about %d samples a second of each thread; the number of launches of each kernel is exact, its division among stacks is by samples",
		p.Duration.Round(time.Millisecond), p.Rate)}
	if estimated(p) {
		out = append(out, "gpu is an estimate: the time from launches to synchronizations, divided among kernels; its error is unknown and may be large")
	} else {
		out = append(out, "gpu is 0: the time of the device is unknown")
	}
	for _, x := range p.Processes {
		if x.Problem != "" {
			out = append(out, fmt.Sprintf("%s: %s", process(p, x.PID), x.Problem))
		}
	}
	if l := p.Losses; l != (profile.Losses{}) {
		out = append(out, fmt.Sprintf("lost: %d launches not counted, %d calls not sampled, %d stacks, %d threads", l.Counts, l.Samples, l.Stacks, l.Threads))
	}
	return out
}
