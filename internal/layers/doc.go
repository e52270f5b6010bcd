// Package layers tests the import rules between packages. It has no code.
package layers
