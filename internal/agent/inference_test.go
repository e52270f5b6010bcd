//go:build linux

package agent

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumeter/gpumeter/internal/local"
)

// Catches an agent that does not look for engines unless it is told to, that looks although it must not, and one whose
// targets are lost with that.
func TestInferenceSettings(t *testing.T) {
	t.Parallel()
	pages := []any{map[string]any{"url": "http://localhost:8000/metrics"}}
	for _, tt := range []struct {
		name      string
		inference Inference
		config    local.Config
		want      map[string]any
	}{
		{"by default", Inference{}, local.Config{Interval: time.Second}, map[string]any{"discover": true, "targets": []any{}, "interval": "10s", "proc": "/proc"}},
		{"a slow agent in a container", Inference{}, local.Config{Interval: time.Minute, Root: "/host"}, map[string]any{"discover": true, "targets": []any{}, "interval": "1m0s", "proc": "/host/proc"}},
		{"off", Inference{Off: true}, local.Config{}, nil},
		{"off, with a page", Inference{Off: true, Targets: []string{"http://localhost:8000/metrics"}}, local.Config{}, map[string]any{"discover": false, "targets": pages, "interval": "10s", "proc": "/proc"}},
		{"with a page", Inference{Targets: []string{"http://localhost:8000/metrics"}}, local.Config{}, map[string]any{"discover": true, "targets": pages, "interval": "10s", "proc": "/proc"}},
	} {
		if diff := cmp.Diff(tt.want, tt.inference.settings(tt.config)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
}
