package child

import (
	"context"
	"time"

	"a2e/host"
	"a2e/protocol"
)

// ProcRunner is a plugin that runs programs, for other plugins. Runner finds it.
type ProcRunner interface {
	// RunProc runs one program to its end, under the plugin's allow list and sandbox. A program that ran and failed is
	// no error; a *protocol.Error says why one could not run or did not end.
	RunProc(ctx context.Context, run ProcRun) (*ProcResult, error)
}

// ProcRun is a program to run.
type ProcRun struct {
	Cmd     []string          // a bare name of the allow list, and its arguments
	Cwd     string            // within the workspace; "" = its root
	Env     map[string]string // on top of what every child gets
	Stdin   string
	Timeout time.Duration // 0 = what the config says
}

// ProcResult is how a program ended. Bytes that are no UTF-8 are replaced by U+FFFD.
type ProcResult struct {
	Stdout, Stderr string
	ExitCode       int  // 128 + N when signal N ended it
	Truncated      bool // there was more output
}

// Runner returns the plugin that runs programs. The error says that there is none.
func Runner(s *host.Services) (ProcRunner, error) {
	if runner := host.First[ProcRunner](s); runner != nil {
		return runner, nil
	}
	return nil, protocol.Errorf(protocol.CodeCapabilityMissing, "no loaded plugin runs programs; the capability "+
		"proc does")
}
