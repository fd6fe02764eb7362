// Command lineecho writes each line of its standard input back, and does
// nothing else. It is the upper bound for the hosts in the bench: the cost of
// the pipes, the Go runtime and one copy.
package main

import (
	"bufio"
	"errors"
	"io"
	"log"
	"os"
)

// size is large enough for a whole line of 1 MB, so that such a line takes few reads.
const size = 1 << 20

func main() {
	if err := echo(os.Stdin, os.Stdout); err != nil {
		log.Fatal("lineecho: ", err)
	}
}

// echo copies line by line and flushes when it has copied everything that had
// arrived, so that a batch of lines costs one read and one write. It copies a line
// longer than the buffer in pieces.
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
