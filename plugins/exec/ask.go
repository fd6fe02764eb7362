package exec

import (
	"bytes"
	"context"
	"errors"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/protocol"
)

// maxAsking is how many requests of one child the agent may owe an answer to.
const maxAsking = 32

// ask passes a request of the child on to the agent, and the answer back. r is the
// request of the agent that it names, or nil.
func (c *peer) ask(r *pending, t protocol.Type, obj protocol.Object) {
	id := bytes.Clone(c.line.ID)
	if len(id) == 0 {
		c.stray("it asks something and has no id")
		return
	}
	select {
	case c.asking <- struct{}{}:
	default:
		c.tell(protocol.TypeError, id, protocol.Errorf(protocol.CodeOverloaded, "%d requests wait for the agent already", maxAsking))
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

// last returns the last request of the agent that the child works on: the one that asks
// something most likely asks on behalf of it.
func (c *peer) last() (last *pending) {
	for _, r := range c.calls.Requests() {
		if r.ctx != nil && !r.gone.Load() && (last == nil || r.id > last.id) {
			last = r
		}
	}
	return last
}

// askAgent asks, on behalf of the request that ctx belongs to.
func (c *peer) askAgent(ctx context.Context, id protocol.Value, t protocol.Type, body jsontext.Value) {
	ctx, cancel := context.WithTimeout(ctx, c.plugin.times.ask)
	defer cancel()
	defer context.AfterFunc(c.Context(), cancel)()
	var resp protocol.Object
	err := c.plugin.services.Ask(ctx, t, body, &resp)
	switch {
	case c.Context().Err() != nil:
	case err == nil:
		val, _ := resp.Get("type")
		answer, _ := val.Str()
		c.tell(protocol.Type(answer), id, jsontext.Value(bodyOf(resp)))
	default:
		var own *protocol.Error
		if !errors.As(err, &own) {
			own = protocol.Errorf(protocol.CodeTimeout, "the agent did not answer %s: %w", t, err)
		}
		c.tell(protocol.TypeError, id, own)
	}
}
