// Package agent measures the cost of the agent, in one run with the bare driver calls for the same data and
// with other exporters found on PATH. make bench runs it.
package agent
