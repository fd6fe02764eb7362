package a2a

import (
	"bufio"
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/rs/zerolog"

	"a2e/protocol"
	"a2e/protocol/fleet"
)

// link is a host on its pipe.
type link struct {
	log   zerolog.Logger
	hasty context.CancelFunc
	ended chan struct{} // closed when the host has ended

	write sync.Mutex // held while a line is written
	in    *io.PipeWriter

	mu       sync.Mutex // guards the fields below
	waiting  map[string]func(*fleet.Result)
	announce *fleet.Announce // the last one; nil = none yet
	greeted  chan struct{}   // closed with the first announce
}

var errEnding = errors.New("the worker is ending; send the task to another one, or later")

func newLink(serve func(context.Context, io.Reader, io.Writer) error, log zerolog.Logger) *link {
	in, toHost := io.Pipe()
	fromHost, out := io.Pipe()
	ctx, cancel := context.WithCancel(context.Background())
	l := &link{
		log: log, hasty: cancel, ended: make(chan struct{}), in: toHost,
		waiting: make(map[string]func(*fleet.Result)), greeted: make(chan struct{}),
	}
	go func() {
		err := serve(ctx, in, out)
		if err != nil {
			log.Error().Err(err).Msg("the host of the A2A endpoint ended with an error")
		}
		_ = in.CloseWithError(errEnding) // drops a line that is being written
		_ = out.Close()
	}()
	go func() {
		defer close(l.ended)
		l.read(fromHost)
	}()
	return l
}

// close ends the input of the host and waits for its end. When ctx ends, the host must end quickly.
func (l *link) close(ctx context.Context) {
	_ = l.in.Close() // it never fails
	defer context.AfterFunc(ctx, l.hasty)()
	<-l.ended
	l.hasty()
}

// read takes the lines of the host until it ends. Then tasks without a result get an error as their result.
func (l *link) read(from io.Reader) {
	lines := bufio.NewReaderSize(from, 64<<10)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			l.take(line)
		}
		if err != nil {
			break
		}
	}
	l.mu.Lock()
	left := l.waiting
	l.waiting = nil
	l.mu.Unlock()
	for id, done := range left {
		r := fleet.NewResult(id, fleet.StatusError)
		r.Error = "the worker ended before the task did"
		done(r)
	}
}

func (l *link) take(text []byte) {
	var line protocol.Line
	if err := line.Scan(text); err != nil {
		l.log.Error().Err(err).Msg("the host of the A2A endpoint wrote a line that is no message")
		return
	}
	switch protocol.Type(line.Type) {
	case fleet.TypeAnnounce:
		announce := new(fleet.Announce)
		if json.Unmarshal(text, announce) == nil { // cannot fail: the host has encoded it
			l.announced(announce)
		}
	case fleet.TypeResult:
		result := new(fleet.Result)
		if err := json.Unmarshal(text, result); err != nil { // the task must end all the same
			result = fleet.NewResult(line.Object().Text("task_id"), fleet.StatusError)
			result.Error = "the result of the worker cannot be read: " + err.Error()
		}
		l.settle(result)
	}
}

func (l *link) announced(announce *fleet.Announce) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.announce == nil {
		close(l.greeted)
	}
	l.announce = announce
}

func (l *link) settle(result *fleet.Result) {
	l.mu.Lock()
	done := l.waiting[result.TaskID]
	delete(l.waiting, result.TaskID)
	l.mu.Unlock()
	switch {
	case done != nil:
		done(result)
	case result.Error != "": // of a TASK_STEER or TASK_CANCEL that came too late
		l.log.Debug().Str("error", result.Error).Msg("the host of the A2A endpoint refused a message")
	}
}

// greetTimeout bounds the wait for the first announcement.
const greetTimeout = 5 * time.Second

// who returns the last announce of the worker. It waits for the first one, but at most for greetTimeout; nil = there is
// none yet.
func (l *link) who(ctx context.Context) *fleet.Announce {
	select {
	case <-l.greeted:
	case <-l.ended:
	case <-ctx.Done():
	case <-time.After(greetTimeout):
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.announce
}

// dispatch sends a task. done receives its one result, unless dispatch returns an error: then the task was not sent.
func (l *link) dispatch(d *fleet.Dispatch, done func(*fleet.Result)) error {
	l.mu.Lock()
	switch {
	case l.waiting == nil:
		l.mu.Unlock()
		return errEnding
	case l.waiting[d.Task.TaskID] != nil:
		l.mu.Unlock()
		r := fleet.Blocked(d.Task.TaskID, "a task with this task_id is already running here; its result comes once")
		r.Duplicate = true
		done(r)
		return nil
	}
	l.waiting[d.Task.TaskID] = done
	l.mu.Unlock()
	if err := l.send(d); err != nil {
		l.mu.Lock()
		_, there := l.waiting[d.Task.TaskID]
		delete(l.waiting, d.Task.TaskID)
		l.mu.Unlock()
		if there {
			return err
		}
	}
	return nil
}

// send writes a message to the host. It does not wait long, because the host always reads.
func (l *link) send(message any) error {
	line, err := protocol.AppendJSON(nil, message)
	if err != nil {
		return err
	}
	l.write.Lock()
	defer l.write.Unlock()
	if _, err := l.in.Write(append(line, '\n')); err != nil {
		return errEnding
	}
	return nil
}
