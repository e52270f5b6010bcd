//go:build !race

package cost

const defaultWorlds = 50
