package cli

import (
	"strings"

	"github.com/clipperhouse/displaywidth"
)

// Keys as a terminal in raw mode sends them. edit has the keys that change a line.
const (
	keyInterrupt  = "\x03" // Ctrl-C
	keyEnd        = "\x04" // Ctrl-D
	keyTab        = "\t"
	keyClear      = "\f" // Ctrl-L
	keyEnter      = "\r"
	keyLineFeed   = "\n"
	keyPasteBegin = "\x1b[200~"
	keyPasteEnd   = "\x1b[201~"
)

var (
	// keyFirst matches the first key of the input, or the characters up to the next special key.
	keyFirst  = lazily(`^(\x1b(\[[0-?]*[ -/]*[@-~]|O[ -~]|[^\[O])|[\x00-\x1a\x1c-\x1f\x7f]|[^\x00-\x1f\x7f]+)`)
	wordFirst = lazily(`^\s*\S*`)
	wordLast  = lazily(`\S*\s*$`)
)

// chatLine is the line that a person types. Pasted text may give it several lines.
type chatLine struct {
	before, after string // the text on both sides of the cursor
	pasting       bool
	past          *chatLines
	back          int    // how many messages of the past it went back
	begun         string // the text that was typed before going back
}

func (l *chatLine) text() string { return l.before + l.after }

func (l *chatLine) set(text string) { l.before, l.after = text, "" }

// move moves the cursor by a number of bytes.
func (l *chatLine) move(by int) {
	text, at := l.text(), len(l.before)+by
	l.before, l.after = text[:at], text[at:]
}

// edit applies a key to the line.
func (l *chatLine) edit(key string) {
	if l.pasting {
		l.insert(key)
		return
	}
	switch key {
	case "\x02", "\x1b[D", "\x1bOD": // Ctrl-B, Left
		l.move(-lastSize(l.before))
	case "\x06", "\x1b[C", "\x1bOC": // Ctrl-F, Right
		l.move(firstSize(l.after))
	case "\x1bb", "\x1b[1;3D", "\x1b[1;5D": // Alt-B, Alt-Left, Ctrl-Left
		l.move(-len(wordLast().FindString(l.before)))
	case "\x1bf", "\x1b[1;3C", "\x1b[1;5C": // Alt-F, Alt-Right, Ctrl-Right
		l.move(len(wordFirst().FindString(l.after)))
	case "\x01", "\x1b[H", "\x1bOH", "\x1b[1~": // Ctrl-A, Home
		l.move(-len(l.before))
	case "\x05", "\x1b[F", "\x1bOF", "\x1b[4~": // Ctrl-E, End
		l.move(len(l.after))
	case "\x7f", "\b": // Backspace
		l.before = l.before[:len(l.before)-lastSize(l.before)]
	case keyEnd, "\x1b[3~": // Delete
		l.after = l.after[firstSize(l.after):]
	case "\x17", "\x1b\x7f": // Ctrl-W, Alt-Backspace
		l.before = wordLast().ReplaceAllString(l.before, "")
	case "\x15": // Ctrl-U
		l.before = ""
	case "\v": // Ctrl-K
		l.after = ""
	case "\x10", "\x1b[A", "\x1bOA": // Ctrl-P, Up
		l.recall(1)
	case "\x0e", "\x1b[B", "\x1bOB": // Ctrl-N, Down
		l.recall(-1)
	default:
		l.insert(key)
	}
}

// insert inserts the text of a key, if it has any.
func (l *chatLine) insert(key string) {
	if key == keyEnter {
		key = "\n"
	}
	if !strings.ContainsFunc(key, unseen) {
		l.before += key
	}
}

// recall goes some messages back in the past, or forward if steps is negative.
func (l *chatLine) recall(steps int) {
	back := l.back + steps
	if back < 0 || back > len(l.past.lines) {
		return
	}
	if l.back == 0 {
		l.begun = l.text()
	}
	if l.back = back; back == 0 {
		l.set(l.begun)
		return
	}
	l.set(l.past.lines[len(l.past.lines)-back])
}

// rows breaks the line with its prompt into rows of at most the given number of columns, and
// returns the position of the cursor.
func (l *chatLine) rows(prompt string, columns int) (rows []string, row, column int) {
	at, cursor := 0, len(prompt+l.before)
	text, wide := "", 0
	wrap := func() { rows, text, wide = append(rows, text), "", 0 }
	for g := displaywidth.StringGraphemes(prompt + l.text()); g.Next(); at += len(g.Value()) {
		shown, width := g.Value(), g.Width()
		if shown == "\t" {
			shown, width = "    ", 4
		}
		if wide+width > columns {
			wrap()
		}
		if at == cursor {
			row, column = len(rows), wide
		}
		if shown == "\n" {
			wrap()
			continue
		}
		text, wide = text+shown, wide+width
	}
	if wide >= columns { // the cursor is on the next row
		wrap()
	}
	if at == cursor {
		row, column = len(rows), wide
	}
	wrap()
	return rows, row, column
}

// firstSize returns the size in bytes of the first character of a text, including the characters
// that combine with it.
func firstSize(text string) int {
	if g := displaywidth.StringGraphemes(text); g.Next() {
		return len(g.Value())
	}
	return 0
}

func lastSize(text string) (size int) {
	for g := displaywidth.StringGraphemes(text); g.Next(); {
		size = len(g.Value())
	}
	return size
}
