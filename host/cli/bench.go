package cli

import "a2e/host/bench"

type benchCmd struct {
	bench.Options
}

// Help implements kong.HelpProvider.
func (benchCmd) Help() string {
	return "Examples:\n  a2e bench --quick\n  a2e bench --vs 'node server.js' -- ./a2e serve"
}

// Run measures.
func (b benchCmd) Run(sys *System) error {
	ctx, stop := interruptible()
	defer stop()
	return fail(exitFailed, bench.Run(ctx, b.Options, sys.Out, sys.Err))
}
