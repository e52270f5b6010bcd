// Package watch looks for anomalies on a running machine: it puts what was traced beside what
// the devices and the host did at the same time, asks the tracer for single calls that are
// far too long, and keeps what was found in a file.
package watch
