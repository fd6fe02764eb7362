package exec

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/child"
	"a2e/host/guard/wall"
	"a2e/protocol"
)

// maxJunk is the number of bytes in a row without a useful message after which a child is killed.
const maxJunk = 64 << 20

// peer is one process of the child, and the conversation with it.
type peer struct {
	*child.Process
	plugin *Plugin
	log    zerolog.Logger
	calls  child.Pending[uint64, *pending]
	lastID atomic.Uint64

	// Only the goroutine that reads stdout uses these.
	line  protocol.Line
	junk  int  // bytes since the last useful message
	spoke bool // it has written a valid message without the prefix printed

	endListing func()        // closes listed
	listed     chan struct{} // closed when it has listed its tools, or need not be waited for
	changed    atomic.Bool   // its tools may have changed since it listed them

	heard  atomic.Int64  // time of the last line, as time since its start
	busy   atomic.Bool   // a line is being handled; an agent that does not read delays this
	served atomic.Int64  // answers so far
	asking chan struct{} // holds a token for each request of the child that the agent has not answered
	offer  atomic.Pointer[offer]
	folder *wall.Folder // the folder it works in; nil = it is not watched
	remade atomic.Bool  // folder was removed and made again

	places  chan struct{} // one for each request at once; made by the first handshake
	session sharedSession
	streams streams
}

// pending is a request that the child has not answered.
type pending struct {
	id    uint64
	asks  protocol.Type   // type of the request
	want  protocol.Type   // of the answer
	ctx   context.Context // of the agent's request; nil = the plugin's own
	emit  host.Emitter
	feed  *host.Stream // for messages after the answer; nil = none
	place bool         // it holds a place
	since time.Time
	limit time.Duration // the time it may take, from since
	reply chan reply    // takes one
	gone  atomic.Bool   // nobody waits for the answer

	size  int     // bytes of early
	early []after // messages sent before the answer that they must follow; only for the reader of stdout
}

// reply is an answer of the child.
type reply struct {
	body []byte // the message without its envelope, an object
	err  error
}

// launch starts a child, without the handshake.
func (p *Plugin) launch() (*peer, error) {
	policy, err := p.program().Policy()
	if err != nil {
		return nil, err
	}
	c := &peer{plugin: p, log: p.log, listed: make(chan struct{}), asking: make(chan struct{}, maxAsking)}
	// if this fails, a folder that is made again has no effect until the host restarts
	c.folder, _ = wall.OpenFolder(child.Absolute(p.workspace, policy.Dir))
	c.endListing = sync.OnceFunc(func() { close(c.listed) })
	c.session.turn = make(chan struct{}, 1)
	c.Process = child.New(p.ctx, child.Options{
		Name: "the child", Line: c.receive, Long: c.tooLong, MaxLine: p.env.MaxLineBytes, Level: zerolog.InfoLevel,
		Ended: c.over, Go: p.goes.Go, Grace: p.times.farewell, Log: p.log, Secrets: p.secrets, Now: p.env.Now,
	})
	if err := c.Start(p.env.Launcher, policy); err != nil {
		c.closeFolder()
		return nil, fmt.Errorf("the child was not started: %w", err)
	}
	return c, nil
}

// program returns the program that the child runs.
func (p *Plugin) program() *child.Program {
	return &child.Program{
		Command: p.opts.Command, Workspace: p.workspace, Cwd: p.opts.Cwd, Env: p.opts.Env, Read: p.opts.Read,
		Network:  p.opts.Network,
		Launcher: p.env.Launcher,
	}
}

// Needs implements host.Needer: the child needs its program.
func (p *Plugin) Needs() []host.Need {
	return []host.Need{{
		Of: "plugin " + p.name, Option: "command", Look: p.program().Look,
		Wait: p.opts.StartTimeout + time.Second, Live: func(ctx context.Context) (string, error) {
			c, err := p.begin()
			if err != nil {
				return "", err
			}
			c.farewell(ctx, p.times.farewell)
			return "it completes the handshake and serves " + joined(c.offer.Load().caps), nil
		},
	}}
}

// send sends a request to the child: the members of obj without the envelope.
func (c *peer) send(r *pending, obj protocol.Object) error {
	r.id, r.since = c.lastID.Add(1), c.plugin.env.Now()
	line := make([]byte, 0, len(obj.Raw())+192)
	line = protocol.AppendHeader(line, r.asks, strconv.AppendUint(nil, r.id, 10), r.since, nil)
	line = append(appendMembers(line, obj), '}', '\n')
	alone, ok := c.calls.Add(r.id, r)
	if !ok {
		<-c.Done()
		return c.died(false)
	}
	err := c.Send(line, alone)
	if err == nil {
		return nil
	}
	c.forget(r)
	if errors.Is(err, child.ErrInputFull) {
		return protocol.Errorf(protocol.CodeOverloaded, "%w", err)
	}
	return protocol.Errorf(protocol.CodeRuntimeError, "plugin %q: %w", c.plugin.name, err)
}

