// Package dra understands devices that pods ask for by claims: ResourceClaims, ResourceSlices and DeviceClasses of
// resource.k8s.io in its versions v1, v1beta2 and v1beta1. It says which devices a node has, which of them are whole ones,
// which claims have them, and what a claim waits for.
//
// A class selects devices by expressions. Only comparisons of the driver, the type and the model with a text are evaluated;
// every other condition is assumed to hold. So a class may seem to have more devices than it has, and the scheduler's words
// say the rest. A class belongs to the first driver of accelerators that it names.
package dra
