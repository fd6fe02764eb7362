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

// maxJunk is how many bytes in a row that are no messages of use end a child.
const maxJunk = 64 << 20

// peer is one process of the child, and the conversation with it.
type peer struct {
	*child.Process
	plugin *Plugin
	log    zerolog.Logger
	calls  child.Pending[uint64, *pending]
	lastID atomic.Uint64

	// Of the goroutine that reads stdout.
	line  protocol.Line
	junk  int  // bytes since the last message of use
	spoke bool // it wrote a message as it should be

	endListing func()        // closes listed
	listed     chan struct{} // closed when it has listed its tools, or will not
	changed    atomic.Bool   // something may have given it other tools since

	heard  atomic.Int64  // when the last line came: how long it had lived
	busy   atomic.Bool   // a line is being taken in, which an agent that does not read holds up
	served atomic.Int64  // answers so far
	asking chan struct{} // holds a place for each request of the child that the agent has not answered
	offer  atomic.Pointer[offer]
	folder *wall.Folder // that it works in; nil = nobody looks after it
	remade atomic.Bool  // that was removed and made again

	places  chan struct{} // of requests at once; made by the first handshake
	session session
	streams streams
}

// pending is a request that the child has not answered.
type pending struct {
	id    uint64
	asks  protocol.Type   // its own type
	want  protocol.Type   // of the answer
	ctx   context.Context // of the agent's request; nil = the plugin's own
	emit  host.Emitter
	feed  *host.Stream // of messages after the answer; nil = there are none
	place bool         // it holds one
	since time.Time
	limit time.Duration // that it may take, from since
	reply chan reply    // takes one
	gone  atomic.Bool   // nobody waits for the answer

	size  int     // bytes of early
	early []after // what came before the answer that it should follow; of the goroutine that reads stdout
}

// reply is an answer of the child.
type reply struct {
	body []byte // the message without its envelope, an object
	err  error
}

// launch starts a child. It has not shaken hands yet.
func (p *Plugin) launch() (*peer, error) {
	policy, err := p.program().Policy()
	if err != nil {
		return nil, err
	}
	c := &peer{plugin: p, log: p.log, listed: make(chan struct{}), asking: make(chan struct{}, maxAsking)}
	// without it, only a restart of the host follows a folder that was made again
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

// program is what the child is started by.
func (p *Plugin) program() *child.Program {
	return &child.Program{
		Command: p.opts.Command, Workspace: p.workspace, Cwd: p.opts.Cwd, Env: p.opts.Env, Read: p.opts.Read,
		Network:  p.opts.Network,
		Launcher: p.env.Launcher,
	}
}

// Needs implements host.Needer: the program.
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

// send sends a request to the child: the members of obj that are no envelope.
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

// tell sends a message that has no answer. What the child's input does not take is lost,
// and the child about to end.
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

// forget takes a request out that has no answer, and gives back its place.
func (c *peer) forget(r *pending) {
	if c.calls.Drop(r.id) {
		c.release(r)
	}
}

// release gives back the place of a request that was taken out.
func (c *peer) release(r *pending) {
	if r.place {
		<-c.places
	}
}

// abandon says that nobody waits for an answer any more: the child is told to stop, and
// holds the place of the request until it has.
func (c *peer) abandon(r *pending) {
	if _, there := c.calls.Get(r.id); there {
		r.gone.Store(true)
		c.tell(protocol.TypeCancel, nil, &protocol.Cancel{ReqID: strconv.FormatUint(r.id, 10)})
	}
}

// answer hands an answer to who waits for it.
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

// changesTools reports whether a child may have other tools after a request of a type.
func changesTools(t protocol.Type) bool {
	info, ok := protocol.Lookup(t)
	return ok && slices.Contains(info.Order, protocol.Claim{Key: protocol.KeyTools, Access: protocol.Exclusive})
}

// own makes a request of the plugin itself, which needs no place.
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

// await waits for an answer. Where it does not come in time the child is told, and has a
// moment to say what became of the request; what it says later is dropped.
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

// died is the error of a request that the child does not answer any more. sent tells
// whether it may have begun with it.
func (c *peer) died(sent bool) error {
	hint := ""
	if sent {
		hint = "; it may have done a part of the request"
	}
	return protocol.Errorf(protocol.CodeRuntimeError, "plugin %q: %w%s", c.plugin.name, c.End(), hint)
}

// over tells all that wait for an answer that the child has ended. Whoever asks again waits
// for the next one.
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
		_ = c.folder.Close() // it was only looked at
	}
}

