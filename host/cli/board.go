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
	liveLeast = 40 * time.Millisecond  // between two pictures
	liveRows  = 24                     // of a terminal that does not say
)

// board shows how far something is: lines on a terminal that are drawn anew in place when
// something happens, and while time goes on.
type board struct {
	w       io.Writer // nil = nothing is shown
	now     func() time.Time
	columns int
	begun   time.Time
	picture func() []string // the lines; called with mu held, as is all that change and write do
	shared  bool            // what write writes goes to the same terminal
	stop    chan struct{}
	done    sync.WaitGroup

	mu     sync.Mutex // guards the fields below, and what picture reads
	drawn  int        // lines on the terminal
	last   time.Time  // when they were drawn
	paused bool       // something else uses the terminal
}

// newBoard makes a board that draws nothing by itself before start.
func newBoard(w io.Writer, now func() time.Time, columns int) *board {
	return &board{w: w, now: now, columns: columns, begun: now(), stop: make(chan struct{})}
}

// drawing knows the board that is drawn on stderr now.
type drawing struct {
	mu    sync.Mutex
	board *board // nil = none; guarded by mu
}

// show makes a board, or none, the one that is drawn.
func (s *System) show(b *board) {
	if s.screen == nil {
		return
	}
	s.screen.mu.Lock()
	defer s.screen.mu.Unlock()
	s.screen.board = b
}

// aside has something else use the terminal of stderr: nothing is drawn there meanwhile.
func (s *System) aside(do func() error) error {
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

// pause has the board draw nothing until it ends.
func (b *board) pause(on bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if on {
		b.eraseLocked()
	}
	b.paused = on
}

// start draws as time goes on, until close.
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

// close draws the last picture, which stays.
func (b *board) close() {
	close(b.stop)
	b.done.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.drawLocked()
}

// change has something noted that the picture shows.
func (b *board) change(do func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if do(); b.now().Sub(b.last) >= liveLeast {
		b.drawLocked()
	}
}

// write has something written. Where that goes to the same terminal, the picture makes room.
func (b *board) write(do func() error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.shared && b.drawn > 0 {
		b.eraseLocked()
		defer b.drawLocked()
	}
	return do()
}

// eraseLocked takes the picture off the terminal.
func (b *board) eraseLocked() {
	if b.drawn > 0 {
		_, _ = fmt.Fprintf(b.w, "\x1b[%dA\r\x1b[J", b.drawn)
		b.drawn = 0
	}
}

// drawLocked draws the picture in place of the one before.
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
	_, _ = io.WriteString(b.w, text.String()) // a terminal that is gone shows nothing
}

// since says how long ago a time is.
func (b *board) since(at time.Time) string {
	return shortDuration(b.now().Sub(at).Truncate(100 * time.Millisecond))
}

// fit cuts the rest of a line that has used so many columns.
func (b *board) fit(text string, used int) string {
	return cut(text, max(b.columns-1-used, leastColumns))
}

// padded cuts or fills text to a width.
func padded(text string, wide int) string {
	text = cut(text, wide)
	return text + strings.Repeat(" ", max(0, wide-textWidth(text)))
}

// waiting tells the person at a terminal, from a second on, what is waited for and how long
// already, on one line of stderr that done takes away. Elsewhere it tells nothing. Nothing else
// may be written to stderr before done.
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

// waitingFor is waiting for what has one name.
func (s *System) waitingFor(what string) (done func()) {
	return s.waiting(func() string { return what })
}
