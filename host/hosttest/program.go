package hosttest

import "a2e/host/hosttest/built"

// Names of package built, for tests that import this package anyway.
const (
	Built        = built.Folder
	BuildCommand = built.Command
)

// See package built.
var (
	BuildProgram = built.Build
	Program      = built.Program
	Launcher     = built.Launcher
)
