//go:build race

package built

const withRace = true
