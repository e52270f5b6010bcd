// Package attribution measures the cost of attributing devices to workloads: the agent with and without
// Kubernetes, and the workload processor next to contrib's k8sattributes processor on the same pods. make
// bench runs it.
package attribution
