package cli

import (
	"io"
	"os"
	"time"

	"github.com/rs/zerolog"
	"github.com/rs/zerolog/diode"
)

const (
	logLines = 1000                   // kept while nobody reads; the oldest are dropped
	logDrain = 100 * time.Millisecond // what closing waits for
)

// openLog opens the log. Writing to it never blocks: parents often pipe stderr
// and never read it, and past the pipe's 64 KiB a blocking write would freeze
// the host. close waits a moment for what is still to be written.
func (c *commands) openLog(sys *System) (log zerolog.Logger, closeLog func(), err error) {
	level, err := zerolog.ParseLevel(c.LogLevel)
	if err != nil {
		return zerolog.Nop(), nil, fail(exitUsage, err)
	}
	var dst io.Writer = struct{ io.Writer }{sys.Err} // closing the log leaves stderr open
	var file *os.File
	if c.LogFile != "" {
		if file, err = os.OpenFile(c.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
			return zerolog.Nop(), nil, fail(exitConfig, err)
		}
		dst = file
	}
	ring := diode.NewWriter(sys.secrets.Whole(dst), logLines, 0, func(int) {})
	closeLog = func() {
		closed := make(chan struct{})
		go func() {
			ring.Close()
			close(closed)
		}()
		select {
		case <-closed:
		case <-time.After(logDrain):
		}
		if file != nil {
			file.Close()
		}
	}
	return zerolog.New(ring).Level(level).With().Timestamp().Logger(), closeLog, nil
}
