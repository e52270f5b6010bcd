// Package kube says from the objects of the Kubernetes API why pods wait for accelerators, and in
// front of which free ones: what each pod asks for, what each node has left, what the scheduler said,
// and how the free devices are fragmented.
//
// It parses and computes only. Who reads the API passes objects to Cluster. Of pods that ask for no
// accelerator, only what they take from their node is kept.
//
// Claims of devices (DRA) are not counted yet: a pod that asks for devices only by a claim is not seen.
package kube
