package exec

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/protocol"
)

const (
	stopGrace  = 150 * time.Millisecond // wait for the answer to a cancel; the host waits a little longer
	listWithin = 5 * time.Second        // wait for a list; the lists of other plugins wait for it
)

// request is a request of the agent on its way to the child.
type request struct {
	message
	typ   protocol.Type
	want  protocol.Type // type of the answer
	about string        // name of the tool, process or other thing it is about; "" = none
	obj   protocol.Object
	emit  host.Emitter
}

// handler returns the function that answers a request type of the protocol.
func (p *Plugin) handler(t protocol.Type, m message) handler {
	info, _ := protocol.Lookup(t)
	return func(ctx context.Context, obj protocol.Object, emit host.Emitter) (jsontext.Value, error) {
		q := &request{message: m, typ: t, want: info.Response, obj: obj, emit: emit}
		if !q.list && t != protocol.TypeMCPServerRegisterReq { // there the name is for a new server
			q.about = named(obj, info)
		}
		c, err := p.childFor(ctx, q)
		if err != nil {
			return nil, err
		}
		if t == protocol.TypeToolListReq {
			return p.listTools(ctx, c, q)
		}
		if err := p.owns(ctx, c, q); err != nil {
			return nil, err
		}
		if t == protocol.TypeToolCallReq {
			if err := p.lists.tools.Load().fit(q); err != nil {
				return nil, err
			}
		}
		return p.serve(ctx, c, q)
	}
}

// custom returns the function that answers a type of the child's own; "" = the type in the request.
func (p *Plugin) custom(t protocol.Type) handler {
	return func(ctx context.Context, obj protocol.Object, emit host.Emitter) (jsontext.Value, error) {
		q := &request{message: message{feeds: true}, typ: t, obj: obj, emit: emit}
		if t == "" {
			q.typ = protocol.Type(obj.Text("type"))
		}
		q.want = protocol.Type(strings.TrimSuffix(string(q.typ), "/req") + "/resp")
		c, err := p.childFor(ctx, q)
		if err != nil {
			return nil, err
		}
		if sess := host.SessionFrom(ctx); sess != nil && !c.offer.Load().allows(q.typ, sess) {
			return nil, host.NotOwner(protocol.Errorf(protocol.CodeCapabilityMissing,
				"%s belongs to a capability of plugin %q that this session did not get; name it in agent_caps of "+
					"the handshake", q.typ, p.name))
		}
		return p.serve(ctx, c, q)
	}
}

