package cli

import (
	"fmt"
	"io"
	"strconv"
	"strings"
)

// canvas is lines on a terminal that are drawn anew in place.
type canvas struct {
	w     io.Writer
	drawn int // lines on the terminal
}

// draw draws lines in place of those before, of which there were no more.
func (c *canvas) draw(lines []string) {
	var b strings.Builder
	c.up(&b)
	for _, line := range lines {
		b.WriteString("\r\x1b[2K" + line + "\n")
	}
	c.drawn = len(lines)
	_, _ = io.WriteString(c.w, b.String()) // a terminal that is gone shows nothing
}

// erase takes the lines away, so that others can be written where they were.
func (c *canvas) erase() {
	if c.drawn == 0 {
		return
	}
	var b strings.Builder
	c.up(&b)
	b.WriteString("\r\x1b[J")
	c.drawn = 0
	_, _ = io.WriteString(c.w, b.String())
}

// up goes to the first line.
func (c *canvas) up(b *strings.Builder) {
	if c.drawn > 0 {
		fmt.Fprintf(b, "\x1b[%dA", c.drawn)
	}
}

// rows is how many lines the terminal has.
func (s *System) rows() int {
	if n, err := strconv.Atoi(s.getenv("LINES")); err == nil && n > 4 {
		return n
	}
	return liveRows
}
