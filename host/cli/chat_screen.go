package cli

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"

	"a2e/host/agent"
)

const (
	chatPrompt = "> "
	mostWords  = 60 // words that Tab shows at most
)

// Styles of text, as codes of a terminal.
const (
	styleDim  = "2"
	styleBad  = "31"
	styleGood = "32"
	styleBusy = "36"
	styleHead = "1"
	styleCode = "36"
	styleLink = "4"

	styleMarkdown = "markdown" // the style depends on the Markdown marks
)

// chatScreen is a terminal on which a person types while an answer is written. The typed line, with
// a prompt or a question, is below the written text. While there is such a line, the answer is
// written above it in whole lines. A screen that is not open shows nothing.
type chatScreen struct {
	out       *os.File
	interrupt func(typed bool) (end bool)                     // handles Ctrl-C
	words     func(before string) (word string, all []string) // Tab: the begun word and its completions
	restore   func()

	mu     sync.Mutex // guards the fields below
	opened bool
	color  bool
	ready  bool          // the chat waits for a message
	asked  *chatQuestion // nil = no question is open
	typed  chatLine
	drawn  bool     // the typed line is on the screen
	above  []string // the rows of that line above the cursor
	kind   string   // kind of the last piece; "" = no kind
	answer markdown // state of the Markdown of that piece
	held   string   // the part of the answer that is not written yet
	column bool     // the last written line has not ended
}

// chatQuestion is a question to the person.
type chatQuestion struct {
	text   string
	answer chan string // closed if nobody answers
}

// open starts to use the terminal, until close.
func (s *chatScreen) open(in *os.File, color bool, past *chatLines) error {
	before, err := term.MakeRaw(int(in.Fd()))
	if err != nil {
		return err
	}
	s.restore = func() { _ = term.Restore(int(in.Fd()), before) }
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opened, s.color, s.typed.past, s.answer.columns = true, color, past, s.columns
	s.writeLocked("\x1b[?2004h") // pasted text is sent between keyPasteBegin and keyPasteEnd
	return nil
}

// close restores the terminal.
func (s *chatScreen) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writeLocked(s.eraseLocked() + s.belowLocked() + "\x1b[?2004l")
	s.restore()
	s.opened = false
}

// lines sends the typed messages to the channel to, until the end of the input. It does not end
// with the screen, because a read from a terminal cannot be stopped.
func (s *chatScreen) lines(in *os.File, to chan<- string) {
	defer close(to)
	var keys string // keys that are not complete
	for buf := bufio.NewReader(in); ; {
		r, _, err := buf.ReadRune()
		if err != nil {
			return
		}
		if keys += string(r); buf.Buffered() > 0 {
			continue
		}
		keys = strings.TrimSuffix(strings.ReplaceAll(keys, "\r\n", keyEnter), "\x1b") // Escape alone does nothing
		for key := keyFirst().FindString(keys); key != ""; key = keyFirst().FindString(keys) {
			keys = keys[len(key):]
			message, end := s.key(key)
			if message != "" {
				to <- message
			}
			if end {
				return
			}
		}
		s.begin()() // shows the typed text
	}
}

// key handles a key. It returns a completed message, or end = true if the chat is over.
func (s *chatScreen) key(key string) (message string, end bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case key == keyPasteBegin, key == keyPasteEnd:
		s.typed.pasting = key == keyPasteBegin
	case s.typed.pasting:
		s.typed.edit(key)
	case key == keyEnter, key == keyLineFeed:
		return s.enterLocked(), false
	case key == keyEnd && s.typed.text() == "":
		return "", true
	case key == keyInterrupt:
		typed := s.typed.text() != ""
		s.typed.set("")
		s.mu.Unlock()
		defer s.mu.Lock()
		return "", s.interrupt(typed)
	case key == keyTab:
		before := s.typed.before
		s.mu.Unlock()
		word, all := s.words(before)
		s.mu.Lock()
		s.completeLocked(word, all)
	case key == keyClear:
		s.writeLocked(s.eraseLocked() + "\x1b[2J\x1b[H")
	default:
		s.typed.edit(key)
	}
	return "", false
}

