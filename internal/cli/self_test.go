//go:build linux

package cli_test

import (
	"fmt"
	"strings"
	"testing"
)

// Data dropped because of a permanent rejection or a full queue shows on the page, in points and
// with the labels of the machine. Otherwise nobody would notice.
func TestLossesOnPage(t *testing.T) {
	t.Parallel()
	refused := newBackend(t)
	refused.refuse = func(n int) *refusal {
		if n == 3 {
			return &refusal{code: 400}
		}
		return nil
	}
	refused.up(false)
	away := newBackend(t) // never comes
	a := startConfig(t, fmt.Sprintf(`
extensions:
  gpu: {interval: 100ms, simulate: h100, host_name: host}
receivers:
  gpu:
  self: {interval: 100ms}
exporters:
  page: {endpoint: "localhost:0"}
  otlp_http/refused: {endpoint: "http://%s"}
  otlp_http/away:
    endpoint: "http://%s"
    sending_queue: {num_consumers: 1, sizer: requests, queue_size: 2}
service:
  extensions: [gpu]
  pipelines:
    metrics: {receivers: [gpu], exporters: [page, otlp_http/refused]}
    metrics/self: {receivers: [self], exporters: [page]}
    metrics/away: {receivers: [gpu], exporters: [otlp_http/away]}
`, refused.addr, away.addr))
	const labels = `gpumeter_simulated="true",host_name="host"`
	p := a.waitPage(func(p page) error {
		for series, ok := range map[string]func(float64) bool{
			`otelcol_exporter_send_failed_metric_points_total{error_type="InvalidArgument",exporter="otlp_http/refused",` + labels + `}`: func(v float64) bool {
				refused.mu.Lock()
				defer refused.mu.Unlock()
				return len(refused.refused) == 1 && v == float64(refused.refused[0].total)
			},
			`otelcol_exporter_enqueue_failed_metric_points_total{exporter="otlp_http/away",` + labels + `}`:       func(v float64) bool { return v >= 600 },
			`otelcol_exporter_queue_size{data_type="metrics",exporter="otlp_http/away",` + labels + `}`:           func(v float64) bool { return v == 2 },
			`gpumeter_component_up{` + labels + `,otelcol_component_id="page",otelcol_component_kind="exporter"}`: func(v float64) bool { return v == 1 },
		} {
			if v, found := p[series]; !found || !ok(v) {
				return fmt.Errorf("%s is %v", series, v)
			}
		}
		return nil
	})
	for series := range p {
		if strings.HasPrefix(series, "otelcol_") && !strings.Contains(series, labels) {
			t.Errorf("%s does not say which machine it is of", series)
		}
	}
	a.stop()
}
