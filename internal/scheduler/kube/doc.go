// Package kube says from the objects of the Kubernetes API why pods wait for accelerators, and in
// front of which free ones: what each pod asks for, what each node has left, what the scheduler said,
// and how the free devices are fragmented.
//
// It parses and computes only. Who reads the API passes objects to Cluster. Of pods that ask for no
// accelerator, only what they take from their node is kept.
//
// A pod may ask for devices by resources of device plugins, or by claims (see dra). Claims are resolved when the pod or its
// claims change, and at each Snapshot.
package kube
