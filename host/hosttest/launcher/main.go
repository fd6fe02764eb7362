// Command launcher is the sandbox launcher for the children of a test: see hosttest.Launcher.
package main

import "a2e/host/sandbox"

func main() { sandbox.MaybeRunLauncher() }
