package cli

import "a2e/host/bench"

type benchCmd struct {
	bench.Options
}

// Run measures.
func (b benchCmd) Run(sys *System) error {
	ctx, stop := interruptible()
	defer stop()
	return fail(exitFailed, bench.Run(ctx, b.Options, sys.Out, sys.Err))
}
