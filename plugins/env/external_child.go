package env

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/child"
	"a2e/host/guard/redact"
	"a2e/protocol"
)

// execChild is one process of the program.
type execChild struct {
	*child.Process
	log     zerolog.Logger
	secrets *redact.Set // not shown in the log
	now     func() time.Time
	calls   child.Pending[uint64, *waiter]
	last    atomic.Uint64 // the last id of a request
	line    protocol.Line // used by the goroutine that reads stdout

	mu     sync.Mutex            // guards worlds, and gone of the waiters
	worlds map[string]*execWorld // by the program's own episode ids
}

// waiter is a request that waits for its answer.
type waiter struct {
	want  protocol.Type // type of the answer
	world *execWorld    // whose state the answer has; nil = of none
	reply chan reply    // has room for one
	gone  bool          // nobody waits any more for the episode that the request begins
}

// reply is one answer of the program.
type reply struct {
	typ  protocol.Type
	line []byte         // the whole line
	obs  protocol.Value // its member obs; nil = none
	err  error          // why the answer is invalid
}

func (x *external) program() *child.Program {
	return &child.Program{
		Command: x.opts.Command, Workspace: x.workspace, Cwd: x.opts.Cwd, Env: x.opts.Env, Read: x.opts.Read,
		Network: x.opts.NetworkDisabled != nil && !*x.opts.NetworkDisabled, Launcher: x.env.Launcher,
	}
}

// launch starts the program.
func (x *external) launch() (*execChild, error) {
	policy, err := x.program().Policy()
	if err != nil {
		return nil, err
	}
	c := &execChild{log: x.env.Log, secrets: x.env.Secrets, now: x.env.Now, worlds: make(map[string]*execWorld)}
	c.Process = child.New(x.ctx, child.Options{
		Name: "the program of the environment", Line: c.receive, MaxStderr: 64 << 10, Level: zerolog.DebugLevel,
		Ended: func(*child.Ended) { c.calls.End() }, Idle: c.calls.Idle, Go: x.goes.Go, Grace: x.grace, Log: x.env.Log,
		Now:     x.env.Now,
		Secrets: x.env.Secrets,
	})
	if err := c.Start(x.env.Launcher, policy); err != nil {
		return nil, fmt.Errorf("the program of the environment was not started: %w", err)
	}
	return c, nil
}

// call sends a request and waits for its answer. world is the one whose state the answer has, or nil. The
// error is a *protocol.Error, the cause of ctx, or the *child.Ended of the process.
func (c *execChild) call(ctx context.Context, t protocol.Type, body any, world *execWorld, within time.Duration) (reply,
	error,
) {
	w := &waiter{want: answerTo(t), world: world, reply: make(chan reply, 1)}
	id, err := c.send(t, body, w)
	if err != nil {
		return reply{}, err
	}
	host.AwaitSoon(ctx)
	c.ReadSoon(func() bool {
		return len(w.reply) > 0 ||
			c.calls.Len() > 1
	}) // other waiting requests must not wait for this one
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case r := <-w.reply:
		return r.check(t)
	case <-c.Done():
		err = c.End()
	case <-timer.C:
		err = c.late(t, within)
	case <-ctx.Done():
		err = execStopped(ctx)
	}
	if c.abandon(id, t) {
		return reply{}, err
	}
	select {
	case r := <-w.reply: // it came just in time
		return r.check(t)
	case <-c.Done():
	}
	select {
	case r := <-w.reply:
		return r.check(t)
	default:
		return reply{}, err
	}
}

// send writes a request. Its answer goes to w; nil = nobody waits for it.
func (c *execChild) send(t protocol.Type, body any, w *waiter) (id uint64, err error) {
	id = c.last.Add(1)
	line := protocol.AppendHeader(make([]byte, 0, 512), t, strconv.AppendUint(nil, id, 10), c.now(), nil)
	if line, err = protocol.AppendBody(line, body); err != nil {
		return id, err
	}
	alone, ok := c.calls.Add(id, w)
	if !ok {
		<-c.Done()
		return 0, c.End()
	}
	if w == nil {
		c.calls.Drop(id)
	}
	if errors.Is(c.Send(append(line, '\n'), alone), child.ErrInputFull) {
		c.calls.Drop(id)
		return id, protocol.Errorf(protocol.CodeOverloaded, "%w", child.ErrInputFull)
	}
	return id, nil
}

// abandon gives up waiting for an answer; false = the answer is being read, or the program has ended. An
// episode that the request still begins is closed.
func (c *execChild) abandon(id uint64, t protocol.Type) bool {
	if t != protocol.TypeEnvResetReq {
		return c.calls.Drop(id)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	w, ok := c.calls.Get(id)
	if ok {
		w.gone = true
	}
	return ok
}

// late returns the error of a request that was not answered in time.
func (c *execChild) late(t protocol.Type, within time.Duration) error {
	hint := ""
	if n := c.Skipped(); n > 0 {
		hint = fmt.Sprintf("; the log has %s of its stdout that did not hold a message", protocol.Count(n, "line"))
	}
	return protocol.Errorf(protocol.CodeTimeout, "the program of the environment did not answer %s within %s%s", t,
		within, hint)
}

// receive handles one line of stdout.
func (c *execChild) receive(text []byte) {
	if len(bytes.TrimSpace(text)) == 0 {
		return
	}
	text = bytes.Clone(text) // states keep parts of it
	fault := c.line.Scan(text)
	reqID, _ := c.line.ReqID.Str()
	id, _ := strconv.ParseUint(reqID, 10, 64) // no req_id becomes 0
	_, waits := c.calls.Get(id)
	if len(c.line.Type) == 0 || fault != nil && !waits {
		c.Skip(text)
		return
	}
	r := reply{typ: protocol.Type(c.line.Type), line: text}
	if r.typ == protocol.TypeEnvStatePush {
		c.pushed(c.line.Object())
		return
	}
	w, _ := c.calls.Take(id)
	if w == nil {
		c.log.Debug().Bytes("line", c.secrets.OwnHead(text, 200)).
			Msg("the program of the environment sent an answer that nobody waits for")
		return
	}
	if fault != nil { // such as a NaN: the request has its answer and need not wait
		if own, ok := errors.AsType[*protocol.Error](fault); ok {
			fault = errors.New(own.Message) // its code is for lines of the agent
		}
		r.typ, r.err = w.want, malformed("%v", fault)
		w.reply <- r
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

// begun registers a new episode, so that pushes right after its first observation find it.
func (c *execChild) begun(w *waiter, raw protocol.Value) error {
	obs, err := protocol.ParseObject(raw)
	if err != nil {
		return malformed("obs: %v", err)
	}
	id := obs.Text("episode_id")
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
		return malformed("obs.episode_id %.64q is that of an episode that is open; each episode needs one of its own",
			id)
	case gone: // nobody knows the episode; pushes until it is closed are dropped
		_, _ = c.send(protocol.TypeEnvCloseReq, &protocol.EnvCloseRequest{EpisodeID: id}, nil)
	}
	return nil
}

// pushed passes on a push of the program.
func (c *execChild) pushed(obj protocol.Object) {
	var p protocol.EnvStatePush
	if err := obj.Decode(&p); err != nil {
		c.Skip(obj.Raw())
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
	p.ActionID, p.Delta, p.RewardInfo = nil, membersOf(delta), membersOf(info)
	w.push(&p)
}
