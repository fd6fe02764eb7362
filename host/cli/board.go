package cli

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

const (
	liveEvery = 100 * time.Millisecond // between two pictures while nothing happens
	liveLeast = 40 * time.Millisecond  // minimum between two pictures after changes
	liveRows  = 24                     // rows of a terminal whose size is unknown
)

// board shows the progress of something: lines on a terminal that are redrawn in place when
// something changes, and at regular intervals.
type board struct {
	w       io.Writer // nil = nothing is shown
	now     func() time.Time
	columns int
	begun   time.Time
	picture func() []string // returns the lines; called with mu held, like the functions of change and write
	shared  bool            // the functions of write write to the same terminal
	stop    chan struct{}
	done    sync.WaitGroup

	mu     sync.Mutex // guards the fields below, and what picture reads
	drawn  int        // lines on the terminal
	last   time.Time  // when they were drawn
	paused bool       // something else uses the terminal
}

// newBoard creates a board that draws nothing by itself before start.
func newBoard(w io.Writer, now func() time.Time, columns int) *board {
	return &board{w: w, now: now, columns: columns, begun: now(), stop: make(chan struct{})}
}

// drawing holds the board that is currently drawn on stderr.
type drawing struct {
	mu    sync.Mutex
	board *board // nil = no board; guarded by mu
}

// show sets the board that is drawn, or nil for none.
func (s *System) show(b *board) {
	if s.screen == nil {
		return
	}
	s.screen.mu.Lock()
	defer s.screen.mu.Unlock()
	s.screen.board = b
}

// withoutBoard runs do while nothing is drawn on stderr, so that do can use the terminal.
func (s *System) withoutBoard(do func() error) error {
	if s.screen == nil {
		return do()
	}
	s.screen.mu.Lock()
	b := s.screen.board
	s.screen.mu.Unlock()
	if b != nil {
		b.pause(true)
		defer b.pause(false)
	}
	return do()
}

// pause stops the drawing of the board if on is true, or else resumes it.
func (b *board) pause(on bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if on {
		b.eraseLocked()
	}
	b.paused = on
}

// start redraws the board at regular intervals until close.
func (b *board) start() {
	if b.w == nil {
		return
	}
	b.done.Go(func() {
		clock := time.NewTicker(liveEvery)
		defer clock.Stop()
		for {
			select {
			case <-clock.C:
				b.mu.Lock()
				b.drawLocked()
				b.mu.Unlock()
			case <-b.stop:
				return
			}
		}
	})
}

// close draws the last picture, which stays on the terminal.
func (b *board) close() {
	close(b.stop)
	b.done.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.drawLocked()
}

// change calls do, which changes what the picture shows, and redraws the picture if the last one is old enough.
func (b *board) change(do func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if do(); b.now().Sub(b.last) >= liveLeast {
		b.drawLocked()
	}
}

// write calls do, which writes something. If that goes to the same terminal, the picture is removed
// first and redrawn afterwards.
func (b *board) write(do func() error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.shared && b.drawn > 0 {
		b.eraseLocked()
		defer b.drawLocked()
	}
	return do()
}

// eraseLocked removes the picture from the terminal.
func (b *board) eraseLocked() {
	if b.drawn > 0 {
		_, _ = fmt.Fprintf(b.w, "\x1b[%dA\r\x1b[J", b.drawn)
		b.drawn = 0
	}
}

// drawLocked draws the picture in place of the previous one.
func (b *board) drawLocked() {
	if b.w == nil || b.paused {
		return
	}
	var text strings.Builder
	if b.drawn > 0 {
		fmt.Fprintf(&text, "\x1b[%dA", b.drawn)
	}
	lines := b.picture()
	for _, line := range lines {
		text.WriteString("\r\x1b[2K" + line + "\n")
	}
	if len(lines) < b.drawn {
		text.WriteString("\x1b[J")
	}
	b.drawn, b.last = len(lines), b.now()
	_, _ = io.WriteString(b.w, text.String()) // a closed terminal shows nothing
}

// since returns how long ago a time was, as text.
func (b *board) since(at time.Time) string {
	return shortDuration(b.now().Sub(at).Truncate(100 * time.Millisecond))
}

// fit shortens a text so that it fits on a line that already has used columns.
func (b *board) fit(text string, used int) string {
	return cut(text, max(b.columns-1-used, leastColumns))
}

// padded cuts or pads a text to a width.
func padded(text string, wide int) string {
	text = cut(text, wide)
	return text + strings.Repeat(" ", max(0, wide-textWidth(text)))
}

// waiting shows at a terminal what the command waits for and for how long. It uses one line of
// stderr, which appears after quietFor and which done removes. Without a terminal it shows nothing.
// Before done, write to stderr only inside withoutBoard.
func (s *System) waiting(what func() string) (done func()) {
	if !s.showsLive() {
		return func() {}
	}
	b, over := newBoard(s.Err, time.Now, s.columnsOf(s.Err)), false
	b.shared = true
	b.picture = func() []string {
		if over || time.Since(b.begun) < quietFor {
			return nil
		}
		return []string{b.fit(fmt.Sprintf("%s… %s", oneLine(what()), time.Since(b.begun).Round(time.Second)), 0)}
	}
	b.start()
	s.show(b)
	return func() {
		s.show(nil)
		b.change(func() { over = true })
		b.close()
	}
}

// waitingFor is waiting for something with a fixed name.
func (s *System) waitingFor(what string) (done func()) {
	return s.waiting(func() string { return what })
}
