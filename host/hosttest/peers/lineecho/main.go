// Command lineecho writes each line of its standard input back, and does
// nothing else. It is the upper bound that the bench holds a host against: what
// the pipes, the Go runtime and one copy cost.
package main

import (
	"bufio"
	"errors"
	"io"
	"log"
	"os"
)

// size holds a whole line of 1 MB, so that such a line takes few reads.
const size = 1 << 20

func main() {
	if err := echo(os.Stdin, os.Stdout); err != nil {
		log.Fatal("lineecho: ", err)
	}
}

// echo copies line by line and flushes when all that had arrived is copied, so
// that a batch of lines costs one read and one write. A line longer than the
// buffer goes through in pieces.
func echo(in io.Reader, out io.Writer) error {
	r, w := bufio.NewReaderSize(in, size), bufio.NewWriterSize(out, size)
	for {
		line, err := r.ReadSlice('\n')
		if _, werr := w.Write(line); werr != nil {
			return werr
		}
		if r.Buffered() == 0 {
			if werr := w.Flush(); werr != nil {
				return werr
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return w.Flush()
		case err != nil && !errors.Is(err, bufio.ErrBufferFull):
			return err
		}
	}
}
