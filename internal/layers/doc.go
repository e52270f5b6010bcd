// Package layers holds the rules of who may import whom, as tests. It has no code.
package layers
