// Package selfreceiver passes what the Collector measures of itself into its own
// pipelines: what its exporters sent, keep and lost, what its processes cost. The page
// and the backend then have it without another port.
package selfreceiver
