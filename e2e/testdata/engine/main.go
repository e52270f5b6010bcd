// Engine runs in the containers of e2e. It has two commands:
//
//	engine get URL                   succeeds if a server answers, as curl --fail does
//	engine serve MODEL PORT RANKS    is an inference engine behind data parallelism
//
// The engine is built like vLLM's: one server divides the requests among ranks, each of which has a process and
// a device of its own, and shows what all of them counted on one page, by rank. It knows no language.
package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 2 && args[0] == "get":
		return get(args[1])
	case len(args) == 4 && args[0] == "serve":
		ranks, err := strconv.Atoi(args[3])
		if err != nil {
			return err
		}
		return serve(args[1], args[2], ranks)
	case len(args) == 1 && args[0] == "rank":
		<-ended()
		return nil
	}
	return fmt.Errorf("unknown command %q", args)
}

func get(url string) error {
	resp, err := http.Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, resp.Status)
	}
	return nil
}

func ended() <-chan os.Signal {
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM, syscall.SIGINT) // as PID 1 it gets only signals that it handles
	return end
}

func serve(model, port string, ranks int) error {
	end := ended()
	for range ranks {
		p := exec.Command("/proc/self/exe", "rank")
		p.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
		if err := p.Start(); err != nil {
			return err
		}
	}
	e := newEngine(model, ranks)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /v1/models", e.models)
	mux.HandleFunc("POST /v1/completions", e.complete)
	mux.Handle("GET /metrics", promhttp.HandlerFor(e.page, promhttp.HandlerOpts{}))
	l, err := net.Listen("tcp4", ":"+port)
	if err != nil {
		return err
	}
	failed := make(chan error, 1)
	go func() { failed <- http.Serve(l, mux) }()
	select {
	case err := <-failed:
		return err
	case <-end:
		return nil
	}
}

// engine counts under the names and labels of vLLM.
type engine struct {
	model string
	ranks int
	turn  atomic.Uint32 // of the rank that has the next request

	page     *prometheus.Registry
	running  *prometheus.GaugeVec
	in, out  *prometheus.CounterVec
	finished *prometheus.CounterVec
	first    *prometheus.HistogramVec
}

func newEngine(model string, ranks int) *engine {
	labels := []string{"engine", "model_name"}
	counter := func(name string, more ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "vllm:" + name, Help: name}, append(more, labels...))
	}
	e := &engine{
		model: model, ranks: ranks, page: prometheus.NewRegistry(),
		running: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "vllm:num_requests_running", Help: "requests in execution"}, labels),
		in:      counter("prompt_tokens_total"), out: counter("generation_tokens_total"), finished: counter("request_success_total", "finished_reason"),
		first: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "vllm:time_to_first_token_seconds", Help: "time to first token"}, labels),
	}
	e.page.MustRegister(e.running, e.in, e.out, e.finished, e.first, collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	for rank := range ranks { // vLLM has these before the first request
		l := []string{strconv.Itoa(rank), model}
		e.running.WithLabelValues(l...)
		e.in.WithLabelValues(l...)
		e.out.WithLabelValues(l...)
		e.first.WithLabelValues(l...)
		e.finished.WithLabelValues(append([]string{"length"}, l...)...)
	}
	return e
}

func (e *engine) models(w http.ResponseWriter, _ *http.Request) {
	answer(w, map[string]any{"object": "list", "data": []any{map[string]any{"id": e.model, "object": "model", "owned_by": "vllm"}}})
}

// perToken is how long a token takes.
const perToken = 4 * time.Millisecond

// complete answers with as many tokens as the prompt has words.
func (e *engine) complete(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	var request struct {
		Prompt string `json:"prompt"`
		Max    int    `json:"max_tokens"`
	}
	if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	l := []string{strconv.Itoa(int(e.turn.Add(1)) % e.ranks), e.model}
	e.running.WithLabelValues(l...).Inc()
	defer e.running.WithLabelValues(l...).Dec()
	in := len(strings.Fields(request.Prompt))
	out := min(in, request.Max)
	time.Sleep(perToken)
	e.first.WithLabelValues(l...).Observe(time.Since(began).Seconds())
	time.Sleep(time.Duration(out-1) * perToken)
	e.in.WithLabelValues(l...).Add(float64(in))
	e.out.WithLabelValues(l...).Add(float64(out))
	e.finished.WithLabelValues(append([]string{"length"}, l...)...).Inc()
	answer(w, map[string]any{
		"object": "text_completion", "model": e.model,
		"choices": []any{map[string]any{"text": strings.Join(strings.Fields(request.Prompt)[:out], " "), "finish_reason": "length"}},
		"usage":   map[string]any{"prompt_tokens": in, "completion_tokens": out, "total_tokens": in + out},
	})
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the client is gone: nobody to tell
}
