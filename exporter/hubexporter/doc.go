//go:generate go tool -modfile=../../tools.mod mdatagen metadata.yaml

// Package hubexporter writes metrics and log records into the store of a hub. A call
// that returns nil has been written to disk, so that an OTLP receiver before it may say
// that it has them.
//
// Metrics become series as where Prometheus takes OTLP itself (convert.go, value.go), log
// records become events (event.go). OTLP is taken here, too (otlp.go): a Collector's
// receiver cannot tell the sender that a part was refused.
package hubexporter
