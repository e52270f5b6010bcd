// Package ledger sums what traced processes did by workload and device. Processes come and
// go; the sums of a workload only grow. It knows no metric: the cuda receiver names them.
package ledger
