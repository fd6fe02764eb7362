package cli

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"
)

// Keys that the screen gives to itself, which no keyboard that matters sends.
const (
	keyInterrupt = 0x1c // in place of Ctrl-C, which ends the line editor
	keyReady     = 0x1d // the prompt is wanted
)

const (
	chatPrompt = "> "
	fullLine   = 4096 // characters, of which the line editor takes no more by itself
	pasteBegin = "\x1b[200~"
	mostWords  = 60 // that Tab offers
)

// The styles of text, as a terminal takes them.
const (
	styleDim  = "2"
	styleBad  = "31"
	styleGood = "32"
	styleBusy = "36"
	styleHead = "1"
	styleCode = "36"
	styleLink = "4"
)

// chatScreen is a terminal on which a person types while an answer is written. Where the two meet,
// what is typed begins a line of its own, and the answer goes on above it by whole lines.
//
//	keys ─ pump ─ input ─► Terminal ─► line ─► lines, or the answer to a question
//	                ready ┘    ▲
//	answer ─ piece ────────────┘
type chatScreen struct {
	term      *term.Terminal
	out       *os.File
	color     bool
	interrupt func(typed bool) (end bool)                     // Ctrl-C
	words     func(before string) (word string, all []string) // Tab: the word begun, and what it may become
	restore   func()
	input     chan []byte   // keys
	ended     chan struct{} // closed when there are no more
	over      chan struct{} // closed by restore
	answers   chan string   // to questions

	// Of the goroutine that reads lines.
	rest  []byte // keys that are not read yet
	enter bool   // the next key is Enter
	drawn bool   // the next line is that Enter alone
	end   bool   // there are no more keys

	erased bool // characters were taken back, of which some may be wider than the Terminal knows

	mu     sync.Mutex // guards the fields below; taken before the Terminal is written to
	column bool       // the last line has not ended
	kind   string     // of the piece before; "" = none
	answer markdown   // of that piece
	typing bool
	prompt string          // that is to be seen; "" = none
	asking bool            // the next line is an answer
	later  bool            // the prompt is wanted once there is one
	held   strings.Builder // of the answer, while somebody types
}

// newChatScreen makes a screen of the terminal that in and out are, until restore.
func newChatScreen(in, out *os.File, color bool) (*chatScreen, error) {
	before, err := term.MakeRaw(int(in.Fd()))
	if err != nil {
		return nil, err
	}
	s := &chatScreen{
		out: out, color: color, input: make(chan []byte), ended: make(chan struct{}), over: make(chan struct{}),
		answers: make(chan string, 1), prompt: chatPrompt,
	}
	s.answer.columns = s.columns
	s.term = term.NewTerminal(struct {
		io.Reader
		io.Writer
	}{keysOf{s}, redrawn{out}}, "")
	s.term.AutoCompleteCallback = s.key
	s.term.SetBracketedPasteMode(true)
	s.restore = sync.OnceFunc(func() {
		close(s.over)
		s.term.SetBracketedPasteMode(false)
		_ = term.Restore(int(in.Fd()), before) // a terminal that is gone
	})
	go s.pump(in) // until the process ends: a terminal cannot be told to stop
	return s, nil
}

// redrawn has the line editor, which counts each character as one column, take its line away as a whole.
type redrawn struct{ io.Writer }

var lineTaken = lazily(`\x1b\[\d*D\x1b\[K`)

// Write implements io.Writer.
func (r redrawn) Write(p []byte) (int, error) {
	_, err := r.Writer.Write(lineTaken().ReplaceAll(p, []byte("\r\x1b[K")))
	return len(p), err
}

// pump passes keys on.
func (s *chatScreen) pump(in io.Reader) {
	for {
		keys := make([]byte, 4<<10)
		n, err := in.Read(keys)
		if err != nil {
			close(s.ended)
			return
		}
		for i, key := range keys[:n] {
			if key == 3 {
				keys[i] = keyInterrupt
			}
		}
		s.send(keys[:n])
	}
}

func (s *chatScreen) send(keys []byte) {
	select {
	case s.input <- keys:
	case <-s.ended:
	case <-s.over:
	}
}

// keysOf reads the keys of a screen.
type keysOf struct{ *chatScreen }

