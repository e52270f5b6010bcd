package encode

import (
	"io"
	"slices"

	pprof "github.com/google/pprof/profile"

	"github.com/gpumeter/gpumeter/internal/tracer/profile"
)

// writePprof writes the compressed form that all tools read.
func writePprof(w io.Writer, p *profile.Profile) error {
	out := &pprof.Profile{
		SampleType: []*pprof.ValueType{
			{Type: "launches", Unit: "count"}, {Type: "gpu", Unit: "nanoseconds"}, {Type: "wait", Unit: "nanoseconds"}, {Type: "samples", Unit: "count"},
		},
		DefaultSampleType: "launches",
		TimeNanos:         p.Start.UnixNano(),
		DurationNanos:     p.Duration.Nanoseconds(),
		Comments:          comments(p),
	}
	if estimated(p) {
		out.DefaultSampleType = "gpu"
	}
	functions := map[[2]string]*pprof.Function{}
	locations := map[profile.Frame]*pprof.Location{}
	location := func(f profile.Frame) *pprof.Location {
		l := locations[f]
		if l == nil {
			key := [2]string{f.Function, f.File}
			fn := functions[key]
			if fn == nil {
				// Without a system name the name counts as readable: <module> is no template.
				fn = &pprof.Function{ID: uint64(len(functions) + 1), Name: f.Function, Filename: f.File}
				functions[key] = fn
				out.Function = append(out.Function, fn)
			}
			l = &pprof.Location{ID: uint64(len(locations) + 1), Line: []pprof.Line{{Function: fn, Line: int64(f.Line)}}}
			locations[f] = l
			out.Location = append(out.Location, l)
		}
		return l
	}
	for i := range p.Samples {
		s := &p.Samples[i]
		x := &pprof.Sample{Value: values(s), NumLabel: map[string][]int64{"pid": {int64(s.PID)}}, Label: map[string][]string{"process": {process(p, s.PID)}}}
		for _, owner := range p.Processes {
			if owner.PID != s.PID {
				continue
			}
			for name, value := range owner.Workload {
				x.Label[name] = []string{value}
			}
		}
		for _, f := range slices.Backward(s.Frames) { // pprof has the innermost first
			x.Location = append(x.Location, location(f))
		}
		out.Sample = append(out.Sample, x)
	}
	if err := out.CheckValid(); err != nil {
		return err
	}
	return out.Write(w)
}

// values of a sample: launches, time on the device, time of waits, samples. Waits are no launches.
func values(s *profile.Sample) []int64 {
	launches := int64(s.Calls)
	if isWait(s) {
		launches = 0
	}
	return []int64{launches, s.GPU.Nanoseconds(), s.Wait.Nanoseconds(), int64(s.Samples)}
}
