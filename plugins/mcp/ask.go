package mcp

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/host"
	"a2e/host/schema"
	"a2e/protocol"
)

// The bounds of what a server may ask.
const (
	maxAsking     = 8               // open requests of one server
	maxElicitSize = 100_000         // nodes of the schema of an answer, references followed
	sampleWait    = 5 * time.Minute // for the agent's model
	elicitWait    = time.Minute     // for the user
	rootsWait     = 2 * time.Second // for the agent's roots; then the workspace is the answer
	rootsLate     = time.Minute     // until when the server is told of roots that come after that
)

// The codes of JSON-RPC errors that a server gets.
const (
	codeRefused  = -1     // as MCP has it for a user who says no
	codeTooMany  = -32000 // of this host
	methodRoots  = "roots/list"
	loggingLevel = "info"
)

// ask asks the agent something for the server: on behalf of the call that it belongs to,
// if that can be told, else in the session there is. While it waits no call of the server
// is taken for silent.
func (s *server) ask(ctx context.Context, limit time.Duration, t protocol.Type, req, resp any) error {
	if s.asking.Add(1) > maxAsking {
		s.asking.Add(-1)
		return &jsonrpc.Error{Code: codeTooMany, Message: "too many requests of this server are open; wait for answers"}
	}
	defer s.asking.Add(-1)
	asking, cancel := context.WithCancelCause(s.behalf(ctx))
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })()
	defer context.AfterFunc(s.p.life, func() { cancel(context.Cause(s.p.life)) })()
	asking, stop := context.WithTimeoutCause(asking, limit, protocol.Errorf(protocol.CodeTimeout, "the agent did not answer %s within %s", t, limit))
	defer stop()
	defer s.keepAwake(asking)()
	return s.p.services.Ask(asking, t, req, resp)
}

// behalf returns the context of the call that a request of the server belongs to. Most
// servers do not say; then it is the newest of those under way, if all are of one session,
// or where none is the last one there was.
func (s *server) behalf(ctx context.Context) context.Context {
	if c, ok := ctx.Value(callKey{}).(*activeCall); ok {
		return c.ctx
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var newest uint64
	var found context.Context
	for token, c := range s.calls {
		n, _ := strconv.ParseUint(token, 10, 64)
		if found != nil && host.SessionFrom(found) != host.SessionFrom(c.ctx) {
			return s.p.life
		}
		if found == nil || n > newest {
			newest, found = n, c.ctx
		}
	}
	switch {
	case found != nil:
		return found
	case s.roots.last != nil:
		return host.InSession(s.p.life, s.roots.last)
	}
	return s.p.life
}

// keepAwake extends the calls of the server until the function that it gives is called.
func (s *server) keepAwake(ctx context.Context) func() {
	ticker := time.NewTicker(max(s.link.Config().CallTimeout/3, time.Millisecond))
	ended := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			s.mu.Lock()
			for _, c := range s.calls {
				c.extend()
			}
			s.mu.Unlock()
			select {
			case <-ticker.C:
			case <-ended:
				return
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() {
		close(ended)
		ticker.Stop()
		<-done
	}
}

// askID names a request of the server towards the agent.
func (s *server) askID() string {
	return s.opts.ID + "-" + strconv.FormatUint(s.lastAsk.Add(1), 10)
}

// refusal is what the server gets when the agent's answer is an error, or there is none.
func refusal(err error) error {
	if wire, ok := errors.AsType[*jsonrpc.Error](err); ok {
		return wire
	}
	if known, ok := errors.AsType[*protocol.Error](err); ok {
		return &jsonrpc.Error{Code: codeRefused, Message: known.Message}
	}
	return &jsonrpc.Error{Code: codeRefused, Message: "the agent does not answer: " + err.Error()}
}

// elicit asks the user. Where nobody answers that is no.
func (s *server) elicit(ctx context.Context, r *sdk.ElicitRequest) (*sdk.ElicitResult, error) {
	req := &protocol.MCPElicitRequest{ServerID: s.opts.ID, MCPRequestID: s.askID(), Mode: "form", Message: r.Params.Message, URL: r.Params.URL}
	if r.Params.Mode != "" {
		req.Mode = r.Params.Mode
	}
	if r.Params.RequestedSchema != nil {
		if _, err := schema.Compile(r.Params.RequestedSchema, maxElicitSize); err != nil { // the SDK would hold the answer against it
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "requestedSchema " + err.Error() + "; it should be that of a flat object"}
		}
		asked, err := object(r.Params.RequestedSchema)
		if err != nil {
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "requestedSchema is no JSON object"}
		}
		req.RequestedSchema = asked
	}
	var resp protocol.MCPElicitResponse
	if err := s.ask(ctx, elicitWait, protocol.TypeMCPElicitReq, req, &resp); err != nil {
		s.p.env.Log.Debug().Err(err).Str("mcp_server", s.opts.ID).Msg("a question of the MCP server got no answer: it counts as declined")
		return &sdk.ElicitResult{Action: "decline"}, nil
	}
	switch resp.Action {
	case "accept":
		if req.Mode != "form" {
			return &sdk.ElicitResult{Action: "accept"}, nil
		}
		content := map[string]any{} // the SDK holds it against the schema, also when it is empty
		if err := json.Unmarshal(jsontext.Value(resp.Content.Raw()), &content); err != nil {
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "the agent's answer cannot be read"}
		}
		return &sdk.ElicitResult{Action: "accept", Content: content}, nil
	case "decline", "cancel":
		return &sdk.ElicitResult{Action: resp.Action}, nil
	}
	s.p.env.Log.Warn().Str("mcp_server", s.opts.ID).Msg("the action of the agent's mcp/elicit/resp should be accept, decline or cancel; it counts as cancel")
	return &sdk.ElicitResult{Action: "cancel"}, nil
}
