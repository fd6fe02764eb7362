//go:build race

package sandbox

// cycles is smaller here: each launcher is a slow, race-checked binary.
const cycles = 200
