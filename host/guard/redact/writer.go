package redact

import (
	"bytes"
	"io"
)

// Writer passes a stream on without the secrets, also if a secret arrives in pieces: the end of the
// stream that may begin a secret is held back until that is certain. Flush and Close pass on what is
// held back. It is for one goroutine at a time.
type Writer struct {
	set    *Set
	dst    io.Writer
	held   []byte // may begin a secret; shorter than the longest form
	shown  int    // bytes of held that were passed on already, unchanged or as a mask
	masked bool   // the last of the shown bytes were masked
}

// Writer makes a Writer that writes to dst.
func (s *Set) Writer(dst io.Writer) *Writer { return &Writer{set: s, dst: dst} }

// Write implements io.Writer. It does not keep p.
func (w *Writer) Write(p []byte) (int, error) {
	text := p
	if len(w.held) > 0 {
		text = append(w.held, p...)
	}
	all := w.set.all()
	certain := len(text) - begun(text, all) // a secret that continues beyond the text begins here at the earliest
	out, end := w.upTo(text, certain, all)
	w.held, w.shown = append(w.held[:0:0], text[certain:]...), end-certain
	return len(p), w.pass(out)
}

// upTo returns the part of a text after w.shown, with masks, and its end: certain, or the end of a
// secret that begins before certain.
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

// Holds reports whether data is held back.
func (w *Writer) Holds() bool { return w.shown < len(w.held) }

// Flush passes on what is held back. If that was the beginning of a secret, the rest of the secret is still hidden.
func (w *Writer) Flush() error {
	if !w.Holds() {
		return nil
	}
	out, end := w.upTo(w.held, len(w.held), w.set.all())
	w.shown = end
	return w.pass(out)
}

// Close passes on the rest. It does not close dst.
func (w *Writer) Close() error {
	err := w.Flush()
	w.held, w.shown = nil, 0
	return err
}

// begun returns the length of the longest end of a text that is the beginning of a form.
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

// Whole makes a writer to dst that hides the secrets within each single Write and holds nothing back.
// It is for logs, which are written line by line.
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
