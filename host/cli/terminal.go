package cli

import (
	"fmt"
	"math"
	"os"
	"strconv"
	"time"

	"github.com/mattn/go-isatty"
	"golang.org/x/term"
)

const (
	usualColumns = 80            // of a terminal that does not tell
	unbounded    = math.MaxInt32 // columns of a pipe or a file: there is nothing to fit into
)

// columns is how wide the output may be.
func (s *System) columns() int { return s.columnsOf(s.Out.File) }

// columnsOf is how wide what is written to a file may be: what COLUMNS asks for on a terminal,
// or else its width. What goes elsewhere is read by programs, and never cut.
func (s *System) columnsOf(file *os.File) int {
	if !isatty.IsTerminal(file.Fd()) {
		return unbounded
	}
	if n, err := strconv.Atoi(s.getenv("COLUMNS")); err == nil && n > 0 {
		return n
	}
	if wide, _, err := term.GetSize(int(file.Fd())); err == nil && wide > 0 {
		return wide
	}
	return usualColumns
}

// rows is how many lines the terminal has.
func (s *System) rows() int {
	if n, err := strconv.Atoi(s.getenv("LINES")); err == nil && n > 4 {
		return n
	}
	if _, high, err := term.GetSize(int(s.Err.Fd())); err == nil && high > 4 {
		return high
	}
	return liveRows
}

// showsLive reports whether stderr is a terminal that a line can be drawn anew on.
func (s *System) showsLive() bool {
	return isatty.IsTerminal(s.Err.Fd()) && s.getenv("TERM") != "dumb"
}

// colors reports whether what is written to a file may be colored.
func (s *System) colors(file *os.File) bool {
	return isatty.IsTerminal(file.Fd()) && s.getenv("NO_COLOR") == "" && s.getenv("TERM") != "dumb"
}

// waiting tells the person at a terminal, from a second on, what is waited for and how long
// already, on one line of stderr that done takes away. Elsewhere it tells nothing. Nothing else
// may be written to stderr before done.
func (s *System) waiting(what func() string) (done func()) {
	if !s.showsLive() {
		return func() {}
	}
	stop, ended := make(chan struct{}), make(chan struct{})
	begun := time.Now()
	go func() {
		defer close(ended)
		clock := time.NewTicker(quietFor)
		defer clock.Stop()
		for {
			select {
			case <-clock.C:
				line := fmt.Sprintf("%s… %s", oneLine(what()), time.Since(begun).Round(time.Second))
				fmt.Fprint(s.Err, "\r\x1b[2K", cut(line, s.columnsOf(s.Err)-1))
			case <-stop:
				if time.Since(begun) >= quietFor {
					fmt.Fprint(s.Err, "\r\x1b[2K")
				}
				return
			}
		}
	}()
	return func() {
		close(stop)
		<-ended
	}
}

// waitingFor is waiting for what has one name.
func (s *System) waitingFor(what string) (done func()) {
	return s.waiting(func() string { return what })
}
