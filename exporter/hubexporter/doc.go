//go:generate go tool -modfile=../../tools.mod mdatagen metadata.yaml

// Package hubexporter writes OTLP metrics and log records to the hub's store. When a call
// returns nil, the data is on disk, so an OTLP receiver in front of it may acknowledge it.
//
// Metrics become series as in Prometheus' OTLP receiver (convert.go, value.go); log records
// become events (event.go). The package also implements OTLP over HTTP and gRPC (otlp.go,
// grpc.go), because the Collector's receiver can neither report partial success nor reject a
// request before decoding it; see docs/adr/0011. It needs no privileges and does not accept
// traces.
package hubexporter
