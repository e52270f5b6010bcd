// Package selfreceiver feeds the Collector's own metrics into its pipelines: what exporters sent, queued
// and lost, and the resource use of the process. The page and the backend get them without another
// port.
package selfreceiver
