package encode

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	pprof "github.com/google/pprof/profile"
	"go.opentelemetry.io/collector/pdata/pprofile"

	"github.com/gpumeter/gpumeter/internal/tracer/profile"
)

func example() *profile.Profile {
	train := profile.Frame{Kind: profile.Python, Function: "train", File: "/app/train.py", Line: 12}
	forward := profile.Frame{Kind: profile.Python, Function: "Model.forward", File: "/app/model.py", Line: 40}
	native := profile.Frame{Kind: profile.Native, Function: "at::native::mm", File: "libtorch_cuda.so"}
	return &profile.Profile{
		Start: time.Unix(1700000000, 0), Duration: 30 * time.Second, Rate: 99, Host: "node-1",
		Processes: []profile.Process{
			{PID: 7, Name: "python3", Python: "3.11", Launches: 30, Samples: 4, Busy: 3 * time.Second, Workload: map[string]string{"k8s.pod.name": "llm-0"}},
			{PID: 9, Name: "odd;name", Problem: "frames of Python 3.7 are unknown", Launches: 5, Samples: 1},
		},
		Samples: []profile.Sample{
			{PID: 7, Frames: []profile.Frame{train, forward, native, {Kind: profile.Kernel, Function: "gemm<float, 1>"}}, Samples: 3, Calls: 30, GPU: 3 * time.Second},
			{PID: 7, Frames: []profile.Frame{train, {Kind: profile.Wait, Function: "cuCtxSynchronize"}}, Samples: 1, Calls: 2, Wait: time.Second},
			{PID: 9, Frames: []profile.Frame{{Kind: profile.Note, Function: profile.NotSampled}, {Kind: profile.Kernel, Function: "unknown"}}, Calls: 5},
		},
		Losses: profile.Losses{Stacks: 1},
	}
}

