//go:generate go tool -modfile=../../tools.mod mdatagen metadata.yaml

// Package pageexporter serves the latest metrics as a Prometheus page.
//
// A batch is turned into Prometheus families when it arrives (translate.go), kept
// until it is replaced or expires (store.go), and merged with the others into one
// page when somebody asks for it (page.go). Nothing is lost in silence: what can
// not be shown is counted on the page itself (dropped.go).
package pageexporter
