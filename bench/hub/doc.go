// Package hub measures what a hub takes to keep and to show a fleet, side by side with
// Prometheus' own OTLP endpoint on the same input:
//
//	go test -tags bench -count 1 -v -timeout 60m ./bench/hub -gpus 1000
package hub
