package exec

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/lineio"
	"a2e/host/sandbox"
	"a2e/protocol"
)

const (
	maxLastWords = 2 << 10  // bytes kept of the child's stderr for the error that says how it ended
	maxJunk      = 64 << 20 // bytes in a row that are no messages of use, after which it is ended
	maxLate      = 256      // requests that were given up and that it has not ended
)

// child is one process.
type child struct {
	plugin  *Plugin
	log     zerolog.Logger
	started time.Time
	input   *lineio.Outbox
	stdout  *lineio.Splitter
	stderr  *lineio.Splitter
	kill    context.CancelCauseFunc
	ctx     context.Context // ends with the process
	pid     int             // as the host sees it

	// Of the goroutine that reads stdout.
	line  protocol.Line
	noise lineio.Noise
	junk  int  // bytes since the last message of use
	spoke bool // it wrote a message as it should be

	// Of the goroutine that reads stderr.
	words lineio.Tail
	said  lineio.Noise

	endListing func()        // closes listed
	listed     chan struct{} // closed when it has listed its tools, or will not

	done chan struct{} // closed when it has ended and all it wrote was read
	end  error         // how; set before done is closed

	heard atomic.Int64 // when the last line came, since started
	busy  atomic.Bool  // a line is being taken in, which an agent that does not read holds up
	offer atomic.Pointer[offer]

	places  chan struct{} // of requests at once; made by the first handshake
	session session
	streams streams

	mu       sync.Mutex // guards the fields below
	lastID   uint64
	answered uint64              // the highest id that was answered
	mark     uint64              // lastID when something was sent that has no answer
	pending  map[uint64]*pending // nil once it has ended
	late     int                 // of these: nobody waits
	asking   int                 // requests of the child that the agent has not answered
	served   int                 // answers so far
	skipped  int                 // lines of stdout that were no messages
	strays   int                 // messages that belong to nothing
}

// pending is a request that the child has not answered.
type pending struct {
	id    uint64
	want  protocol.Type   // type of the answer
	ctx   context.Context // of the agent's request; nil = the plugin's own
	emit  host.Emitter
	feed  *host.Feed // of messages after the answer; nil = there are none
	place bool       // it holds one
	since time.Time
	limit time.Duration // that it may take, from since
	reply chan reply    // takes one

	early []after // what came for feed before the answer; of the goroutine that reads stdout

	gone bool // nobody waits for the answer; guarded by child.mu
}

// reply is an answer of the child.
type reply struct {
	body []byte // the message without its envelope, an object
	err  error
}

func newChild(p *Plugin, input *os.File) *child {
	c := &child{
		plugin: p, log: p.log, started: p.env.Now(), input: lineio.NewOutbox(input), done: make(chan struct{}), listed: make(chan struct{}),
		noise: lineio.Noise{Burst: 5}, said: lineio.Noise{Burst: 100}, words: lineio.Tail{Size: maxLastWords}, pending: make(map[uint64]*pending),
	}
	c.endListing = sync.OnceFunc(func() { close(c.listed) })
	c.session.init()
	c.streams.init(p.goes.Go)
	c.stdout = &lineio.Splitter{Max: p.env.MaxLineBytes, Line: c.receive, Long: c.tooLong}
	c.stderr = &lineio.Splitter{Max: maxStderrLine, Line: c.hear, Long: c.hearHead}
	return c
}

// send gives a request to the child: t as it spells it, and the members of obj that are
// no envelope.
func (c *child) send(r *pending, t protocol.Type, obj protocol.Object) error {
	c.mu.Lock()
	if c.pending == nil {
		c.mu.Unlock()
		<-c.done
		return c.died(false)
	}
	alone := len(c.pending) == 0 && c.answered >= c.mark
	c.lastID++
	r.id, r.since = c.lastID, c.plugin.env.Now()
	c.pending[r.id] = r
	c.mu.Unlock()
	line := protocol.AppendHeader(make([]byte, 0, len(obj.Raw())+192), t, strconv.AppendUint(nil, r.id, 10), r.since, nil)
	if err := c.input.Add(append(appendMembers(line, obj), '}', '\n'), alone); err != nil {
		c.forget(r)
		return c.unsent(err)
	}
	return nil
}

// unsent is the error of a message that did not go into the child's input.
func (c *child) unsent(err error) error {
	if errors.Is(err, lineio.ErrInputFull) {
		return protocol.Errorf(protocol.CodeOverloaded, "%w: %d MiB wait for it", err, lineio.MaxOutbox>>20)
	}
	return protocol.Errorf(protocol.CodeRuntimeError, "plugin %q: %w", c.plugin.name, err)
}

// tell sends a message that has no answer. What the child's input does not take is lost,
// and the child about to end.
func (c *child) tell(t protocol.Type, reqID protocol.Value, body any) {
	c.mu.Lock()
	c.mark = c.lastID + 1
	c.mu.Unlock()
	line := protocol.AppendHeader(make([]byte, 0, 256), t, strconv.AppendInt([]byte{'t'}, c.plugin.env.Now().UnixNano(), 36), c.plugin.env.Now(), reqID)
	line, err := protocol.AppendBody(line, body)
	if err == nil {
		err = c.input.Add(append(line, '\n'), false)
	}
	if err != nil && !errors.Is(err, lineio.ErrInputClosed) {
		c.log.Warn().Err(err).Str("type", string(t)).Msg("a message to the child of the plugin is lost")
	}
}

