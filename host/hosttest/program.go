package hosttest

import "a2e/host/hosttest/built"

// The names of package built, for tests that use this package anyway.
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
