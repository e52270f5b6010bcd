//go:build race

package days

// defaultWorlds are few: a world is computed by one goroutine, ten times slower with the race detector.
const defaultWorlds = 5