// childFor returns the child if it runs and serves the request. It waits for a child that is being
// started, if no other plugin can answer.
func (p *Plugin) childFor(ctx context.Context, q *request) (*peer, error) {
	for waited := false; ; waited = true {
		p.mu.Lock()
		c, o, starting, down := p.child, p.offer, p.starting, p.down
		p.mu.Unlock()
		if c != nil {
			o = c.offer.Load()
		}
		if o != nil && !o.serves(q.typ) {
			return nil, host.NotOwner(notServed(q.typ))
		}
		if c != nil {
			if !c.stale() {
				return c, nil
			}
			o, starting = nil, c.renew()
		}
		// another plugin must not do it instead: it would act on other things
		itsTool := q.typ == protocol.TypeToolCallReq && p.lists.tools.Load().has(q.about)
		mine := o != nil && !q.list && (q.about == "" || itsTool)
		if starting == nil || waited || !mine && o != nil {
			err := p.refuse(down)
			if mine {
				return nil, err
			}
			return nil, host.NotOwner(err)
		}
		host.HandOff(ctx)
		select {
		case <-starting:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// notServed returns the error for a type that the child does not serve.
func notServed(t protocol.Type) *protocol.Error {
	if _, standard := protocol.Lookup(t); standard {
		return protocol.Errorf(protocol.CodeCapabilityMissing, "no loaded plugin serves %s", t)
	}
	return protocol.Errorf(protocol.CodeInvalidMessage, "unknown type %.64q; `a2e schema protocol` lists the types", t)
}

// serve sends a request to the child, checks the answer and records the call.
func (p *Plugin) serve(ctx context.Context, c *peer, q *request) (jsontext.Value, error) {
	if q.list && (c.owesList(q.want) || host.WantsKnown(ctx) && c.owes() >= slowAfter) {
		return nil, host.NotOwner(protocol.Errorf(protocol.CodeTimeout, "plugin %q: the child is busy", p.name))
	}
	start := p.env.Now()
	body, err := p.forward(ctx, c, q)
	if err == nil && q.valid != nil {
		err = p.fits(body, q)
	}
	if own, ok := errors.AsType[*protocol.Error](err); ok && (q.list || notOwned(own.Code)) && ctx.Err() == nil {
		if q.list && own.Code != protocol.CodeCapabilityMissing {
			c.log.Warn().Err(err).Str("type", string(q.typ)).Msg("the plugin's child is left out of a list")
		}
		return nil, notKnown(own, q.about)
	}
	p.record(ctx, q, body, err, p.env.Now().Sub(start))
	return body, err
}

// forward sends a request to the child and waits for its answer.
func (p *Plugin) forward(ctx context.Context, c *peer, q *request) (body []byte, err error) {
	host.HandOff(ctx)
	if err := c.join(ctx, host.SessionFrom(ctx)); err != nil {
		return nil, err
	}
	limited, cancel, limit := p.limited(ctx, c, q)
	defer cancel()
	info, _ := protocol.Lookup(q.typ)
	r := &pending{asks: q.typ, want: q.want, ctx: ctx, emit: q.emit, limit: limit, reply: make(chan reply, 1)}
	if info == nil || !info.NoSlot {
		if err := c.place(limited); err != nil {
			return nil, err
		}
		r.place = true
	}
	if q.feeds {
		r.feed = host.OpenStream(ctx)
		defer func() {
			if err != nil {
				r.feed.Close()
			}
		}()
	}
	if err := c.send(r, q.obj); err != nil {
		return nil, err
	}
	if info != nil && (info.NoSlot || info.Capability == protocol.CapMultiAgent) { // the child keeps their order
		host.ReleaseOrder(ctx)
	}
	return c.await(limited, r)
}

// limited bounds the time of a request, unless the host does. A list is always bounded.
func (p *Plugin) limited(ctx context.Context, c *peer, q *request) (limited context.Context, cancel context.CancelFunc,
	limit time.Duration,
) {
	end, bounded := ctx.Deadline()
	switch limit = p.opts.Timeout; {
	case q.list:
		limit = min(limit, listWithin)
	case bounded:
		return ctx, func() {}, time.Until(end)
	}
	limited, cancel = context.WithTimeoutCause(ctx, limit, protocol.Errorf(protocol.CodeTimeout,
		"plugin %q: the child did not answer %s within %s", p.name, q.typ, limit))
	return limited, cancel, limit
}

// place waits for one of the child's places for requests.
func (c *peer) place(ctx context.Context) error {
	select {
	case c.places <- struct{}{}:
		return nil
	case <-c.Done():
		return c.died(false)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// notOwned reports whether an error code of the child means that it does not have the thing that
// the request names, or does not know such requests.
func notOwned(code protocol.ErrorCode) bool {
	return slices.Contains([]protocol.ErrorCode{
		protocol.CodeUnknownTool, protocol.CodeUnknownSkill, protocol.CodeUnknownEnv, protocol.CodeUnknownEpisode,
		protocol.CodeUnknownProc, protocol.CodeMemoryNotFound, protocol.CodeMCPServerNotFound,
		protocol.CodeUnknownSubagent, protocol.CodeCapabilityMissing, protocol.CodeInvalidMessage,
		protocol.CodeParseError,
	}, code)
}

// fits checks an answer that is merged with those of other plugins.
func (p *Plugin) fits(body []byte, q *request) error {
	obj, err := protocol.ParseObject(body)
	if err == nil {
		err = q.valid(obj)
	}
	if err != nil {
		return protocol.Errorf(protocol.CodeRuntimeError, "plugin %q: the child's answer to %s does not fit: %w",
			p.name, q.typ, err)
	}
	return nil
}

// record records a call of a tool or skill.
func (p *Plugin) record(ctx context.Context, q *request, body []byte, err error, took time.Duration) {
	rec := host.CallOutcome{Component: q.about, Duration: took, Correlation: q.obj.Text("correlation_id")}
	switch {
	case err != nil && host.CutShort(ctx):
		return
	case q.typ == protocol.TypeToolCallReq:
		rec.Kind = host.KindTool
	case q.typ == protocol.TypeSkillCallReq:
		rec.Kind = host.KindSkill
	default:
		return
	}
	if err == nil {
		obj, _ := protocol.ParseObject(body)
		data, _ := obj.Child("data")
		success, _ := data.Get("success")
		rec.Success = success.Kind() == 't'
	}
	p.services.CountCall(ctx, rec)
}

// refusal decodes an error of the child. It changes the code unauthorized, which is about the child's
// session and not about the agent's.
func (c *peer) refusal(obj protocol.Object) *protocol.Error {
	var said struct {
		Code       protocol.ErrorCode        `json:"code"`
		Message    string                    `json:"message"`
		Detail     map[string]jsontext.Value `json:"detail"`
		Retryable  bool                      `json:"retryable"`
		Capability string                    `json:"capability_name"`
	}
	if err := obj.Decode(&said); err != nil || said.Code == "" {
		return protocol.Errorf(protocol.CodeRuntimeError, "plugin %q: the child answered with a malformed error: %s",
			c.plugin.name, c.plugin.secrets.OwnHead(obj.Raw(), 200))
	}
	said.Message = c.plugin.secrets.Text(said.Message)
	if said.Code == protocol.CodeUnauthorized {
		return protocol.Errorf(protocol.CodeRuntimeError, "plugin %q: the child says %.200q", c.plugin.name,
			said.Message)
	}
	e := &protocol.Error{
		Code: said.Code, Message: said.Message, Retryable: said.Retryable,
		CapabilityName: said.Capability,
	}
	for key, val := range said.Detail {
		e.With(key, val)
	}
	return e
}

// notKnown returns the error of a child for a name that it does not know. It removes the child's names from the text,
// since the host lists those of all plugins.
func notKnown(e *protocol.Error, name string) error {
	val, _ := e.Detail["known"].(jsontext.Value)
	names, ok := protocol.Value(val).Strings()
	if !ok {
		return host.NotOwner(e)
	}
	for _, link := range []string{"; did you mean ", "; there are: "} {
		e.Message, _, _ = strings.Cut(e.Message, link)
	}
	return host.NotKnown(e, name, names)
}
