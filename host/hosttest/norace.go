//go:build !race

package hosttest

const withRace = false
