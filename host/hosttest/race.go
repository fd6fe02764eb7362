//go:build race

package hosttest

const withRace = true