// forget takes a request out, and gives back its place. False means that it was out.
func (c *child) forget(r *pending) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.forgetLocked(r)
}

func (c *child) forgetLocked(r *pending) bool {
	if c.pending[r.id] != r {
		return false
	}
	delete(c.pending, r.id)
	if r.gone {
		c.late--
	}
	if r.place {
		<-c.places
	}
	return true
}

// abandon says that nobody waits for an answer any more: the child is told to stop, and
// holds the place of the request until it has.
func (c *child) abandon(r *pending) {
	c.mu.Lock()
	there := c.pending[r.id] == r && !r.gone
	if there {
		r.gone = true
		c.late++
	}
	stuck := c.late > maxLate
	c.mu.Unlock()
	if there {
		c.tell(protocol.TypeCancel, nil, &protocol.Cancel{ReqID: strconv.FormatUint(r.id, 10)})
	}
	if stuck {
		c.kill(fmt.Errorf("it has not ended %d requests that were given up", maxLate))
	}
}

// answer hands an answer to who waits for it.
func (c *child) answer(r *pending, obj protocol.Object, err error) {
	var body []byte
	if err == nil {
		body = bodyOf(obj)
		c.plugin.mute.heard(r.want)
	}
	c.mu.Lock()
	mine := c.forgetLocked(r)
	gone := r.gone
	c.answered = max(c.answered, r.id)
	c.served++
	c.mu.Unlock()
	if !mine {
		return
	}
	if r.feed != nil && !gone && err == nil {
		c.streams.open(r.id, r.feed, r.early)
	}
	r.reply <- reply{body, err}
}

// died is the error of a request that the child does not answer any more. sent tells
// whether it may have begun with it.
func (c *child) died(sent bool) error {
	hint := ""
	if sent {
		hint = "; it may have done a part of the request"
	}
	return protocol.Errorf(protocol.CodeRuntimeError, "plugin %q: %w%s", c.plugin.name, c.end, hint)
}

// owes tells how long the child has owed an answer; 0 = it owes none.
func (c *child) owes() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	var longest time.Duration
	now := c.plugin.env.Now()
	for _, r := range c.pending {
		if r.ctx != nil {
			longest = max(longest, now.Sub(r.since))
		}
	}
	return longest
}

// tooLong deals with a line that is longer than the limit: the request that it answers,
// if its head tells, fails.
func (c *child) tooLong(head []byte) {
	c.alive()
	_ = c.line.Scan(head) // broken off, of course; only the envelope counts
	c.mu.Lock()
	id, ok := number(c.line.ReqID)
	r := c.pending[id]
	c.mu.Unlock()
	if ok && r != nil {
		c.answer(r, protocol.Object{}, protocol.Errorf(protocol.CodeRuntimeError,
			"plugin %q: the child's answer is longer than %d bytes, which limits.max_line_bytes allows", c.plugin.name, c.stdout.Max))
	}
	c.skip(head)
}

// alive notes that the child said something.
func (c *child) alive() { c.heard.Store(int64(c.plugin.env.Now().Sub(c.started))) }

// skip notes a line that is no message.
func (c *child) skip(text []byte) {
	c.mu.Lock()
	c.skipped++
	c.mu.Unlock()
	c.wasted(len(text))
	if hidden, ok := c.noise.Loud(c.plugin.env.Now()); ok {
		c.log.Warn().Bytes("line", c.plugin.secrets.Head(text, maxShown)).Int("hidden", hidden).Msg("skipped a line on stdout of the plugin's child: it is no message")
	}
}

// stray notes a message that belongs to nothing.
func (c *child) stray(why string) {
	c.mu.Lock()
	c.strays++
	c.mu.Unlock()
	c.wasted(len(c.line.Raw()))
	if hidden, ok := c.noise.Loud(c.plugin.env.Now()); ok {
		c.log.Info().Bytes("line", c.plugin.secrets.Head(c.line.Raw(), maxShown)).Int("hidden", hidden).Msg("dropped a message of the plugin's child: " + why)
	}
}

// wasted ends a child that writes nothing but what nobody can use.
func (c *child) wasted(n int) {
	if c.junk += n + 1; c.junk > maxJunk {
		c.kill(fmt.Errorf("it wrote %d MiB in a row to its stdout that are no messages of use", maxJunk>>20))
	}
}

// hear takes one line of stderr.
func (c *child) hear(line []byte) {
	line = c.plugin.secrets.Bytes(line)
	c.words.Add(line)
	if hidden, ok := c.said.Loud(c.plugin.env.Now()); ok {
		c.log.Info().Bytes("stderr", line).Int("hidden", hidden).Msg("the plugin's child says")
	}
}

// hearHead takes the head of a line of stderr that was dropped.
func (c *child) hearHead(head []byte) {
	c.hear(c.plugin.secrets.Head(head, len(head)-c.plugin.secrets.Longest()))
}

// wait waits for the end of the process and tells all that wait for its answers.
func (c *child) wait(proc *sandbox.Process) {
	state, err := proc.Wait()
	c.stdout.End()
	c.stderr.End()
	e := &ended{how: state.String(), words: strings.TrimSpace(c.words.String())}
	if err != nil {
		e.how = err.Error()
	}
	c.end = e
	c.mu.Lock()
	all := c.pending
	c.pending = nil
	c.mu.Unlock()
	close(c.done)
	c.kill(e)
	c.input.Close()
	c.streams.close()
	for _, r := range all {
		r.reply <- reply{err: c.died(true)}
	}
}
