//go:generate go tool -modfile=../../tools.mod mdatagen metadata.yaml

// Package gpuspanprocessor adds to spans what the GPUs of their process did while they ran, and to
// log records and metrics which GPUs those are.
//
// The sender is found by internal/sender, what its devices did by internal/timeline. The processor
// holds nothing back: a span gets what is known when it arrives. Existing attributes are never
// overwritten.
package gpuspanprocessor
