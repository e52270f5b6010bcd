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
				"endpoint": "http://me:longpassword@host:1/v1",
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
	f(`value of-a-list`, `value [REDACTED]`)
	f(`http://me:longpassword@host:1 Basic bWU6bG9uZ3Bhc3N3b3Jk`, `http://me:[REDACTED]@host:1 Basic [REDACTED]`)
}
