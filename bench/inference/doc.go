// Package inference measures what reading the pages of inference engines costs, in one run with the prometheus
// receiver of the Collector, which reads the same pages in the same build. It needs make collector.
package inference
