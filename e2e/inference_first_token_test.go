//go:build e2e

package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Catches a time to the first token that is not what a client measures with a clock of its own: in another unit, of
// other requests, or of another part of the answer.
//
// The engine's time is within the client's, and at least what the engine was told to take.
func TestInferenceFirstToken(t *testing.T) {
	t.Parallel()
	e := vllmLike(t)
	e.start()
	address := start(t, gpumeter(t), "hub", "--data-dir", filepath.Join(t.TempDir(), "hub"), "--listen", "127.0.0.1:0", "--listen-grpc", "").find(t, hubAddress)
	hub := server{t, address}
	start(t, gpumeter(t), "agent", "--no-inference", "--inference-target", e.url("/metrics"), "--interval", "1s", "--slow-interval", "1s",
		"--listen", "127.0.0.1:0", "--socket", "", "--state-dir", t.TempDir(), "--no-standby", "--no-cloud", "--otlp-endpoint", address).find(t, pageAddress)
	hub.wait("inference_scrape_up == 1") // what the engine served before its first page was read counts for nobody

	const requests = 12
	var least, most time.Duration
	for i := range requests {
		began := time.Now()
		tokens := e.stream(1+40*i, func() { most += time.Since(began) })
		least += prefillOverhead + time.Duration(tokens)*prefillPerToken
	}
	hub.wait(fmt.Sprintf("sum(gen_ai_server_time_to_first_token_seconds_count) == %d", requests))
	sum, err := strconv.ParseFloat(hub.number("sum(gen_ai_server_time_to_first_token_seconds_sum)"), 64)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("first tokens of %d requests: %.3f s by the engine, %.3f s by the client, at least %.3f s", requests, sum, most.Seconds(), least.Seconds())
	const rounding = 1e-6
	if sum < least.Seconds()-rounding || sum > most.Seconds() {
		t.Errorf("the first tokens of %d requests took %v s, want %v to %v", requests, sum, least.Seconds(), most.Seconds())
	}
	// All of them are within the bounds of the slowest and the fastest.
	slowest, err := strconv.ParseFloat(hub.number("histogram_quantile(1, sum by (le) (gen_ai_server_time_to_first_token_seconds_bucket))"), 64)
	if err != nil {
		t.Fatal(err)
	}
	if want := (prefillOverhead + 441*prefillPerToken).Seconds(); slowest < want {
		t.Errorf("the slowest first token took %v s, want %v and more", slowest, want)
	}
}

// stream sends one request, calls first when the first token is there, and returns the tokens of the prompt.
func (e *engine) stream(words int, first func()) int {
	e.t.Helper()
	resp, err := e.post(words, map[string]any{"stream": true, "stream_options": map[string]any{"include_usage": true}})
	if err != nil {
		e.t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		e.t.Fatalf("%s: %s", resp.Status, text)
	}
	lines := bufio.NewScanner(resp.Body)
	answered, tokens := false, 0
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if ok && !answered {
			answered = true
			first()
		}
		if _, n, ok := strings.Cut(data, `"prompt_tokens":`); ok {
			_, _ = fmt.Sscan(n, &tokens)
		}
	}
	if err := lines.Err(); err != nil || tokens == 0 {
		e.t.Fatalf("the answer ends with %v, and says %d tokens", err, tokens)
	}
	return tokens
}
