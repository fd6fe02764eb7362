package redact

import (
	"bytes"
	"io"
)

// Writer passes a stream on without the secrets, also where one comes in pieces: the end of the stream that may begin
// one is held back until it is certain. Flush and Close pass on what is held back. It is for one goroutine at a time.
type Writer struct {
	set    *Set
	dst    io.Writer
	held   []byte // may be the beginning of a secret; shorter than the longest form
	shown  int    // bytes of held that were passed on already: as they are, or by a mask
	masked bool   // the last of those were passed on by a mask
}

// Writer makes a Writer to dst.
func (s *Set) Writer(dst io.Writer) *Writer { return &Writer{set: s, dst: dst} }

// Write implements io.Writer. It keeps no part of p.
func (w *Writer) Write(p []byte) (int, error) {
	text := p
	if len(w.held) > 0 {
		text = append(w.held, p...)
	}
	all := w.set.all()
	certain := len(text) - begun(text, all) // a secret that goes on beyond the text begins here at the earliest
	out, end := w.upTo(text, certain, all)
	w.held, w.shown = append(w.held[:0:0], text[certain:]...), end-certain
	return len(p), w.pass(out)
}

// upTo returns what is to be shown of a text that was passed on up to w.shown, and where that ends: at certain, or
// at the end of a secret that begins before it.
func (w *Writer) upTo(text []byte, certain int, all []*forms) (out []byte, end int) {
	end = w.shown
	for _, span := range spansIn(text, all) {
		if span.end <= end || span.begin >= certain {
			continue // passed on already, or seen again later
		}
		if span.begin >= w.shown || !w.masked {
			out = append(append(out, text[end:max(end, span.begin)]...), Text...)
		}
		end, w.masked = span.end, true
	}
	if end < certain {
		out = append(out, text[end:certain]...)
		end, w.masked = certain, false
	}
	return out, end
}

func (w *Writer) pass(text []byte) error {
	if len(text) == 0 {
		return nil
	}
	_, err := w.dst.Write(text)
	return err
}

// Holds reports whether something is held back.
func (w *Writer) Holds() bool { return w.shown < len(w.held) }

// Flush passes on what is held back. If it was the beginning of a secret, the rest of that is still hidden.
func (w *Writer) Flush() error {
	if !w.Holds() {
		return nil
	}
	out, end := w.upTo(w.held, len(w.held), w.set.all())
	w.shown = end
	return w.pass(out)
}

// Close passes on the rest. It does not close what it writes to.
func (w *Writer) Close() error {
	err := w.Flush()
	w.held, w.shown = nil, 0
	return err
}

// begun is the length of the longest end of a text that a form begins with.
func begun(text []byte, all []*forms) (n int) {
	for _, f := range all {
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