// tell sends a message that has no answer. If the child's input does not take it, the message is lost;
// then the child is about to end.
func (c *peer) tell(t protocol.Type, reqID protocol.Value, body any) {
	c.calls.Told()
	now := c.plugin.env.Now()
	line := protocol.AppendHeader(make([]byte, 0, 256), t, strconv.AppendInt([]byte{'t'}, now.UnixNano(), 36), now,
		reqID)
	line, err := protocol.AppendBody(line, body)
	if err == nil {
		err = c.Send(append(line, '\n'), false)
	}
	if err != nil && !errors.Is(err, child.ErrInputClosed) {
		c.log.Warn().Err(err).Str("type", string(t)).Msg("a message to the child of the plugin is lost")
	}
}

// forget removes a request that has no answer, and frees its place.
func (c *peer) forget(r *pending) {
	if c.calls.Drop(r.id) {
		c.release(r)
	}
}

// release frees the place of a request that was removed.
func (c *peer) release(r *pending) {
	if r.place {
		<-c.places
	}
}

// abandon tells the child to stop a request, because nobody waits for the answer any more. The request
// keeps its place until the child has answered.
func (c *peer) abandon(r *pending) {
	if _, there := c.calls.Get(r.id); there {
		r.gone.Store(true)
		c.tell(protocol.TypeCancel, nil, &protocol.Cancel{ReqID: strconv.FormatUint(r.id, 10)})
	}
}

// answer passes an answer to the caller that waits for it.
func (c *peer) answer(r *pending, obj protocol.Object, err error) {
	var body []byte
	if err == nil {
		body = bodyOf(obj)
		c.plugin.lists.hear(r.asks, body)
		c.changed.Store(c.changed.Load() || changesTools(r.asks))
	}
	c.served.Add(1)
	gone := r.gone.Load()
	if _, mine := c.calls.Take(r.id); !mine {
		return
	}
	c.release(r)
	follows := r.feed != nil && err == nil && !gone
	if follows {
		c.streams.open(r.id, r.feed)
	}
	r.reply <- reply{body, err}
	for i := 0; follows && i < len(r.early); i++ {
		c.streams.send(r.id, r.early[i])
	}
}

// changesTools reports whether a request of type t may change the tools of a child.
func changesTools(t protocol.Type) bool {
	info, ok := protocol.Lookup(t)
	return ok && slices.Contains(info.Order, protocol.Claim{Key: protocol.KeyTools, Access: protocol.Exclusive})
}

// own sends a request of the plugin itself, which needs no place, and waits for the answer.
func (c *peer) own(ctx context.Context, t protocol.Type, body []byte, within time.Duration) ([]byte, error) {
	obj, err := protocol.ParseObject(body)
	if err != nil {
		return nil, err
	}
	info, _ := protocol.Lookup(t)
	ctx, cancel := context.WithTimeoutCause(ctx, within, fmt.Errorf("it did not answer %s within %s, which "+
		"start_timeout sets", t, within))
	defer cancel()
	r := &pending{asks: t, want: info.Response, limit: within, reply: make(chan reply, 1)}
	if err := c.send(r, obj); err != nil {
		return nil, err
	}
	return c.await(ctx, r)
}

// await waits for an answer. When ctx ends first, it cancels the request and waits for stopGrace,
// so that the child can still answer. A later answer is dropped.
func (c *peer) await(ctx context.Context, r *pending) ([]byte, error) {
	select {
	case got := <-r.reply:
		return got.body, got.err
	case <-ctx.Done():
	}
	c.abandon(r)
	grace := time.NewTimer(stopGrace)
	defer grace.Stop()
	select {
	case got := <-r.reply:
		if own, ok := errors.AsType[*protocol.Error](got.err); !ok || own.Code != protocol.CodeCancelled {
			return got.body, got.err
		}
	case <-grace.C:
	}
	return nil, context.Cause(ctx)
}

// died returns the error for a request that the child does not answer any more. sent = the child may have
// begun with it.
func (c *peer) died(sent bool) error {
	hint := ""
	if sent {
		hint = "; it may have done a part of the request"
	}
	return protocol.Errorf(protocol.CodeRuntimeError, "plugin %q: %w%s", c.plugin.name, c.End(), hint)
}

