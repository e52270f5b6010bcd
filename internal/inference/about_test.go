package inference

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/promtext"
)

// Catches a version that is lost, that of an API in the place of an engine's, a path in the place of a model, and an
// answer that is not what it should be.
func TestAbout(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		provider string
		at       map[string]string
		want     About
		failed   bool
	}{
		{"vllm", map[string]string{"/version": `{"version":"0.4.3"}`}, About{Version: "0.4.3"}, false},
		{"tensorrt_llm", map[string]string{"/version": `{"version":"1.1.0"}`}, About{Version: "1.1.0"}, false},
		{"nvidia_nim", map[string]string{"/v1/version": `{"release":"1.0.0","api":"2.0.0","version":"3"}`}, About{Version: "1.0.0"}, false},
		{"tgi", map[string]string{"/info": `{"model_id":"org/m","version":"3.3.7"}`}, About{"org/m", "3.3.7"}, false},
		{"tei", map[string]string{"/info": `{"model_id":"org/m","version":"1.8"}`}, About{"org/m", "1.8"}, false},
		{"llama_cpp", map[string]string{"/v1/models": `{"data":[{"id":"/models/m.gguf"}]}`, "/props": `{"build_info":"b10298-1234abc","version":"x"}`}, About{"m.gguf", "b10298-1234abc"}, false},
		{"llama_cpp", map[string]string{"/props": `{"build_info":{"version":"0.0.0"},"version":"0.0.0"}`}, About{Version: "0.0.0"}, false},
		{"triton", map[string]string{"/v2": `{"name":"triton","version":"2.38.0"}`}, About{Version: "2.38.0"}, false},
		{"ollama", map[string]string{"/api/version": `{"version":"0.9.0"}`}, About{Version: "0.9.0"}, false},
		{"sglang", nil, About{}, false}, // it is not asked
		{"vllm", nil, About{}, false},
		{"vllm", map[string]string{"/version": "<html>"}, About{}, false},
		{"vllm", map[string]string{"/version": `{"version":7}`}, About{}, false},
		{"vllm", map[string]string{"/version": `{"version":"` + strings.Repeat("x", 5000) + `"}`}, About{}, false},
		{"vllm", map[string]string{"/version": "loading"}, About{}, true},
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch text, ok := tt.at[r.URL.Path]; {
			case !ok:
				http.NotFound(w, r)
			case text == "loading":
				w.WriteHeader(http.StatusServiceUnavailable)
			default:
				_, _ = io.WriteString(w, text) // what the client does not get, it misses
			}
		}))
		u, err := url.Parse(s.URL + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		client := NewClient(&http.Transport{}, time.Minute)
		got, err := (&Target{URL: u, Client: client}).About(t.Context(), tt.provider)
		if diff := cmp.Diff(tt.want, got); diff != "" || (err != nil) != tt.failed {
			t.Errorf("%s with %v: %v (-want +got):\n%s", tt.provider, tt.at, err, diff)
		}
		client.CloseIdleConnections()
		s.Close()
	}
}

// Catches a version that becomes an engine of its own, or is given to another engine of the page.
func TestDescribe(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, page, version string
		want                []string
	}{
		{"alone", "vllm:num_requests_running{model_name=\"m\"} 1\n", "1.2", []string{
			"inference.engine.info{name=vllm model=m version=1.2} 1", "inference.request.count{name=vllm model=m state=running} 1",
		}},
		{"beside what the page says", "sglang:context_len{model_name=\"m\"} 8192\n", "1.2", []string{"inference.engine.info{name=sglang model=m limit=8192 version=1.2} 1"}},
		{"unknown", "vllm:num_requests_running{model_name=\"m\"} 1\n", "", []string{"inference.request.count{name=vllm model=m state=running} 1"}},
		{"two models", "nv_inference_request_success{model=\"a\"} 1\nnv_inference_request_success{model=\"b\"} 1\n", "2.38", []string{
			"inference.engine.info{name=triton version=2.38} 1", "inference.request.finished{name=triton model=a outcome=success} 1", "inference.request.finished{name=triton model=b outcome=success} 1",
		}},
		{"no engine", "go_goroutines 1\n", "1.2", []string{}},
	} {
		r := Read(promtext.Scan([]byte(tt.page)), "")
		r.Describe(tt.version)
		if diff := cmp.Diff(tt.want, lines(r)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}

// Catches an answer that ends the process.
func FuzzAnswers(f *testing.F) {
	f.Add([]byte(`{"model_id":"m","version":"1","release":2,"build_info":{},"data":[{"id":null,"owned_by":"tensorrt_llm"}],"models":[{"name":"a","size_vram":1e400}]}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if a := about(b); len(a.Model) > maxValue || len(a.Version) > maxValue {
			t.Errorf("%+v", a)
		}
		IsTensorRT(b)
		r, err := ReadOllama(b)
		if err != nil {
			return
		}
		for _, p := range r.Points {
			if !(p.Value >= 0 && p.Value < 1<<63) {
				t.Errorf("%s is %v", p.Metric.Name, p.Value)
			}
		}
	})
}
