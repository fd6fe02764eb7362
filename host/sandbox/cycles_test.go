//go:build !race

package sandbox

// cycles is how often TestCycles starts a child.
const cycles = 1000