// enterLocked handles Enter: the line is the answer to a question, or a message, which it returns.
func (s *chatScreen) enterLocked() (message string) {
	text := s.typed.text()
	if begun, goesOn := strings.CutSuffix(text, `\`); goesOn {
		s.typed.set(begun + "\n")
		return ""
	}
	s.leaveLocked()
	switch {
	case s.asked != nil:
		s.asked.answer <- text
		s.asked = nil
	case strings.TrimSpace(text) != "":
		s.typed.past.add(text)
		s.typed.back, s.ready = 0, false
		return text
	}
	return ""
}

// leaveLocked leaves the typed line on the screen and starts a new one.
func (s *chatScreen) leaveLocked() {
	if shown := s.promptLocked() + s.typed.text(); shown != "" {
		s.writeLocked(s.eraseLocked() + s.belowLocked() + shown + "\n")
	}
	s.typed.set("")
}

// completeLocked extends a word by the common beginning of all its completions, or shows them.
func (s *chatScreen) completeLocked(word string, all []string) {
	before, begun := strings.CutSuffix(s.typed.before, word)
	if len(all) == 0 || !begun {
		return
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
		s.pieceLocked("", styleDim, strings.Join(all, "  ")+"\n")
	}
	s.typed.before = before + same
}

// begin locks the screen. The returned function shows all changes and unlocks it.
func (s *chatScreen) begin() (end func()) {
	s.mu.Lock()
	return func() {
		s.refreshLocked()
		s.mu.Unlock()
	}
}

// prompt sets whether the chat waits for a message, and shows it.
func (s *chatScreen) prompt(ready bool) {
	defer s.begin()()
	if s.ready = ready; ready {
		s.freshLocked()
		s.kind = ""
	}
}

// ask asks the person a question. Text that was typed before is kept for later. ok is false if nobody answers.
func (s *chatScreen) ask(ctx context.Context, question string) (line string, ok bool) {
	asked := &chatQuestion{question, make(chan string, 1)}
	end := s.begin()
	s.freshLocked()
	typed := s.typed
	s.kind, s.asked, s.typed = "", asked, chatLine{past: new(chatLines)}
	end()
	select {
	case line, ok = <-asked.answer:
	case <-ctx.Done():
		s.dismiss()
	}
	defer s.begin()()
	s.typed = typed
	return line, ok
}

// dismiss removes an open question. It reports whether there was one.
func (s *chatScreen) dismiss() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asked == nil {
		return false
	}
	s.leaveLocked()
	close(s.asked.answer)
	s.asked = nil
	return true
}

// promptLocked returns the text before the typed line.
func (s *chatScreen) promptLocked() string {
	switch {
	case s.asked != nil:
		return s.asked.text
	case s.ready:
		return chatPrompt
	}
	return ""
}

// refreshLocked writes the part of the answer that can be written, and draws the typed line below it.
func (s *chatScreen) refreshLocked() {
	text, line := s.held, ""
	if s.promptLocked()+s.typed.text() != "" {
		text = text[:strings.LastIndexByte(text, '\n')+1]
	}
	s.held = s.held[len(text):]
	erase := s.eraseLocked()
	if text != "" {
		s.column = !strings.HasSuffix(text, "\n")
	}
	if s.promptLocked()+s.typed.text() != "" {
		line = s.belowLocked() + s.drawLocked()
	}
	s.writeLocked(erase + text + line)
}

// belowLocked returns what ends the line that was written last.
func (s *chatScreen) belowLocked() string {
	if !s.column {
		return ""
	}
	s.column = false
	return "\n"
}

// eraseLocked returns the codes that remove the typed line.
func (s *chatScreen) eraseLocked() (codes string) {
	if !s.drawn {
		return ""
	}
	up := 0
	for _, row := range s.above {
		up += 1 + max(0, textWidth(row)-1)/s.columns() // a terminal that became narrower has wrapped it
	}
	s.drawn = false
	return times(up, 'A') + "\r\x1b[J"
}

// drawLocked returns the rows of the typed line around the cursor.
func (s *chatScreen) drawLocked() string {
	wide, high := s.size()
	rows, row, column := s.typed.rows(s.promptLocked(), wide)
	from := max(0, row-high+2)
	to := min(len(rows), from+high-1)
	s.drawn, s.above = true, rows[from:row]
	text := strings.Join(rows[from:to], "\n")
	if s.typed.after != "" {
		text += times(to-1-row, 'A') + "\r" + times(column, 'C')
	}
	return text
}

// times returns the code that moves the cursor n times in a direction.
func times(n int, direction rune) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("\x1b[%d%c", n, direction)
}

// writeLocked writes to the terminal, if the screen is open.
func (s *chatScreen) writeLocked(text string) {
	if text != "" && s.opened {
		_, _ = s.out.WriteString(strings.ReplaceAll(text, "\n", "\r\n")) // a closed terminal shows nothing
	}
}

// size returns the numbers of columns and rows of the terminal.
func (s *chatScreen) size() (wide, high int) {
	wide, high, err := term.GetSize(int(s.out.Fd()))
	if err != nil || wide < 1 || high < 2 {
		return usualColumns, liveRows
	}
	return wide, high
}

func (s *chatScreen) columns() int {
	wide, _ := s.size()
	return wide
}

// piece writes a piece of text of a kind. A piece of another kind than the last one starts a new
// line, and so does a piece without a kind.
func (s *chatScreen) piece(kind, style, text string) {
	defer s.begin()()
	s.pieceLocked(kind, style, text)
}

func (s *chatScreen) pieceLocked(kind, style, text string) {
	if text = seen(text); kind == "" {
		s.freshLocked()
	} else if kind != s.kind {
		if text = strings.TrimLeft(text, "\n"); text == "" {
			return
		}
		if s.freshLocked(); kind == string(agent.PieceThought) && !s.color {
			s.held += kind + ": "
		}
	}
	switch s.kind = kind; {
	case !s.color:
		s.held += text
	case style == styleMarkdown:
		s.held += s.answer.write(text)
	default:
		line, ended := strings.CutSuffix(text, "\n")
		if s.held += painted(style, line); ended {
			s.held += "\n"
		}
	}
}

// line writes one or several lines.
func (s *chatScreen) line(style, text string) { s.piece("", style, text+"\n") }

// say writes sentences and breaks long lines between words.
func (s *chatScreen) say(style, text string) {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if columns := s.columns(); textWidth(line) > columns {
			lines[i] = wrap(line, 0, columns)
		}
	}
	s.line(style, strings.Join(lines, "\n"))
}

// Write implements io.Writer. p consists of lines.
func (s *chatScreen) Write(p []byte) (int, error) {
	s.line("", strings.TrimSuffix(string(p), "\n"))
	return len(p), nil
}

// ended completes the line of a kind. It returns false if other pieces came in between.
func (s *chatScreen) ended(kind, style, text string) bool {
	defer s.begin()()
	if s.kind != kind {
		return false
	}
	s.pieceLocked(kind, style, text+"\n")
	s.kind = ""
	return true
}

// freshLocked makes the next text start on a new line.
func (s *chatScreen) freshLocked() {
	s.held += s.answer.flush()
	if s.held != "" && !strings.HasSuffix(s.held, "\n") || s.held == "" && s.column {
		s.held += "\n"
	}
}

// seen makes a text of several lines safe for a terminal, as oneLine does for one line.
func seen(text string) string {
	var b strings.Builder
	for _, r := range strings.ReplaceAll(text, "\r", "") {
		if unseen(r) {
			b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// unseen reports whether a terminal would obey a character instead of showing it. Spaces of any
// width are shown, and the joiners in emojis and several scripts are harmless.
func unseen(r rune) bool {
	joins := r == '\u200c' || r == '\u200d'
	return r != '\n' && r != '\t' && !joins && !unicode.IsPrint(r) && !unicode.Is(unicode.Zs, r)
}
