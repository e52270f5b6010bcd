// Package attribution measures what it costs to know whose work is on the devices: the
// agent with and without Kubernetes, and the workload processor beside contrib's
// k8sattributes processor on the same pods. make bench runs it.
package attribution