// stale reports whether the child works in a folder that was removed and made again.
func (c *peer) stale() bool { return c.folder != nil && c.folder.Remade() }

// errRemade is why a stale child ends.
var errRemade = errors.New("its folder was removed and made again; it is started in the new one")

// renew ends a stale child, and returns what is closed once another one has started in its place.
func (c *peer) renew() (starting chan struct{}) {
	c.remade.Store(true)
	c.plugin.restarting()
	c.Kill(errRemade)
	c.plugin.mu.Lock()
	defer c.plugin.mu.Unlock()
	return c.plugin.starting
}

// owes tells how long the child has owed an answer; 0 = it owes none.
func (c *peer) owes() (longest time.Duration) {
	now := c.plugin.env.Now()
	for _, r := range c.calls.Requests() {
		if r.ctx != nil {
			longest = max(longest, now.Sub(r.since))
		}
	}
	return longest
}

// owesList reports whether it has not given a list that it was asked for.
func (c *peer) owesList(answer protocol.Type) bool {
	return slices.ContainsFunc(c.calls.Requests(), func(r *pending) bool { return r.want == answer && r.gone.Load() })
}

// slow reports whether it has owed an answer for long, or a list that it was asked for.
func (c *peer) slow(list protocol.Type) bool { return c.owes() >= slowAfter || c.owesList(list) }

// silent is how long the child has said nothing.
func (c *peer) silent() time.Duration { return c.Lived() - time.Duration(c.heard.Load()) }

// tooLong deals with a line that is longer than the limit: the request that it answers,
// if its head tells, fails.
func (c *peer) tooLong(head []byte) {
	c.heard.Store(int64(c.Lived()))
	_ = c.line.Scan(head) // broken off, of course; only the envelope counts
	if r, ok := c.calls.Get(number(c.line.ReqID)); ok {
		c.answer(r, protocol.Object{}, protocol.Errorf(protocol.CodeRuntimeError,
			"plugin %q: the child's answer is longer than %d bytes, which limits.max_line_bytes allows", c.plugin.name,
			c.plugin.env.MaxLineBytes))
	}
	c.skip(head)
}

// skip notes a line that is no message.
func (c *peer) skip(text []byte) {
	c.Skip(text)
	c.wasted(len(text))
}

// stray notes a message that belongs to nothing.
func (c *peer) stray(why string) {
	c.Complain(zerolog.InfoLevel, c.line.Raw(), "dropped a message of the child: "+why)
	c.wasted(len(c.line.Raw()))
}

// wasted ends a child that writes nothing but what nobody can use.
func (c *peer) wasted(n int) {
	if c.junk += n + 1; c.junk > maxJunk {
		c.Kill(fmt.Errorf("it wrote %d MiB in a row to its stdout without a useful message", maxJunk>>20))
	}
}

// number reads an id that the plugin gave; 0 = it gave no such one.
func number(id protocol.Value) uint64 {
	text, _ := id.Str()
	n, _ := strconv.ParseUint(text, 10, 64)
	return n
}

// appendMembers appends the members of a message that are no envelope, each behind a
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

// bodyOf returns a message without its envelope, in memory of its own.
func bodyOf(obj protocol.Object) []byte {
	body := append(appendMembers(make([]byte, 0, len(obj.Raw())), obj), '}')
	if len(body) == 1 {
		return []byte("{}")
	}
	body[0] = '{'
	return body
}

// decode reads an answer without its envelope.
func decode(raw []byte, dst any) error {
	obj, err := protocol.ParseObject(raw)
	if err != nil {
		return err
	}
	return protocol.Decode(obj, nil, dst)
}
