package redact

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What a configuration has of secrets is in no line, in whole or in part, quoted or not.
func TestRedactor(t *testing.T) {
	r := &Redactor{}
	conf := map[string]any{
		"exporters": map[string]any{
			"otlp_http": map[string]any{
				"endpoint": "http://me:longpassword@host:1/v1?key=a-token%2Fof+ours&n=1",
				"headers":  map[string]any{"authorization": "Bearer token-of-ours", "tenant": "1", "quoted": `a "b" c\d`},
			},
			"otlp_grpc": map[string]any{"headers": []any{map[string]any{"name": "api-key", "value": "of-a-list"}}},
		},
	}
	for range 2 { // a reload
		r.Learn(conf)
	}
	f := func(line, want string) {
		t.Helper()
		var b bytes.Buffer
		w := r.Writer(&b)
		n, err := w.Write([]byte(line))
		if n != len(line) || err != nil {
			t.Errorf("%d bytes of %d were written: %v", n, len(line), err)
		}
		if diff := cmp.Diff(want, b.String()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", line, diff)
		}
	}
	f(`{"msg":"nothing of the 1 kind at host:1"}`, `{"msg":"nothing of the 1 kind at host:1"}`)
	f(`Message=Bearer token-of-ours, or token-of-ours`, `Message=[REDACTED], or [REDACTED]`)
	f(`{"error":"a \"b\" c\\d"}`, `{"error":"[REDACTED]"}`)
	f(`Post "http://host:1/v1?key=a-token%2Fof+ours&n=1": key a-token/of ours`, `Post "http://host:1/v1?key=[REDACTED]&n=1": key [REDACTED]`)
	f(`value of-a-list`, `value [REDACTED]`)
	f(`http://me:longpassword@host:1 Basic bWU6bG9uZ3Bhc3N3b3Jk`, `http://me:[REDACTED]@host:1 Basic [REDACTED]`)
}

// Catches a token in the query of a URL that is printed.
func TestConfig(t *testing.T) {
	got := Config(map[string]any{
		"endpoint": "http://me:longpassword@host:1/v1?key=sekrit&n=1",
		"bare":     "https://host/?sekrit",
		"Headers":  map[string]any{"a": "sekrit"},
		"text":     "what? a=b",
	})
	want := map[string]any{
		"endpoint": "http://me:xxxxx@host:1/v1?key=[REDACTED]&n=[REDACTED]",
		"bare":     "https://host/?[REDACTED]",
		"Headers":  map[string]any{"a": "[REDACTED]"},
		"text":     "what? a=b",
	}
	if diff := cmp.Diff(any(want), got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
