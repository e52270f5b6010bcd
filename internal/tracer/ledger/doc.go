// Package ledger sums the activity of traced processes by workload and device. Processes come and go;
// the sums of a workload only grow. The package knows no metrics: the cuda receiver names them.
package ledger
