// Package live reads a cluster from the Kubernetes API server.
package live
