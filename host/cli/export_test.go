package cli

import (
	"io"

	"github.com/alecthomas/kong"
	"github.com/rs/zerolog"

	"a2e/host/config"
)

// TakeStdout is takeStdout, for the test that prints where a library would.
var TakeStdout = takeStdout

// ServeAll serves as `a2e serve` does, on streams of a test.
func ServeAll(cfg *config.Config, log zerolog.Logger, in io.Reader, out io.Writer) error {
	return serveWith(cfg, hostOptions(cfg, log), speakAll, &System{Exit: func(int) {}}, in, out)
}

// Model is the command line as kong has it.
func Model() (*kong.Application, error) {
	parser, err := kong.New(new(commands))
	if err != nil {
		return nil, err
	}
	return parser.Model, nil
}

// Runs reports whether run would run a command.
func Runs(command any) bool { return runner(command) != nil }
