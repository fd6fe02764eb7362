package jsonrpc

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/protocol"
	"a2e/protocol/jsonrpc"
)

const (
	maxFailures = 3           // refused tokens in a row, after which
	authDelay   = time.Second // each further answer takes this long
	maxClient   = 200         // bytes of the client's name, or of a version in an error
)

func handshake(f *Front, ctx context.Context, c *call) (any, error) {
	var req struct {
		Client  string `json:"client_name"`
		Release string `json:"client_version"`
		Version string `json:"protocol_version"`
		Strict  bool   `json:"strict"`
		Token   string `json:"auth_token"`
	}
	if err := c.decode(&req); err != nil {
		return nil, err
	}
	agent, admitted := f.authenticate(ctx, req.Token, cmp.Or(clip(req.Client, maxClient), nameless))
	if !admitted {
		return nil, jsonrpc.Errorf(jsonrpc.CodeUnauthorized, "unauthorized: rpc.handshake needs the host's token as auth_token")
	}
	if req.Strict && req.Version != "" && req.Version != jsonrpc.Protocol {
		e := jsonrpc.Errorf(jsonrpc.CodeInvalidParams, "unsupported protocol_version: %s", clip(req.Version, maxClient))
		return nil, e.With("reason", "unsupported_protocol_version").With("supported", jsonrpc.Protocol)
	}
	if !f.enrol(agent, clip(req.Client, maxClient)) {
		return nil, jsonrpc.Errorf(jsonrpc.CodeUnauthorized, "unauthorized: this pipe is another agent's, by its first token; an agent needs a host of its own")
	}
	return map[string]any{
		"protocol_version": jsonrpc.Protocol, "server_name": "a2e", "methods": jsonrpc.Methods(),
		"capabilities": map[string]any{"events": true, "command_execute": true, "multi_session": true, "image_inputs": []string{"path", "data_url"}},
	}, nil
}

// nameless is the agent of a client that does not say what it is.
const nameless = "rpc"

// enrol notes who is let in. Sessions stay those of the agent that they were begun for, so a
// token for another one comes too late.
func (f *Front) enrol(agent, client string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.opts.Tokens.Name(agent) {
		agent = ""
	}
	if f.admitted && agent != f.agent {
		return false
	}
	f.admitted, f.agent, f.client = true, agent, client
	return true
}

// authenticate tells which agent a token lets in.
func (f *Front) authenticate(ctx context.Context, token, client string) (agent string, right bool) {
	agent, right = f.opts.Tokens.AdmitClient(token, client)
	if len(f.opts.Tokens) == 0 {
		return agent, true
	}
	f.mu.Lock()
	if right {
		f.failures = 0
	} else {
		f.failures++
	}
	delayed := f.failures > maxFailures
	f.mu.Unlock()
	if !right {
		f.logger().Warn().Msg("rpc.handshake refused: the token is missing or wrong")
	}
	if delayed {
		select {
		case <-time.After(authDelay):
		case <-ctx.Done():
		}
	}
	return agent, right
}

func ping(f *Front, _ context.Context, _ *call) (any, error) {
	return map[string]any{"ok": true, "timestamp": stamp(f.opts.Now()), "uptime_seconds": f.uptime()}, nil
}

func (f *Front) uptime() float64 { return f.opts.Now().Sub(f.begun).Seconds() }

func shutdown(f *Front, _ context.Context, c *call) (any, error) {
	req := struct {
		Timeout *float64 `json:"timeout"`
	}{}
	if err := c.decode(&req); err != nil {
		return nil, err
	}
	timeout := host.DrainTimeout
	if req.Timeout != nil {
		if *req.Timeout < 0 || *req.Timeout > maxShutdown.Seconds() {
			return nil, jsonrpc.Params("timeout", "must be seconds, 0 to 3600, that running work gets to finish")
		}
		timeout = time.Duration(*req.Timeout * float64(time.Second))
	}
	c.then = func() { host.Shutdown(f.ctx, timeout) }
	return map[string]any{"ok": true, "timeout": timeout.Seconds()}, nil
}

const maxShutdown = time.Hour

func authStatus(f *Front, _ context.Context, _ *call) (any, error) { return f.auth(), nil }

func (f *Front) auth() map[string]any {
	f.mu.Lock()
	defer f.mu.Unlock()
	how := "none"
	if len(f.opts.Tokens) > 0 {
		how = "token"
	}
	return map[string]any{"required": len(f.opts.Tokens) > 0, "authenticated": f.admitted, "method": how}
}

func toolsList(f *Front, ctx context.Context, c *call) (any, error) {
	return f.list(ctx, c, protocol.TypeToolListReq, "tools")
}

func skillsList(f *Front, ctx context.Context, c *call) (any, error) {
	return f.list(ctx, c, protocol.TypeSkillDiscoverReq, "skills")
}

// list gives a list of the host's plugins, whose filters the params are; a host without
// such a plugin has an empty one.
func (f *Front) list(ctx context.Context, c *call, t protocol.Type, member string) (any, error) {
	var answer protocol.Object
	err := host.ServicesOf(merged(f.enter(nil), ctx)).Call(merged(f.enter(nil), ctx), t, c.params, &answer, nil)
	if e := new(protocol.Error); errors.As(err, &e) && e.Code == protocol.CodeCapabilityMissing {
		return map[string]any{member: []any{}}, nil
	}
	if err != nil {
		return nil, err
	}
	list, ok := answer.Get(member)
	if !ok {
		list = protocol.Value("[]")
	}
	return map[string]any{member: jsontext.Value(list)}, nil
}
