package exec

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/child"
	"a2e/protocol"
)

// sort is the purpose of a message of the child.
type sort int

const (
	noSort   sort = iota
	answer        // of a request
	event         // before or after an answer, or without a request
	question      // to the agent
)

// sortOf returns the sort of a type; for the child's own types the end of the name decides.
func sortOf(t protocol.Type) sort {
	if info, ok := protocol.Lookup(t); ok {
		switch info.Direction {
		case protocol.HostResponse:
			return answer
		case protocol.HostEvent:
			return event
		case protocol.HostRequest:
			return question
		}
		return noSort
	}
	switch {
	case t == protocol.TypeMCPElicitReq:
		return question
	case !isCustom(t):
		return noSort
	case strings.HasSuffix(string(t), "/req"):
		return question
	case strings.HasSuffix(string(t), "/resp"):
		return answer
	}
	return event
}

// receive handles one line of stdout.
func (c *peer) receive(text []byte) {
	c.busy.Store(true)
	defer c.busy.Store(false)
	c.heard.Store(int64(c.Lived()))
	if len(bytes.TrimSpace(text)) == 0 {
		return
	}
	fault := c.line.Scan(text)
	if fault == nil && c.line.Check() == nil {
		c.take()
		c.spoke = true
		return
	}
	if fault != nil && c.faulty(fault) {
		return
	}
	if shown, ok := bytes.CutPrefix(text, printed); ok && !c.spoke && c.line.Scan(shown) == nil &&
		c.line.Check() == nil {
		c.take()
		return
	}
	c.skip(text)
}

// faulty fails the request that a line with a fault answers, such as a line with a NaN, so
// that the request does not wait any longer. It returns false if the line answers none.
func (c *peer) faulty(fault error) bool {
	r, waits := c.calls.Get(number(c.line.ReqID))
	t := protocol.Canonical(protocol.Type(c.line.Type))
	if !waits || t != r.want && t != protocol.TypeError {
		return false
	}
	if own, ok := errors.AsType[*protocol.Error](fault); ok {
		fault = errors.New(own.Message) // its code is meant for lines of the agent
	}
	c.answer(r, c.line.Object(), protocol.Errorf(
		protocol.CodeRuntimeError, "plugin %q: the child's %s does not fit: %w", c.plugin.name, t, fault))
	return true
}

// printed is the prefix of each message that the executor of the public Python SDK writes: it
// prints messages for people to read, and its host for stdin and stdout writes nothing else.
// Once a child has written a message without the prefix, lines with the prefix are ignored.
var printed = []byte("line: ")

// take passes a message on to the request, the stream or the agent that it belongs to.
func (c *peer) take() {
	t := protocol.Canonical(protocol.Type(c.line.Type))
	obj, misfit := protocol.Mend(t, c.line.Object())
	kind := sortOf(t)
	if misfit != nil && kind != answer {
		c.skip(c.line.Object().Raw())
		return
	}
	id := number(c.line.ReqID)
	nameless := c.line.ReqID == nil || string(c.line.ReqID) == `""`
	r, _ := c.calls.Get(id)
	if nameless && kind == answer {
		r = c.only(t)
	}
	if t == protocol.TypeEnvStatePush && !c.session.any(func(u *host.Session) bool { return u.Pushes }) {
		c.junk = 0
		return
	}
	gone := r != nil && r.gone.Load()
	if r != nil && kind != question {
		c.junk = 0
		switch {
		case t == protocol.TypeError:
			c.answer(r, obj, c.refusal(obj))
		case t == r.want:
			c.answer(r, obj, c.unfit(t, obj, misfit))
		case kind == answer:
			c.answer(r, obj, protocol.Errorf(protocol.CodeRuntimeError, "plugin %q: the child answered with %.64q, "+
				"should be %s", c.plugin.name, t, r.want))
		case kind == event && !gone && r.feed != nil && follows(t):
			c.tooSoon(r, newAfter(t, obj))
		case kind == event && !gone:
			c.event(r, t, obj)
		}
		return
	}
	switch {
	case kind == question:
		c.junk = 0
		c.ask(r, t, obj)
	case kind == event && !nameless && c.streams.send(id, newAfter(t, obj)):
		c.junk = 0
	case kind == event && nameless && c.open(t):
		c.junk = 0
		_ = c.plugin.services.Push(t, jsontext.Value(bodyOf(obj))) // an error means that there is no session now
	default:
		c.stray("it belongs to no request that waits")
	}
}

// tooSoon keeps a message that was sent before the answer, but must follow it.
func (c *peer) tooSoon(r *pending, m after) {
	if r.size += len(m.body); len(r.early) == maxEarly || r.size > maxEarlyBytes {
		c.stray("too much comes before the answer that it should follow")
		return
	}
	r.early = append(r.early, m)
}

// only returns the only request that waits for an answer of type t, or nil if there are none or several. It
// serves answers without req_id, as the public Python SDK sends some.
func (c *peer) only(t protocol.Type) (only *pending) {
	for _, r := range c.calls.Requests() {
		if r.want == t {
			if only != nil {
				return nil
			}
			only = r
		}
	}
	return only
}

