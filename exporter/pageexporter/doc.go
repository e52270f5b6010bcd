//go:generate go tool -modfile=../../tools.mod mdatagen metadata.yaml

// Package pageexporter serves the latest metrics as a Prometheus page.
//
// A batch is converted to Prometheus families when a page needs it (translate.go), kept until
// it is replaced or expires (store.go), and merged with the others on scrape (page.go).
// Nothing is lost silently: what cannot be shown is counted on the page itself (dropped.go).
// The exporter needs only a port; it keeps no history and does not push.
package pageexporter