// Read implements io.Reader.
func (s keysOf) Read(p []byte) (int, error) {
	switch {
	case s.end:
		return 0, io.EOF
	case s.enter:
		s.enter, s.drawn = false, true
		return copy(p, "\r"), nil
	case len(s.rest) == 0:
		if s.erased {
			_, _ = s.term.Write(nil) // which draws the line again
		}
		select {
		case s.rest = <-s.input:
		case <-s.ended:
			return 0, io.EOF
		}
		s.resize()
		s.erased = bytes.ContainsAny(s.rest, "\x7f\b")
		if strings.Contains(string(s.rest), "\x1b") { // a paste, or an arrow, which s.key is not told
			s.types()
		}
	}
	n := copy(p, s.rest)
	s.rest = s.rest[n:]
	return n, nil
}

// resize tells the Terminal how large it is now.
func (s *chatScreen) resize() {
	if wide, high, err := term.GetSize(int(s.out.Fd())); err == nil && wide > 0 && high > 0 {
		_ = s.term.SetSize(wide, high)
	}
}

// key looks at a key before the Terminal does.
func (s *chatScreen) key(line string, pos int, key rune) (string, int, bool) {
	switch key {
	case keyInterrupt:
		s.end = s.interrupt(line != "")
		s.typed()
		return "", 0, true
	case keyReady:
		switch prompt, _ := s.state(); {
		case prompt == "":
		case line == "":
			s.enter = true // what has a new line begin, with the prompt
		default:
			s.term.SetPrompt(prompt)
			_, _ = s.term.Write(nil) // which draws the line again
		}
	case '\t':
		s.types()
		return s.complete(line, pos)
	default:
		s.types()
		if len(line) >= fullLine && key >= ' ' && !unseen(key) {
			return line[:pos] + string(key) + line[pos:], pos + utf8.RuneLen(key), true
		}
	}
	return "", 0, false
}

// complete is Tab: it adds what all words that fit have in common, or lists them.
func (s *chatScreen) complete(line string, pos int) (string, int, bool) {
	word, all := s.words(line[:pos])
	if len(all) == 0 {
		return line, pos, true
	}
	same := all[0]
	for _, one := range all[1:] {
		for !strings.HasPrefix(one, same) {
			_, size := utf8.DecodeLastRuneInString(same)
			same = same[:len(same)-size]
		}
	}
	switch {
	case len(all) == 1 && !strings.HasSuffix(same, "/"):
		same += " "
	case len(all) > 1 && same == word:
		if more := len(all) - mostWords; more > 0 {
			all = append(all[:mostWords], "and "+strconv.Itoa(more)+" more")
		}
		s.line(styleDim, strings.Join(all, "  "))
	}
	begin := line[:pos-len(word)] + same
	return begin + line[pos:], len(begin), true
}

// types notes that somebody begins to type.
func (s *chatScreen) types() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.column && !s.typing {
		s.putLocked("\n")
	}
	s.typing = true
}

// typed notes that nobody does any more.
func (s *chatScreen) typed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.typing = false
	text := s.held.String()
	s.held.Reset()
	s.putLocked(text)
}

