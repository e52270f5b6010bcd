// Package hub measures what a hub needs to store and show a fleet, next to Prometheus' own OTLP endpoint on
// the same input:
//
//	go test -tags bench -count 1 -v -timeout 60m ./bench/hub -gpus 1000
package hub
