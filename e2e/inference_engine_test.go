//go:build e2e

package e2e

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// engine is an inference engine written by others, and its only client.
type engine struct {
	t        *testing.T
	provider string // as in gen_ai.provider.name
	model    string
	port     string
	argv     []string
	client   *http.Client // http.DefaultClient if nil
	metrics  []engineMetric
	// quiet has the series of the engine's page that count what the client receives.
	quiet func(u usage) map[string]int

	p    *process
	used usage // of this process
}

// usage is what a client is told about its requests.
type usage struct {
	requests, in, cached, out int
}

func (u *usage) add(more usage) {
	u.requests += more.requests
	u.in += more.in
	u.cached += more.cached
	u.out += more.out
}

// How long vllmLike takes to the first token.
const (
	prefillOverhead = 2 * time.Millisecond
	prefillPerToken = time.Millisecond
)

// vllmLike returns llm-d's simulator of vLLM: it has no model, and answers with the words of the prompt.
// Its first token takes longer the longer the prompt is.
func vllmLike(t *testing.T) *engine {
	t.Helper()
	const program = "llmdsim"
	path, err := exec.LookPath(program)
	if err != nil {
		skip(t, program, err)
	}
	e := &engine{t: t, provider: "vllm", model: "org/tiny", metrics: vllmMetrics}
	e.place(path, "--model", e.model, "--force-dummy-tokenizer", "--mode", "echo", "--max-num-seqs", "4", "--max-waiting-queue-length", "64",
		"--prefill-overhead", prefillOverhead.String(), "--prefill-time-per-token", prefillPerToken.String(), "--inter-token-latency", "4ms", "--inter-token-latency-std-dev", "1ms", "--seed", "1", "--port")
	e.quiet = func(u usage) map[string]int {
		n := map[string]int{"vllm:num_requests_running": 0, "vllm:prompt_tokens_total": u.in, "vllm:generation_tokens_total": u.out, "vllm:inter_token_latency_seconds_count": u.out - u.requests}
		for _, histogram := range []string{"time_to_first_token", "e2e_request_latency", "request_prefill_time", "request_decode_time", "request_inference_time"} {
			n["vllm:"+histogram+"_seconds_count"] = u.requests
		}
		return n
	}
	return e
}

// llama returns the server of llama.cpp with a model that runs on any processor.
func llama(t *testing.T) *engine {
	t.Helper()
	const program = "llama-server"
	path, err := exec.LookPath(program)
	if err != nil {
		skip(t, "llamacpp", err)
	}
	e := &engine{t: t, provider: "llama_cpp", model: "tiny.gguf", metrics: llamaMetrics}
	file := filepath.Join(t.TempDir(), e.model)
	writeModel(t, file)
	e.place(path, "--model", file, "--metrics", "--host", "127.0.0.1", "--threads", "1", "--port")
	e.quiet = func(u usage) map[string]int {
		return map[string]int{
			"llamacpp:requests_processing": 0, "llamacpp:prompt_tokens_total": u.in - u.cached, "llamacpp:prompt_tokens_cached_total": u.cached,
			"llamacpp:tokens_predicted_total": u.out,
		}
	}
	return e
}

// place gives the engine a port, which is the last argument of its command line.
func (e *engine) place(argv ...string) {
	_, e.port, _ = strings.Cut(freeAddress(e.t), ":")
	e.argv = slices.Concat(argv, []string{e.port})
}

func (e *engine) url(path string) string { return "http://127.0.0.1:" + e.port + path }

// start starts the engine, or starts it again.
func (e *engine) start() {
	e.t.Helper()
	e.used = usage{}
	e.p = service(e.t, e.argv...)
	eventually(e.t, e.provider+" is ready", func() error {
		select {
		case <-e.p.done:
			e.t.Fatalf("%s has ended", e.provider)
		default:
		}
		_, err := get(e.t, e.url("/health"))
		return err
	})
}

// kill ends the engine without warning.
func (e *engine) kill() {
	e.t.Helper()
	if err := e.p.cmd.Process.Kill(); err != nil {
		e.t.Fatal(err)
	}
	<-e.p.done
}

// load sends requests, a few at a time, whose prompts have some number of words, and waits until the engine
// itself has counted them.
func (e *engine) load(requests int, words func(request int) int) {
	e.t.Helper()
	const atATime = 6 // more than vllmLike works on: some wait
	var mu sync.Mutex
	var errs []error
	var running sync.WaitGroup
	next := make(chan int)
	for range atATime {
		running.Go(func() {
			for i := range next {
				u, err := e.ask(words(i))
				mu.Lock()
				e.used.add(u)
				if err != nil {
					errs = append(errs, err)
				}
				mu.Unlock()
			}
		})
	}
	for i := range requests {
		next <- i
	}
	close(next)
	running.Wait()
	if err := errors.Join(errs...); err != nil {
		e.t.Fatal(err)
	}
	eventually(e.t, e.provider+" has counted all requests", func() error {
		page, err := get(e.t, e.url("/metrics"))
		if err != nil {
			return err
		}
		for name, want := range e.quiet(e.used) {
			m := regexp.MustCompile(`(?m)^` + name + `(?:\{[^}]*\})? (\S+)$`).FindStringSubmatch(page)
			if m == nil && want > 0 {
				return fmt.Errorf("no %s", name)
			}
			if m != nil && m[1] != strconv.Itoa(want) {
				return fmt.Errorf("%s is %s, want %d", name, m[1], want)
			}
		}
		return nil
	})
}

// post sends one request whose prompt has some number of words.
func (e *engine) post(words int, more map[string]any) (*http.Response, error) {
	request := map[string]any{"model": e.model, "prompt": strings.TrimSpace(strings.Repeat("word ", words)), "max_tokens": 8}
	maps.Copy(request, more)
	body, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(e.t.Context(), http.MethodPost, e.url("/v1/completions"), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	return cmp.Or(e.client, http.DefaultClient).Do(r)
}

// ask sends one request and returns what the answer says about its tokens.
func (e *engine) ask(words int) (usage, error) {
	resp, err := e.post(words, nil)
	if err != nil {
		return usage{}, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, text)
	}
	if err != nil {
		return usage{}, err
	}
	var answer struct {
		Usage struct {
			In      int `json:"prompt_tokens"`
			Out     int `json:"completion_tokens"`
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return usage{}, err
	}
	return usage{1, answer.Usage.In, answer.Usage.Details.Cached, answer.Usage.Out}, nil
}