func written(t *testing.T, f Format) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := Write(&b, f, example()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// Defects: frames in the wrong order, waits among launches, values in another order than their types.
func TestPprof(t *testing.T) {
	t.Parallel()
	p, err := pprof.ParseData(written(t, Pprof))
	if err != nil {
		t.Fatal(err)
	}
	var types, samples []string
	for _, v := range p.SampleType {
		types = append(types, v.Type+" "+v.Unit)
	}
	for _, s := range p.Sample {
		var frames []string
		for _, l := range s.Location {
			frames = append(frames, fmt.Sprintf("%s %s:%d", l.Line[0].Function.Name, l.Line[0].Function.Filename, l.Line[0].Line))
		}
		samples = append(samples, fmt.Sprint(frames, s.Value, s.NumLabel["pid"], s.Label["k8s.pod.name"]))
	}
	if diff := cmp.Diff([]string{"launches count", "gpu nanoseconds", "wait nanoseconds", "samples count"}, types); diff != "" {
		t.Errorf("types (-want +got):\n%s", diff)
	}
	want := []string{
		"[gemm<float, 1> :0 at::native::mm libtorch_cuda.so:0 Model.forward /app/model.py:40 train /app/train.py:12] [30 3000000000 0 3] [7] [llm-0]",
		"[cuCtxSynchronize :0 train /app/train.py:12] [0 0 1000000000 1] [7] [llm-0]",
		"[unknown :0 [not sampled] :0] [5 0 0 0] [9] []",
	}
	if diff := cmp.Diff(want, samples); diff != "" {
		t.Errorf("samples (-want +got):\n%s", diff)
	}
	if p.DefaultSampleType != "gpu" || p.DurationNanos != 30e9 || p.TimeNanos != 1700000000e9 || len(p.Comments) != 4 {
		t.Errorf("default %s, %d ns from %d, comments %q", p.DefaultSampleType, p.DurationNanos, p.TimeNanos, p.Comments)
	}
}

// A resource for each process, and indexes into tables whose first entry means none.
func TestOTLP(t *testing.T) {
	t.Parallel()
	for _, f := range []Format{OTLP, OTLPJSON} {
		unmarshal := (&pprofile.ProtoUnmarshaler{}).UnmarshalProfiles
		if f == OTLPJSON {
			unmarshal = (&pprofile.JSONUnmarshaler{}).UnmarshalProfiles
		}
		p, err := unmarshal(written(t, f))
		if err != nil {
			t.Fatal(err)
		}
		d := p.Dictionary()
		var got []string
		for _, r := range p.ResourceProfiles().All() {
			pid, _ := r.Resource().Attributes().Get("process.pid")
			for _, one := range r.ScopeProfiles().At(0).Profiles().All() {
				for _, s := range one.Samples().All() {
					line := fmt.Sprint(pid.Int(), " ", d.StringTable().At(int(one.SampleType().TypeStrindex())), " ", s.Values().AsRaw())
					for _, at := range d.StackTable().At(int(s.StackIndex())).LocationIndices().All() {
						l := d.LocationTable().At(int(at))
						kind := d.AttributeTable().At(int(l.AttributeIndices().At(0)))
						fn := d.FunctionTable().At(int(l.Lines().At(0).FunctionIndex()))
						line += fmt.Sprintf(" %s:%s:%d", kind.Value().Str(), d.StringTable().At(int(fn.NameStrindex())), l.Lines().At(0).Line())
					}
					got = append(got, line)
				}
			}
		}
		want := []string{
			"7 launches [30] gpu:gemm<float, 1>:0 native:at::native::mm:0 cpython:Model.forward:40 cpython:train:12",
			"7 gpu [3000000000] gpu:gemm<float, 1>:0 native:at::native::mm:0 cpython:Model.forward:40 cpython:train:12",
			"7 wait [1000000000] native:cuCtxSynchronize:0 cpython:train:12",
			"9 launches [5] gpu:unknown:0 note:[not sampled]:0",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", f, diff)
		}
		if s := d.StringTable().At(0); s != "" {
			t.Errorf("the first string is %q", s)
		}
	}
}

// A semicolon in a name would make two frames of one.
func TestFolded(t *testing.T) {
	t.Parallel()
	want := `python3 7;train (train.py:12);Model.forward (model.py:40);at::native::mm;gemm<float, 1> 30
odd:name 9;[not sampled];unknown 5
`
	if diff := cmp.Diff(want, string(written(t, Folded))); diff != "" {
		t.Errorf("folded (-want +got):\n%s", diff)
	}
}

func TestJSON(t *testing.T) {
	t.Parallel()
	var d Document
	if err := json.Unmarshal(written(t, JSON), &d); err != nil {
		t.Fatal(err)
	}
	want := []Stack{
		{PID: 7, Frames: []int{0, 1, 2, 3}, Launches: 30, GPU: 3, Samples: 3},
		{PID: 7, Frames: []int{0, 4}, Wait: 1, Samples: 1},
		{PID: 9, Frames: []int{5, 6}, Launches: 5},
	}
	if diff := cmp.Diff(want, d.Stacks); diff != "" {
		t.Errorf("stacks (-want +got):\n%s", diff)
	}
	if len(d.Frames) != 7 || d.Frames[1] != (Frame{Kind: "python", Function: "Model.forward", File: "/app/model.py", Line: 40}) || !d.Estimated {
		t.Errorf("frames %+v, estimated %v", d.Frames, d.Estimated)
	}
}

func TestFormatOf(t *testing.T) {
	t.Parallel()
	f := func(name string, want Format) {
		t.Helper()
		got, err := FormatOf(name)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%s is %q, %v, want %q", name, got, err, want)
		}
	}
	f("a/train.pb.gz", Pprof)
	f("train.otlp.json", OTLPJSON)
	f("train.json", JSON)
	f("train.otlp", OTLP)
	f("train.folded", Folded)
	f("train", "")
	if _, err := FormatOf("x.svg"); err == nil || !strings.Contains(err.Error(), ".pb.gz") {
		t.Errorf("the error does not name the formats: %v", err)
	}
}
