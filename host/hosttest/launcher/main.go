// Command launcher starts and holds the children of a test: see hosttest.Launcher.
package main

import "a2e/host/sandbox"

func main() { sandbox.MaybeRunLauncher() }