// over fails all requests that wait for an answer, because the child has ended. New requests wait
// for the next child.
func (c *peer) over(*child.Ended) {
	all := c.calls.End()
	c.streams.leave(nil)
	c.closeFolder()
	c.plugin.restarting()
	for _, r := range all {
		r.reply <- reply{err: c.died(true)}
	}
}

func (c *peer) closeFolder() {
	if c.folder != nil {
		_ = c.folder.Close() // it was only opened to watch it
	}
}

// stale reports whether the child works in a folder that was removed and made again.
func (c *peer) stale() bool { return c.folder != nil && c.folder.Remade() }

// errRemade is the reason for the end of a stale child.
var errRemade = errors.New("its folder was removed and made again; it is started in the new one")

// renew kills a stale child, and returns the channel that is closed once its successor has started.
func (c *peer) renew() (starting chan struct{}) {
	c.remade.Store(true)
	c.plugin.restarting()
	c.Kill(errRemade)
	c.plugin.mu.Lock()
	defer c.plugin.mu.Unlock()
	return c.plugin.starting
}

// owes returns how long the oldest request has waited for the child; 0 = none waits.
func (c *peer) owes() (longest time.Duration) {
	now := c.plugin.env.Now()
	for _, r := range c.calls.Requests() {
		if r.ctx != nil {
			longest = max(longest, now.Sub(r.since))
		}
	}
	return longest
}

// owesList reports whether the child has not answered a request for a list that was given up.
func (c *peer) owesList(answer protocol.Type) bool {
	return slices.ContainsFunc(c.calls.Requests(), func(r *pending) bool { return r.want == answer && r.gone.Load() })
}

// slow reports whether a request has waited for long, or the child owes a list.
func (c *peer) slow(list protocol.Type) bool { return c.owes() >= slowAfter || c.owesList(list) }

// silent returns the time since the last line of the child.
func (c *peer) silent() time.Duration { return c.Lived() - time.Duration(c.heard.Load()) }

// tooLong handles a line that is longer than the limit: it fails the request that the line answers,
// if the head of the line names one.
func (c *peer) tooLong(head []byte) {
	c.heard.Store(int64(c.Lived()))
	_ = c.line.Scan(head) // it is incomplete; only the envelope counts
	if r, ok := c.calls.Get(number(c.line.ReqID)); ok {
		c.answer(r, protocol.Object{}, protocol.Errorf(protocol.CodeRuntimeError,
			"plugin %q: the child's answer is longer than %d bytes, which limits.max_line_bytes allows", c.plugin.name,
			c.plugin.env.MaxLineBytes))
	}
	c.skip(head)
}

// skip logs and counts a line that is not a message.
func (c *peer) skip(text []byte) {
	c.Skip(text)
	c.wasted(len(text))
}

// stray logs and counts a message that is dropped.
func (c *peer) stray(why string) {
	c.Complain(zerolog.InfoLevel, c.line.Raw(), "dropped a message of the child: "+why)
	c.wasted(len(c.line.Raw()))
}

// wasted counts useless bytes, and kills a child that writes more than maxJunk in a row.
func (c *peer) wasted(n int) {
	if c.junk += n + 1; c.junk > maxJunk {
		c.Kill(fmt.Errorf("it wrote %d MiB in a row to its stdout without a useful message", maxJunk>>20))
	}
}

// number returns the number in an id of the plugin; 0 = it is not such an id.
func number(id protocol.Value) uint64 {
	text, _ := id.Str()
	n, _ := strconv.ParseUint(text, 10, 64)
	return n
}

// appendMembers appends the members of a message without the envelope, each after a
// comma.
func appendMembers(dst []byte, obj protocol.Object) []byte {
	for key, val := range obj.All() {
		switch string(key) {
		case "a2e", "version", "type", "id", "ts", "req_id":
			continue
		}
		dst = append(protocol.AppendString(append(dst, ','), key), ':')
		dst = append(dst, val...)
	}
	return dst
}

// bodyOf returns a copy of a message without its envelope.
func bodyOf(obj protocol.Object) []byte {
	body := append(appendMembers(make([]byte, 0, len(obj.Raw())), obj), '}')
	if len(body) == 1 {
		return []byte("{}")
	}
	body[0] = '{'
	return body
}

// decode decodes an answer without its envelope.
func decode(raw []byte, dst any) error {
	obj, err := protocol.ParseObject(raw)
	if err != nil {
		return err
	}
	return protocol.Decode(obj, nil, dst)
}
