package redact

import (
	"bytes"
	"io"
)

// Writer passes a stream on without the secrets, also where one comes in pieces. Close
// passes on what was held back.
type Writer struct {
	set  *Set
	dst  io.Writer
	held []byte // may be the beginning of a secret
}

// Writer makes a Writer to dst.
func (s *Set) Writer(dst io.Writer) *Writer { return &Writer{set: s, dst: dst} }

// Write implements io.Writer. It keeps no part of p.
func (w *Writer) Write(p []byte) (int, error) {
	text := p
	if len(w.held) > 0 {
		text = append(w.held, p...)
	}
	text = w.set.Bytes(text)
	keep := w.set.begun(text)
	if _, err := w.dst.Write(text[:len(text)-keep]); err != nil {
		return 0, err
	}
	w.held = append(w.held[:0:0], text[len(text)-keep:]...)
	return len(p), nil
}

// Close passes on the rest. It does not close what it writes to.
func (w *Writer) Close() error {
	rest := w.held
	w.held = nil
	if len(rest) == 0 {
		return nil
	}
	_, err := w.dst.Write(rest)
	return err
}

// begun is the length of the longest end of a text that a secret begins with.
func (s *Set) begun(text []byte) (n int) {
	for ; s != nil; s = s.base {
		f := s.forms.Load()
		if f == nil {
			continue
		}
		for _, form := range f.text {
			for k := min(len(form)-1, len(text)); k > n; k-- {
				if bytes.HasSuffix(text, form[:k]) {
					n = k
				}
			}
		}
	}
	return n
}

// Whole makes a writer to dst that hides the secrets of each Write by itself, and holds
// nothing back: for logs, which are written line by line.
func (s *Set) Whole(dst io.Writer) io.Writer { return whole{s, dst} }

type whole struct {
	set *Set
	dst io.Writer
}

// Write implements io.Writer.
func (w whole) Write(p []byte) (int, error) {
	if _, err := w.dst.Write(w.set.Bytes(p)); err != nil {
		return 0, err
	}
	return len(p), nil
}
