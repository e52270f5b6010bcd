package encode

import (
	"encoding/json"
	"io"
	"time"

	"github.com/gpumeter/gpumeter/internal/tracer/profile"
)

// Document is a profile as JSON. Each frame is in it once; times are in seconds.
type Document struct {
	Start     time.Time `json:"start"`
	Seconds   float64   `json:"seconds"`
	Rate      int       `json:"rate"`
	Host      string    `json:"host"`
	Estimated bool      `json:"estimated"` // the time on the device is known, by an estimate
	Comments  []string  `json:"comments"`
	Processes []Process `json:"processes"`
	Frames    []Frame   `json:"frames"`
	Stacks    []Stack   `json:"stacks"`
}

// Process is one that was profiled.
type Process struct {
	PID      uint32            `json:"pid"`
	Name     string            `json:"name"`
	Python   string            `json:"python,omitempty"`
	Problem  string            `json:"problem,omitempty"`
	Launches uint64            `json:"launches"`
	Samples  uint64            `json:"samples"`
	Busy     float64           `json:"busy,omitempty"`
	Workload map[string]string `json:"workload,omitempty"`
}

// Frame is one function.
type Frame struct {
	Kind     string `json:"kind"`
	Function string `json:"function"`
	File     string `json:"file,omitempty"`
	Line     int    `json:"line,omitempty"`
}

// Stack is what was observed in one stack.
type Stack struct {
	PID      uint32  `json:"pid"`
	Frames   []int   `json:"frames"` // places in the list of frames, the outermost first
	Launches uint64  `json:"launches,omitempty"`
	GPU      float64 `json:"gpu,omitempty"`
	Wait     float64 `json:"wait,omitempty"`
	Samples  uint64  `json:"samples,omitempty"`
}

func writeJSON(w io.Writer, p *profile.Profile) error {
	d := Document{
		Start: p.Start.UTC(), Seconds: p.Duration.Seconds(), Rate: p.Rate, Host: p.Host, Estimated: estimated(p), Comments: comments(p),
		Processes: []Process{}, Frames: []Frame{}, Stacks: []Stack{},
	}
	for _, x := range p.Processes {
		d.Processes = append(d.Processes, Process{x.PID, x.Name, x.Python, x.Problem, x.Launches, x.Samples, x.Busy.Seconds(), x.Workload})
	}
	places := map[profile.Frame]int{}
	for i := range p.Samples {
		s := &p.Samples[i]
		stack := Stack{PID: s.PID, Launches: uint64(values(s)[0]), GPU: s.GPU.Seconds(), Wait: s.Wait.Seconds(), Samples: s.Samples}
		for _, f := range s.Frames {
			at, ok := places[f]
			if !ok {
				at = len(d.Frames)
				places[f] = at
				d.Frames = append(d.Frames, Frame(f))
			}
			stack.Frames = append(stack.Frames, at)
		}
		d.Stacks = append(d.Stacks, stack)
	}
	return json.NewEncoder(w).Encode(d)
}