// unfit returns an error if an answer lacks something that its type requires.
func (c *peer) unfit(t protocol.Type, obj protocol.Object, misfit error) error {
	fail := func(format string, args ...any) error {
		return protocol.Errorf(protocol.CodeRuntimeError, "plugin %q: the child's %s %w", c.plugin.name, t,
			fmt.Errorf(format, args...))
	}
	if misfit != nil {
		return fail("does not fit: %w", misfit)
	}
	if info, ok := protocol.Lookup(t); ok {
		if field := lacks(obj, info.Required); field != "" {
			return fail("has no %q", field)
		}
	}
	switch t {
	case protocol.TypeToolCallResp:
		data, ok := obj.Child("data")
		if field := lacks(data, []string{"success", "tool_name", "duration_ms"}); !ok || field != "" {
			return fail("has no %q in its data, which should be an object at /data", field)
		}
	case protocol.TypeEnvStepResp: // an agent cannot learn from a reward that is not a finite number
		obs, ok := obj.Child("obs")
		reward, given := obs.Get("reward")
		if _, err := strconv.ParseFloat(string(reward), 64); !ok || given && reward.Kind() != 'n' && err != nil {
			return fail("has a reward that is %.64s; should be a finite number", reward)
		}
	}
	return nil
}

// lacks returns the first of the fields that an object does not have, or "" if it has all.
func lacks(obj protocol.Object, fields []string) string {
	for _, field := range fields {
		if _, ok := obj.Get(field); !ok {
			return field
		}
	}
	return ""
}

// open reports whether a session that uses the child has the capability of type t, for a message
// that belongs to no request.
func (c *peer) open(t protocol.Type) bool {
	o := c.offer.Load()
	if o == nil {
		return false
	}
	name := o.custom[t] // "" if the child did not name the type
	if info, ok := protocol.Lookup(t); ok && info.Capability != protocol.CapCore {
		if name = info.Capability; !slices.Contains(o.caps, name) {
			return false
		}
	}
	return c.session.any(func(u *host.Session) bool { return name == "" || u.Caps[name] })
}

// event passes on a message that is sent before the answer of a request.
func (c *peer) event(r *pending, t protocol.Type, obj protocol.Object) {
	if r.ctx == nil {
		return
	}
	switch t {
	case protocol.TypeInvokeEvent, protocol.TypeToolEvent, protocol.TypeSkillEvent:
		c.emit(r.emit, obj)
		return
	}
	host.Emit(r.ctx, t, func(seq int) any {
		numbered, _ := obj.With("seq", strconv.AppendInt(nil, int64(seq), 10))
		return jsontext.Value(bodyOf(numbered))
	})
}

// emit passes on an event of a tool or skill. An event whose kind the protocol does not
// have is sent as a log event, which every protocol of the host can show.
func (c *peer) emit(to host.Emitter, obj protocol.Object) {
	kind, named := obj.Get("kind")
	data, _ := obj.Get("data")
	name, isText := kind.Str()
	if named && !isText {
		c.skip(obj.Raw())
		return
	}
	switch known, err := child.Emit(to, cmp.Or(protocol.EventKind(name), protocol.EventStatus), data); {
	case err != nil:
		c.skip(obj.Raw())
	case !known:
		to.Log("info", strings.TrimSuffix(name+": "+string(data), ": "), "")
	}
}

// maxAsking bounds the requests of one child that wait for the agent.
const maxAsking = 32

// ask passes a request of the child on to the agent, and the answer back to the child. r is the
// request of the agent that it belongs to, or nil.
func (c *peer) ask(r *pending, t protocol.Type, obj protocol.Object) {
	id := bytes.Clone(c.line.ID)
	if len(id) == 0 {
		c.stray("it asks something and has no id")
		return
	}
	select {
	case c.asking <- struct{}{}:
	default:
		c.tell(protocol.TypeError, id, protocol.Errorf(protocol.CodeOverloaded, "%d requests wait for the agent "+
			"already", maxAsking))
		return
	}
	ctx := c.plugin.ctx
	if r != nil && r.ctx != nil {
		ctx = r.ctx
	} else if last := c.last(); last != nil {
		ctx = context.WithoutCancel(last.ctx)
	}
	body := bodyOf(obj)
	c.plugin.goes.Go(func() {
		c.askAgent(ctx, id, t, body)
		<-c.asking
	})
}

// last returns the newest request of the agent that the child works on: a question of the child
// most likely belongs to that request.
func (c *peer) last() (last *pending) {
	for _, r := range c.calls.Requests() {
		if r.ctx != nil && !r.gone.Load() && (last == nil || r.id > last.id) {
			last = r
		}
	}
	return last
}

// askAgent asks the agent on behalf of the request of ctx, and sends the answer to the child.
func (c *peer) askAgent(ctx context.Context, id protocol.Value, t protocol.Type, body jsontext.Value) {
	ctx, cancel := context.WithTimeout(ctx, c.plugin.times.ask)
	defer cancel()
	defer context.AfterFunc(c.Context(), cancel)()
	var resp protocol.Object
	err := c.plugin.services.Ask(ctx, t, body, &resp)
	switch {
	case c.Context().Err() != nil:
	case err == nil:
		c.tell(protocol.Type(resp.Text("type")), id, jsontext.Value(bodyOf(resp)))
	default:
		own, ok := errors.AsType[*protocol.Error](err)
		if !ok {
			own = protocol.Errorf(protocol.CodeTimeout, "the agent did not answer %s: %w", t, err)
		}
		c.tell(protocol.TypeError, id, own)
	}
}
