// Package e2e runs the built program against the real things around it: Prometheus,
// VictoriaMetrics, and the OpenTelemetry Collector's builder. make e2e runs it.
package e2e
