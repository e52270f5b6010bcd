//go:build !race

package days

const defaultWorlds = 50
