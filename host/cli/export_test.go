package cli

import (
	"io"

	"github.com/alecthomas/kong"
	"github.com/rs/zerolog"

	"a2e/host/config"
	"a2e/host/dialect/httpd"
	"a2e/plugins"
)

// TakeStdout is takeStdout, for the test that prints to stdout as a library does.
var TakeStdout = takeStdout

// ServeAll serves as `a2e serve` does, on streams of a test.
func ServeAll(cfg *config.Config, log zerolog.Logger, in io.Reader, out io.Writer) error {
	return serveWith(cfg, hostOptions(cfg, log), speakAll, &System{Exit: func(int) {}}, in, out)
}

// WebServer returns the server of `a2e serve --http`, for loopback. end closes what its sessions share.
func WebServer(cfg *config.Config, log zerolog.Logger) (server *httpd.Server, end func() error) {
	shared := plugins.NewShared(cfg, log, nil)
	return httpd.New(sessionOptions(cfg, hostOptions(cfg, log), shared, true)), shared.Close
}

// Model returns kong's model of the command line.
func Model() (*kong.Application, error) {
	parser, err := kong.New(new(commands))
	if err != nil {
		return nil, err
	}
	return parser.Model, nil
}

// Markdown returns what the terminal shows of an answer that is sent in pieces.
func Markdown(columns int, pieces []string) (shown string) {
	m := markdown{columns: func() int { return columns }}
	for _, piece := range pieces {
		shown += m.write(piece)
	}
	return shown + m.flush()
}

// Printed reports whether the table of requests has a row for a command. path is the words of the command.
func Printed(path string) bool { return requests()[path].print != nil }
