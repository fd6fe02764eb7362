package cli

import (
	"strings"

	"github.com/clipperhouse/displaywidth"
)

// Keys as a terminal in raw mode sends them. What the others do to a line stands in edit.
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
	// keyFirst is the first key of what was typed, or the characters before the next one that is none.
	keyFirst  = lazily(`^(\x1b(\[[0-?]*[ -/]*[@-~]|O[ -~]|[^\[O])|[\x00-\x1a\x1c-\x1f\x7f]|[^\x00-\x1f\x7f]+)`)
	wordFirst = lazily(`^\s*\S*`)
	wordLast  = lazily(`\S*\s*$`)
)

// chatLine is the line that a person types; pasted lines make it several.
type chatLine struct {
	before, after string // the cursor
	pasting       bool
	past          *chatLines
	back          int    // how many lines of the past it went back
	begun         string // what was typed before it did
}

func (l *chatLine) text() string { return l.before + l.after }

func (l *chatLine) set(text string) { l.before, l.after = text, "" }

// move moves the cursor by so many bytes.
func (l *chatLine) move(by int) {
	text, at := l.text(), len(l.before)+by
	l.before, l.after = text[:at], text[at:]
}

// edit does what a key asks for.
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

// insert adds the text of a key, if it has one.
func (l *chatLine) insert(key string) {
	if key == keyEnter {
		key = "\n"
	}
	if !strings.ContainsFunc(key, unseen) {
		l.before += key
	}
}

// recall goes some lines back in the past, or comes back.
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

// rows lays the line out behind a prompt, on rows of so many columns, and tells where the cursor stands.
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
	if wide >= columns { // the cursor stands on the next row
		wrap()
	}
	if at == cursor {
		row, column = len(rows), wide
	}
	wrap()
	return rows, row, column
}

// firstSize is how many bytes the first character of a text has, with all that combines with it.
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
