//go:build linux

package cli_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gpumeter/gpumeter/internal/await"
)

// waitDropped waits until the agent says that it dropped that many points for good. The
// log says it at the first such request and once a minute: a test lets only one be dropped.
// This is the one place that knows where it is counted.
func (a *agent) waitDropped(want int) {
	a.t.Helper()
	await.NoError(a.t, func() error {
		got := 0
		for _, e := range a.entries() {
			if e["msg"] == "Exporting failed. Dropping data." && strings.HasSuffix(fmt.Sprint(e["otelcol.component.id"]), "/metrics") {
				got = int(e["total_items"].(float64))
			}
		}
		if got != want {
			return fmt.Errorf("%d points are said to be dropped, want %d", got, want)
		}
		return nil
	})
}

// retryInfo is a google.rpc.Status with a RetryInfo, in the wire format.
func retryInfo(seconds byte) []byte {
	field := func(number byte, value string) string { return string([]byte{number<<3 | 2, byte(len(value))}) + value }
	info := field(1, string([]byte{1 << 3, seconds})) // retry_delay.seconds
	detail := field(1, "type.googleapis.com/google.rpc.RetryInfo") + field(2, info)
	return []byte(string([]byte{1 << 3, byte(codes.ResourceExhausted)}) + field(2, "later") + field(3, detail))
}

// forGood is when a request that is dropped is sent again.
const forGood = time.Duration(-1)

// A request that the backend rejects with a retryable error is retried after the requested delay
// or a second, and nothing is lost. A permanently rejected request alone is dropped and counted.
func TestBackendRefuses(t *testing.T) {
	t.Parallel()
	var checks []func()
	// They wait most of the time, so that all of them run at once, and are checked in turn.
	f := func(name, protocol string, no refusal, again time.Duration) {
		b := newBackend(t)
		b.refuse = func(n int) *refusal {
			if n == 3 {
				return &no
			}
			return nil
		}
		b.up(protocol == "grpc")
		a := push(t, b, t.TempDir(), []string{"OTEL_EXPORTER_OTLP_PROTOCOL=" + protocol}, "--no-inference", "--interval", "250ms", "--log-level", "debug")
		checks = append(checks, func() { t.Run(name, func(t *testing.T) { checkRefused(t, a, b, no, again) }) })
	}
	const first = time.Second / 2 // the first wait is 1 s, give or take a half
	f("429", "", refusal{code: 429}, first)
	f("429 with Retry-After", "", refusal{code: 429, retryAfter: "2"}, 2*time.Second)
	f("502", "", refusal{code: 502}, first)
	f("503", "", refusal{code: 503}, first)
	f("503 with Retry-After", "", refusal{code: 503, retryAfter: "2"}, 2*time.Second)
	f("504", "", refusal{code: 504}, first)
	f("reset before it is read", "", refusal{unread: true}, first)
	f("reset after it is read", "", refusal{}, first)
	f("400", "", refusal{code: 400}, forGood)
	f("401", "", refusal{code: 401}, forGood)
	f("413", "", refusal{code: 413}, forGood)
	f("500", "", refusal{code: 500}, forGood)
	f("Unavailable", "grpc", refusal{err: status.Error(codes.Unavailable, "later")}, first)
	f("ResourceExhausted with RetryInfo", "grpc", refusal{err: status.Error(codes.ResourceExhausted, "later"), details: retryInfo(2)}, 2*time.Second)
	f("ResourceExhausted", "grpc", refusal{err: status.Error(codes.ResourceExhausted, "full")}, forGood)
	f("InvalidArgument", "grpc", refusal{err: status.Error(codes.InvalidArgument, "what")}, forGood)
	f("Unauthenticated", "grpc", refusal{err: status.Error(codes.Unauthenticated, "who")}, forGood)
	for _, check := range checks {
		check()
	}
}

// checkRefused checks what became of a, whose third request was refused as in no.
func checkRefused(t *testing.T, a *agent, b *backend, no refusal, again time.Duration) {
	t.Helper()
	b.waitTicks("", 8)
	due, points := a.ledger(), 0
	b.mu.Lock()
	if n := len(b.refused); n != 1 && !no.unread {
		t.Errorf("%d requests were refused, want 1", n)
	}
	if again == forGood {
		for _, tick := range b.refused {
			points += tick.total
			delete(due, tick.time.UnixNano())
		}
	} else if waited := b.asked[3].Sub(b.asked[2]); waited < again {
		t.Errorf("it was sent again after %s, want %s", waited, again)
	}
	b.mu.Unlock()
	await.NoError(t, func() error { return b.owes(due) })
	a.waitDropped(points)
	a.stop()
}