// lines gives what is typed, message by message, until the end of the input.
func (s *chatScreen) lines(to chan<- string) {
	defer close(to)
	var parts []string
	for {
		s.resize()
		line, err := s.term.ReadLine()
		pasted := errors.Is(err, term.ErrPasteIndicator)
		if err != nil && !pasted {
			return
		}
		s.mu.Lock()
		s.column = false
		s.mu.Unlock()
		s.typed()
		prompt, asking := s.state()
		if s.drawn {
			s.drawn = false
			s.term.SetPrompt(prompt)
			continue
		}
		rest, goesOn := strings.CutSuffix(line, `\`)
		if pasted || goesOn {
			if !pasted {
				line = rest
			}
			parts = append(parts, line)
			continue
		}
		line = strings.Join(append(parts, line), "\n")
		parts = nil
		switch {
		case asking:
			s.answered(line)
		case strings.TrimSpace(line) != "":
			s.working()
			to <- line
		default:
			s.term.SetPrompt(prompt)
		}
	}
}

// working takes the prompt away, but no question.
func (s *chatScreen) working() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.later = false; !s.asking {
		s.hideLocked()
	}
}

func (s *chatScreen) hideLocked() {
	s.prompt, s.asking = "", false
	s.term.SetPrompt("")
	_, _ = s.term.Write(nil) // which draws the line again
	if s.later {
		s.readyLocked(chatPrompt)
	}
}

// ask shows a question, whose answer comes from answers; "" takes it away where nobody has answered.
func (s *chatScreen) ask(question string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case question != "":
		select {
		case <-s.answers: // one that came too late
		default:
		}
		s.readyLocked(question)
		s.asking = true
	case s.asking:
		s.hideLocked()
	}
}

// answered takes the answer to a question; false = there is none.
func (s *chatScreen) answered(line string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.asking {
		return false
	}
	s.hideLocked()
	s.answers <- line
	return true
}

// state returns the prompt that is to be seen, and whether it is a question.
func (s *chatScreen) state() (prompt string, asking bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.prompt, s.asking
}

// ready shows the prompt, behind a question that is open.
func (s *chatScreen) ready() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.later = s.asking; !s.asking {
		s.readyLocked(chatPrompt)
	}
}

func (s *chatScreen) readyLocked(prompt string) {
	s.freshLocked()
	s.kind, s.prompt, s.asking, s.later = "", prompt, false, false
	go s.send([]byte{keyReady})
}

// columns is how wide the terminal is.
func (s *chatScreen) columns() int {
	if wide, _, err := term.GetSize(int(s.out.Fd())); err == nil && wide > 0 {
		return wide
	}
	return usualColumns
}

// piece writes a piece of an answer of a kind; another kind begins a line of its own.
func (s *chatScreen) piece(kind, style, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if text = seen(text); kind != s.kind {
		text = strings.TrimLeft(text, "\n")
		if text == "" {
			return
		}
		if s.freshLocked(); style != "" && !s.color {
			s.putLocked(kind + ": ")
		}
	}
	if s.kind = kind; style == "" && s.color {
		s.putLocked(s.answer.write(text))
		return
	}
	s.styledLocked(style, text)
}

// line writes a line of its own, or several.
func (s *chatScreen) line(style, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.freshLocked()
	s.kind = ""
	s.styledLocked(style, seen(text)+"\n")
}

// Write implements io.Writer: what it is given are lines.
func (s *chatScreen) Write(p []byte) (int, error) {
	s.line("", strings.TrimSuffix(string(p), "\n"))
	return len(p), nil
}

// open begins a line that closing ends, if nothing comes in between.
func (s *chatScreen) open(kind, style, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.freshLocked()
	s.kind = kind
	s.styledLocked(style, text)
}

// closing ends the line of a kind; false = it is not open any more.
func (s *chatScreen) closing(kind, style, text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kind != kind {
		return false
	}
	s.kind = ""
	s.styledLocked(style, text+"\n")
	return true
}

// freshLocked has what comes next begin a line.
func (s *chatScreen) freshLocked() {
	s.putLocked(s.answer.flush())
	if s.column {
		s.putLocked("\n")
	}
}

func (s *chatScreen) styledLocked(style, text string) {
	if style != "" && s.color {
		ended := ""
		if strings.HasSuffix(text, "\n") {
			text, ended = text[:len(text)-1], "\n"
		}
		text = painted(style, text) + ended
	}
	s.putLocked(text)
}

// putLocked writes text, or holds what is no whole line yet while somebody types.
func (s *chatScreen) putLocked(text string) {
	if text == "" {
		return
	}
	s.column = !strings.HasSuffix(text, "\n")
	if s.typing {
		end := strings.LastIndexByte(text, '\n') + 1
		begun, rest := "", text[end:]
		if text = text[:end]; end > 0 {
			begun = s.held.String()
			s.held.Reset()
		}
		s.held.WriteString(rest)
		if text = begun + text; text == "" {
			return
		}
	}
	_, _ = s.term.Write([]byte(text)) // a terminal that is gone shows nothing
}

// seen makes text of several lines safe for a terminal, as oneLine does for one.
func seen(text string) string {
	if !strings.ContainsFunc(text, unseen) {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		switch {
		case r == '\r':
		case unseen(r):
			b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// unseen reports whether a terminal would not show a character but obey it. Spaces of any width
// are seen, and the joiners that emojis and several scripts are written with do no harm.
func unseen(r rune) bool {
	joins := r == '\u200c' || r == '\u200d'
	return r != '\n' && r != '\t' && !joins && !unicode.IsPrint(r) && !unicode.Is(unicode.Zs, r)
}
