// Command a2e is an agent-to-environment host: an agent spawns it, writes NDJSON
// requests to its stdin and reads the answers from its stdout.
package main

import (
	"embed"
	"os"

	"a2e/host/cli"
	"a2e/host/sandbox"
	"a2e/plugins/skill/run"
)

// pages has the pages that `a2e help` prints.
//
//go:embed README.md plugins/README.md plugins/*/README.md
//go:embed protocol/README.md protocol/client/README.md protocol/recipes/README.md
//go:embed host/*/README.md host/cli/*/README.md host/dialect/*/README.md host/observe/*/README.md
//go:embed host/state/*/README.md
var pages embed.FS

func main() {
	sandbox.MaybeRunLauncher() // this binary also runs itself as the launcher of each child
	run.MaybeRunModule()       // and to run a WebAssembly module in the sandbox
	os.Exit(cli.Main(os.Args[1:], cli.System{
		In: os.Stdin, Out: cli.NewOutput(os.Stdout), Err: os.Stderr, Environ: os.Environ(), Exit: os.Exit, Pages: pages,
	}))
}
