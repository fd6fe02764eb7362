package env

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/lineio"
	"a2e/host/sandbox"
	"a2e/protocol"
)

const (
	maxExecLine  = 16 << 20 // longest line of the program's stdout, in bytes
	maxStderr    = 64 << 10 // of its stderr
	maxLastWords = 2 << 10  // bytes kept of its stderr for the error that says how it ended
)

// execChild is one process of the program.
type execChild struct {
	log     zerolog.Logger
	now     func() time.Time
	started time.Time
	input   *lineio.Outbox
	stdout  *lineio.Splitter
	stderr  *lineio.Splitter
	kill    context.CancelCauseFunc

	// Of the goroutine that reads stdout.
	line  protocol.Line
	noise lineio.Noise

	// Of the goroutine that reads stderr.
	words lineio.Tail

	done  chan struct{} // closed when it has ended and all it wrote was read
	end   *execEnd      // set before done is closed
	ended time.Time     // as above

	mu      sync.Mutex            // guards the fields below
	last    uint64                // the last id that was given
	waiting map[uint64]*waiter    // nil once it has ended
	worlds  map[string]*execWorld // by the program's own episode ids
	owed    int                   // answers to come that nobody waits for
	skipped int                   // lines of stdout that were no messages
}

// waiter is a request that was sent.
type waiter struct {
	world *execWorld // whose state the answer tells; nil = of none
	reply chan reply // takes one
	gone  bool       // nobody waits for the episode that it begins; guarded by execChild.mu
}

// reply is one answer of the program.
type reply struct {
	typ  protocol.Type
	line []byte         // the whole of it
	obs  protocol.Value // its member of this name; nil = none
	err  error          // what is wrong with it
}

func newExecChild(log zerolog.Logger, now func() time.Time, input *os.File) *execChild {
	c := &execChild{
		log: log, now: now, started: now(), input: lineio.NewOutbox(input), noise: lineio.Noise{Burst: 1}, words: lineio.Tail{Size: maxLastWords}, done: make(chan struct{}),
		waiting: make(map[uint64]*waiter), worlds: make(map[string]*execWorld),
	}
	c.stdout = &lineio.Splitter{Max: maxExecLine, Line: c.receive, Long: func([]byte) { c.skip([]byte("a line of more than 16 MiB")) }}
	c.stderr = &lineio.Splitter{Max: maxStderr, Line: c.hear, Long: c.hear}
	return c
}

// call sends a request and waits for its answer. world is the one whose state the
// answer tells, or nil. The error is a *protocol.Error, the cause of ctx, or an
// *execEnd.
func (c *execChild) call(ctx context.Context, t protocol.Type, body any, world *execWorld, within time.Duration) (reply, error) {
	w := &waiter{world: world, reply: make(chan reply, 1)}
	id, err := c.send(t, body, w)
	if err != nil {
		return reply{}, err
	}
	host.Detach(ctx)
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case r := <-w.reply:
		return r.check(t)
	case <-c.done:
		err = c.end
	case <-timer.C:
		err = c.late(t, within)
	case <-ctx.Done():
		err = execStopped(ctx)
	}
	c.abandon(id, t)
	select {
	case r := <-w.reply: // it came at the last moment
		return r.check(t)
	default:
		return reply{}, err
	}
}

// send writes a request, whose answer goes to w; nil = nobody waits for it.
func (c *execChild) send(t protocol.Type, body any, w *waiter) (id uint64, err error) {
	c.mu.Lock()
	if c.waiting == nil {
		c.mu.Unlock()
		<-c.done
		return 0, c.end
	}
	c.last++
	id = c.last
	alone := len(c.waiting) == 0 && c.owed == 0
	if w != nil {
		c.waiting[id] = w
	} else {
		c.owed++
	}
	c.mu.Unlock()
	line := protocol.AppendHeader(make([]byte, 0, 512), t, strconv.AppendUint(nil, id, 10), c.now(), nil)
	if line, err = protocol.AppendBody(line, body); err == nil && errors.Is(c.input.Add(append(line, '\n'), alone), lineio.ErrInputFull) {
		err = protocol.Errorf(protocol.CodeOverloaded, "the program of the environment does not read its input: 16 MiB wait for it")
	}
	if err != nil {
		c.abandon(id, "")
	}
	return id, err
}

// abandon gives an answer up. An episode that begins all the same is closed.
func (c *execChild) abandon(id uint64, t protocol.Type) {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.waiting[id]
	switch {
	case w == nil:
	case t == protocol.TypeEnvResetReq:
		w.gone = true
	default:
		delete(c.waiting, id)
		c.owed++
	}
}

