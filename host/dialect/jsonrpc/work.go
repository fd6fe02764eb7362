package jsonrpc

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/protocol"
	"a2e/protocol/jsonrpc"
)

// uses says what the requests of a method use, which decides their order.
type uses int

const (
	aChange uses = iota // they change sessions, or what else the store keeps
	aLook               // they read that
	aside               // they need none of that: they tell what the client may do, or change what it is told
	nothing
	aList // they ask plugins, one of each method after the other
	aTool // they run a tool: they take a slot
)

// The keys of what requests use. A change takes effect before what comes after it, whoever it
// is for: a session is mentioned in the state and in the history, too.
const (
	keySessions = "rpc/sessions/"
	keyAccess   = "rpc/access/"
	keyList     = "rpc/list/" // the method follows
)

// claims are those of the requests of a method.
func (m *method) claims(name string) []protocol.Claim {
	claim := func(key string, access protocol.Access) protocol.Claim {
		return protocol.Claim{Key: key, Access: access}
	}
	var claims []protocol.Claim
	switch m.uses {
	case aChange:
		claims = append(claims, claim(keySessions, protocol.Exclusive))
	case aLook:
		claims = append(claims, claim(keySessions, protocol.Shared))
	case aside:
		claims = append(claims, claim(keyAccess, protocol.Exclusive))
	case aList:
		claims = append(claims, claim(keySessions, protocol.Follows), claim(keyList+name+"/", protocol.Exclusive))
	case aTool:
		claims = append(claims, claim(keySessions, protocol.Follows))
	}
	if m.lets {
		claims = append(claims, claim(keyAccess, protocol.Exclusive))
	}
	return claims
}

// workOf makes a request one of the host's scheduler.
func (f *Front) workOf(c *call) *host.Work {
	m, known := f.methods[c.method]
	if !known {
		m.uses = aside // a handshake before it decides on the answer
	}
	c.span = host.Trace(f.ctx, c.method, "", c.parent)
	c.work = &host.Work{
		Name: c.method, Claims: m.claims(c.method), Ahead: m.uses != aTool, Size: len(c.params.Raw()), Span: c.span,
		Run:      func(ctx context.Context) (any, error) { return f.serve(ctx, c) },
		Answer:   func(resp any, err error) []byte { return f.answer(c, resp, err) },
		Answered: func() { f.answered(c) },
	}
	if call, ok := f.toolCall(c.params.Text("raw_command")); ok && m.uses == aTool {
		c.work.Type, c.work.Object = protocol.TypeToolCallReq, call
	}
	f.work.Add(1)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.came++
	c.number = f.came
	if c.key = jsonrpc.Key(c.id); c.quiet {
		c.key = fmt.Sprint("notification ", c.number) // which is no id
	}
	f.open[c.key] = append(f.open[c.key], c)
	return c.work
}

// outcome is what a method returned, and what follows its answer.
type outcome struct {
	result any
	then   func()
}

// serve serves a request.
func (f *Front) serve(ctx context.Context, c *call) (any, error) {
	m, known := f.methods[c.method]
	f.mu.Lock()
	c.runs = true
	admitted := f.admitted
	f.mu.Unlock()
	switch {
	case !admitted && c.method != jsonrpc.Handshake && c.method != jsonrpc.Ping:
		return nil, jsonrpc.Errorf(jsonrpc.CodeUnauthorized,
			"unauthorized: send rpc.handshake with the host's auth_token first")
	case !known:
		return nil, jsonrpc.NotFound(c.method)
	case !m.takes.fits(c.shape):
		return nil, jsonrpc.NotObject(c.method)
	}
	if m.uses == aChange || m.uses == aLook {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, f.opts.StoreWait, errSlow(f.opts.StoreWait))
		defer cancel()
	}
	result, err := m.run(f, ctx, c)
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		err = cmp.Or(context.Cause(ctx), err)
	}
	return outcome{result, c.then}, err
}

// cancel serves $/cancelRequest: requests that ask plugins or run a tool are stopped, whether they wait or run.
func (f *Front) cancel(c *call) {
	id, _ := c.params.Get("id")
	var works []*host.Work
	f.mu.Lock()
	for _, c := range f.open[jsonrpc.Key(jsontext.Value(id))] {
		if uses := f.methods[c.method].uses; uses == aList || uses == aTool {
			works = append(works, c.work)
		}
	}
	f.mu.Unlock()
	host.StopAll(protocol.Errorf(protocol.CodeCancelled, "cancelled by %s", jsonrpc.CancelMethod), works...)
	f.answer(c, nil, nil)
}

// stopCommands stops the commands of a session that came before a request.
func (f *Front) stopCommands(session string, before *call) (stopped int) {
	var works []*host.Work
	f.mu.Lock()
	for _, same := range f.open {
		for _, c := range same {
			if c.method == jsonrpc.CommandExecute && c.session == session && c.number < before.number {
				works = append(works, c.work)
			}
		}
	}
	f.mu.Unlock()
	return host.StopAll(errInterrupted(), works...)
}

// loadLocked counts the requests without their answer, the bytes that they hold, and the commands that run.
func (f *Front) loadLocked() (requests, bytes, commands int) {
	for _, same := range f.open {
		requests += len(same)
		for _, c := range same {
			bytes += c.size
			if c.runs && c.method == jsonrpc.CommandExecute {
				commands++
			}
		}
	}
	return requests, bytes, commands
}
