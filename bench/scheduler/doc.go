// Package scheduler measures what the elected agent takes that watches the pods and nodes of a large Kubernetes cluster, beside the
// same agent without --scheduler, and counts its requests to the API server. make bench runs it.
package scheduler