// late is the error of a request that was not answered in time.
func (c *execChild) late(t protocol.Type, within time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	hint := ""
	if c.skipped > 0 {
		hint = fmt.Sprintf("; %d lines of its stdout were no messages and went to the log", c.skipped)
	}
	return protocol.Errorf(protocol.CodeTimeout, "the program of the environment did not answer %s within %s%s", t, within, hint)
}

// receive takes one line of stdout.
func (c *execChild) receive(text []byte) {
	if len(bytes.TrimSpace(text)) == 0 {
		return
	}
	text = bytes.Clone(text) // states keep what stands in it
	if err := c.line.Scan(text); err != nil || len(c.line.Type) == 0 {
		c.skip(text)
		return
	}
	r := reply{typ: protocol.Type(c.line.Type), line: text}
	if r.typ == protocol.TypeEnvStatePush {
		c.pushed(c.line.Object())
		return
	}
	w := c.take(c.line.ReqID)
	if w == nil {
		c.log.Debug().Bytes("line", head(text)).Msg("the program of the environment sent an answer that nobody waits for")
		return
	}
	r.obs, _ = c.line.Object().Get("obs")
	if w.world != nil && r.obs != nil {
		w.world.stale.Store(false)
		if r.typ == protocol.TypeEnvResetResp {
			r.err = c.begun(w, r.obs)
		}
	}
	w.reply <- r
}

// take gives the request that an answer belongs to.
func (c *execChild) take(reqID protocol.Value) *waiter {
	text, _ := reqID.Str()
	id, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.waiting[id]
	delete(c.waiting, id)
	if w == nil {
		c.owed = max(c.owed-1, 0)
	}
	return w
}

// begun notes a new episode, so that pushes right behind its first observation find it.
func (c *execChild) begun(w *waiter, raw protocol.Value) error {
	obs, err := protocol.ParseObject(raw)
	if err != nil {
		return malformed("obs: %v", err)
	}
	val, _ := obs.Get("episode_id")
	id, _ := val.Str()
	if id == "" {
		return malformed("obs.episode_id should be a text that names the new episode")
	}
	c.mu.Lock()
	taken, gone := c.worlds[id] != nil, w.gone
	if !taken && !gone {
		w.world.id, c.worlds[id] = id, w.world
	}
	c.mu.Unlock()
	switch {
	case taken:
		return malformed("obs.episode_id %.64q is that of an episode that is open; each episode needs one of its own", id)
	case gone:
		c.forget(id)
	}
	return nil
}

// forget closes an episode that nobody knows of. What the program says to it is lost.
func (c *execChild) forget(id string) {
	_, _ = c.send(protocol.TypeEnvCloseReq, &protocol.EnvCloseRequest{EpisodeID: id}, nil)
}

// pushed passes on a change that no step brought about.
func (c *execChild) pushed(obj protocol.Object) {
	var p protocol.EnvStatePush
	if err := obj.Decode(&p); err != nil {
		c.skip(obj.Raw())
		return
	}
	c.mu.Lock()
	w := c.worlds[p.EpisodeID]
	c.mu.Unlock()
	if w == nil {
		return
	}
	w.stale.Store(true)
	delta, _ := obj.Get("delta")
	info, _ := obj.Get("reward_info")
	w.push(Push{
		Event: p.EventType, Reason: p.Reason, Delta: membersOf(delta), Reward: p.Reward, RewardInfo: membersOf(info), Terminal: p.Terminal,
	})
}

// skip logs a line that is no message, not more than one a second.
func (c *execChild) skip(text []byte) {
	c.mu.Lock()
	c.skipped++
	c.mu.Unlock()
	if hidden, ok := c.noise.Loud(c.now()); ok {
		c.log.Warn().Bytes("line", head(text)).Int("hidden", hidden).Msg("skipped a line on stdout of the program of the environment: it is no message")
	}
}

// head gives what the log shows of a line.
func head(text []byte) []byte { return text[:min(len(text), 200)] }

// hear takes one line of stderr.
func (c *execChild) hear(line []byte) {
	c.log.Debug().Bytes("stderr", line).Msg("the program of the environment says")
	c.words.Add(line)
}

// wait waits for the end of the process and tells all that wait for its answers.
func (c *execChild) wait(proc *sandbox.Process) {
	state, err := proc.Wait()
	c.stdout.End()
	c.stderr.End()
	c.end, c.ended = &execEnd{how: state.String()}, c.now()
	if err != nil {
		c.end.how = err.Error()
	}
	c.end.words = c.words.String()
	c.mu.Lock()
	c.waiting, c.worlds = nil, nil
	c.mu.Unlock()
	close(c.done)
	c.kill(c.end)
	c.input.Close()
}
