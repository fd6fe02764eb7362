package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"a2e/host/bench"
	"a2e/protocol"
)

type versionCmd struct{}

// Run prints the version of the module, the protocol and Go.
func (versionCmd) Run(sys *System) error {
	_, err := fmt.Fprintf(sys.Out, "a2e %s protocol %s %s %s/%s\n", version(), protocol.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}

// version is that of the module, or of the commit it was built from.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	return info.Main.Version
}

type benchCmd struct {
	bench.Options
}

// Run measures.
func (b benchCmd) Run(sys *System) error {
	ctx, stop := interruptible()
	defer stop()
	return fail(exitFailed, bench.Run(ctx, b.Options, sys.Out, sys.Err))
}
