// Package trainingprocessor takes what training loops report of themselves by OTLP into the vocabulary of
// package training: it renames and converts their metrics, refuses and counts what cannot be meant, and adds
// the workload of the sender. It changes no other metric.
package trainingprocessor
