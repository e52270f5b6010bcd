// Package e2e runs the built program against the real things around it: Prometheus,
// VictoriaMetrics, the OpenTelemetry Collector's builder, and a Kubernetes with a kubelet
// and containers on this machine. make e2e runs it.
package e2e
