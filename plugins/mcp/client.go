//lint:file-ignore SA1019 MCP 2026-07-28 begins to retire sampling, roots and logging; servers of all earlier versions use them, and this file is where the host serves them.

package mcp

import (
	"context"
	"net/url"
	"path/filepath"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/host"
	"a2e/protocol"
)

// client returns the handlers of what the server sends. Those of notifications only note it.
func (s *server) client() *sdk.ClientOptions {
	opts := &sdk.ClientOptions{
		Capabilities:               &sdk.ClientCapabilities{},
		ToolListChangedHandler:     func(context.Context, *sdk.ToolListChangedRequest) { s.listChanged(kindTools) },
		PromptListChangedHandler:   func(context.Context, *sdk.PromptListChangedRequest) { s.listChanged(kindPrompts) },
		ResourceListChangedHandler: func(context.Context, *sdk.ResourceListChangedRequest) { s.listChanged(kindResources) },
		ResourceUpdatedHandler: func(_ context.Context, r *sdk.ResourceUpdatedNotificationRequest) {
			s.push.add(methodUpdated, r.Params.URI, r.Params)
		},
		LoggingMessageHandler:       func(_ context.Context, r *sdk.LoggingMessageRequest) { s.push.add(methodLog, "", r.Params) },
		ProgressNotificationHandler: func(_ context.Context, r *sdk.ProgressNotificationClientRequest) { s.progressed(r.Params) },
		ElicitationCompleteHandler: func(_ context.Context, r *sdk.ElicitationCompleteNotificationRequest) {
			s.push.add("notifications/elicitation/complete", r.Params.ElicitationID, r.Params)
		},
	}
	can := s.p.askable()
	roots := allowed(s.opts.Roots) && can.RootsV2 != nil
	s.mu.Lock()
	s.roots.declared = roots
	s.mu.Unlock()
	if roots {
		opts.Capabilities.RootsV2 = &sdk.RootCapabilities{ListChanged: true}
	}
	if allowed(s.opts.Sampling) && can.Sampling != nil {
		opts.Capabilities.Sampling = &sdk.SamplingCapabilities{}
		opts.CreateMessageWithToolsHandler = s.sample
	}
	if allowed(s.opts.Elicitation) && can.Elicitation != nil {
		opts.Capabilities.Elicitation = can.Elicitation
		opts.ElicitationHandler = s.elicit
	}
	return opts
}

// askable returns what whoever is in front can be asked: servers leave out the tools that need
// more. It waits for an MCP client, but not for ever.
func (p *Plugin) askable() *sdk.ClientCapabilities {
	if p.env.MCPClient == nil {
		return &sdk.ClientCapabilities{
			RootsV2: &sdk.RootCapabilities{}, Sampling: &sdk.SamplingCapabilities{},
			Elicitation: &sdk.ElicitationCapabilities{Form: &sdk.FormElicitationCapabilities{}, URL: &sdk.URLElicitationCapabilities{}},
		}
	}
	ctx, stop := context.WithDeadline(p.life, p.clientBy)
	defer stop()
	can, raw := new(sdk.ClientCapabilities), p.env.MCPClient(ctx)
	var said struct {
		Roots *sdk.RootCapabilities `json:"roots"` // which the SDK reads no pointer from
	}
	if raw == nil || json.Unmarshal(raw, can) != nil || json.Unmarshal(raw, &said) != nil {
		return new(sdk.ClientCapabilities)
	}
	if can.RootsV2 = said.Roots; can.Elicitation != nil && can.Elicitation.URL == nil { // {} is forms
		can.Elicitation.Form = &sdk.FormElicitationCapabilities{}
	}
	return can
}

// setup completes a client: its roots are the workspace, unless the agent names others.
func (s *server) setup(_ string, client *sdk.Client) {
	s.mu.Lock()
	declared := s.roots.declared
	s.roots.client = client
	s.mu.Unlock()
	if !declared {
		return
	}
	client.AddRoots(s.p.workspaceRoot())
	client.AddReceivingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
		return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
			if method != methodRoots {
				return next(ctx, method, req)
			}
			return s.listRoots(ctx)
		}
	})
}

// setLogLevel asks a server that logs for its messages: some send none before.
func (s *server) setLogLevel(ctx context.Context) error {
	return s.link.Call(ctx, func(ctx context.Context, cs *sdk.ClientSession) error {
		if capabilities(cs).Logging == nil {
			return nil
		}
		return cs.SetLoggingLevel(ctx, &sdk.SetLoggingLevelParams{Level: loggingLevel})
	})
}

// sample has the agent's model answer for the server.
func (s *server) sample(ctx context.Context, r *sdk.CreateMessageWithToolsRequest) (*sdk.CreateMessageWithToolsResult, error) {
	if len(r.Params.Tools) > 0 {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "this client's sampling has no tools; it did not declare sampling.tools"}
	}
	req, err := s.sampleRequest(r.Params)
	if err != nil {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: err.Error()}
	}
	var resp protocol.MCPSampleResponse
	resp.SetDefaults()
	switch err := s.ask(ctx, sampleWait, protocol.TypeMCPSampleReq, req, &resp); {
	case err != nil:
		return nil, refusal(err)
	case resp.Error != "":
		return nil, &jsonrpc.Error{Code: codeRefused, Message: "the agent refused: " + resp.Error}
	}
	var result sdk.CreateMessageWithToolsResult
	raw, err := json.Marshal(map[string]any{"role": resp.Role, "content": resp.Content, "model": resp.Model, "stopReason": resp.StopReason})
	if err == nil {
		err = json.Unmarshal(raw, &result)
	}
	if err != nil {
		s.p.env.Log.Warn().Err(err).Str("mcp_server", s.opts.ID).Msg("the agent's mcp/sample/resp cannot be passed on")
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "the agent's answer is no content of MCP"}
	}
	return &result, nil
}

// sampleRequest is what the agent is asked.
func (s *server) sampleRequest(p *sdk.CreateMessageWithToolsParams) (*protocol.MCPSampleRequest, error) {
	req := new(protocol.MCPSampleRequest)
	req.SetDefaults()
	req.ServerID, req.MCPRequestID, req.SystemPrompt = s.opts.ID, s.askID(), p.SystemPrompt
	req.Messages, req.StopSequences = []protocol.Object{}, p.StopSequences
	for _, m := range p.Messages {
		obj, err := object(m)
		if err != nil {
			return nil, err
		}
		req.Messages = append(req.Messages, obj)
	}
	if p.IncludeContext != "" {
		req.IncludeContext = p.IncludeContext
	}
	if p.Temperature != 0 {
		req.Temperature = p.Temperature
	}
	if p.MaxTokens > 0 {
		req.MaxTokens = int(p.MaxTokens)
	}
	var err error
	if p.ModelPreferences != nil {
		req.ModelPreferences, err = object(p.ModelPreferences)
	}
	if err == nil && p.Metadata != nil {
		req.Metadata, err = object(p.Metadata)
	}
	return req, err
}

// object returns a value of the SDK as an object of the protocol.
func object(v any) (protocol.Object, error) {
	raw, err := encode(v)
	if err != nil {
		return protocol.Object{}, err
	}
	return protocol.ParseObject(raw)
}

// rootState is what a server knows of the agent's roots. Servers ask for them when they
// are connected and keep the answer; there may be no agent yet, or another one later.
type rootState struct {
	client   *sdk.Client   // of the connection there is
	declared bool          // it was told that there are roots to ask for
	last     *host.Session // which called the server last; nil = it is over
	stale    bool          // the server has roots that are not those of an agent, or of one that is gone
	tell     bool          // it is to be told that they have changed
}

// listRoots tells the server the agent's roots, or the workspace where it names none in
// time. They are the session's, so that the end of a call does not end the question; of
// roots that come late the server hears that they have changed.
func (s *server) listRoots(ctx context.Context) (sdk.Result, error) {
	guess := &sdk.ListRootsResult{Roots: []*sdk.Root{s.p.workspaceRoot()}}
	sess := host.SessionFrom(s.behalf(ctx))
	if s.p.isQuiet(sess) {
		s.noteGuess()
		return guess, nil
	}
	answer := make(chan *sdk.ListRootsResult, 1)
	go func() { answer <- s.askRoots(sess) }()
	defer s.keepAwake(ctx)()
	wait := time.NewTimer(s.p.rootsWait)
	defer wait.Stop()
	select {
	case roots := <-answer:
		if roots == nil {
			return guess, nil
		}
		return roots, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-wait.C:
	}
	s.noteGuess()
	s.p.setQuiet(sess, true)
	go func() {
		if <-answer != nil {
			s.p.setQuiet(sess, false)
		}
	}()
	return guess, nil
}

// askRoots asks the agent of a session, nil is the one there is. nil = it names no roots.
func (s *server) askRoots(sess *host.Session) *sdk.ListRootsResult {
	if s.asking.Add(1) > maxAsking {
		s.asking.Add(-1)
		return nil
	}
	defer s.asking.Add(-1)
	ctx, stop := context.WithTimeout(host.InSession(s.p.life, sess), rootsLate)
	defer stop()
	var resp protocol.MCPRootListResponse
	if err := s.p.services.Ask(ctx, protocol.TypeMCPRootListReq, &protocol.MCPRootListRequest{ServerID: s.opts.ID, MCPRequestID: s.askID()}, &resp); err != nil {
		if sess == nil { // there may be no agent yet
			s.noteGuess()
		}
		return nil
	}
	result := &sdk.ListRootsResult{Roots: make([]*sdk.Root, 0, len(resp.Roots))}
	for _, r := range resp.Roots {
		root := new(sdk.Root)
		if err := json.Unmarshal(r.Raw(), root); err != nil || root.URI == "" {
			s.p.env.Log.Warn().Str("mcp_server", s.opts.ID).Msg("a root in the agent's mcp/root/list/resp has no uri")
			continue
		}
		result.Roots = append(result.Roots, root)
	}
	return result
}

// isQuiet reports whether the agent of a session has not answered for its roots, so that
// servers do not wait each time.
func (p *Plugin) isQuiet(sess *host.Session) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.quiet[sess]
}

// setQuiet notes whether an agent answers. When it has, after all, the servers that did
// not wait for it ask again.
func (p *Plugin) setQuiet(sess *host.Session, quiet bool) {
	p.mu.Lock()
	if quiet {
		p.quiet[sess] = true
	} else {
		delete(p.quiet, sess)
	}
	p.mu.Unlock()
	if !quiet {
		for _, s := range p.all() {
			s.wakeStale()
		}
	}
}

// noteGuess notes that the server got the workspace as its root, as there was no agent to
// ask, or none that answered.
func (s *server) noteGuess() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.roots.stale = true
}

// wakeStale has a server that got other roots than the agent's told that they have changed.
func (s *server) wakeStale() {
	s.mu.Lock()
	wake := s.roots.stale
	s.roots.stale, s.roots.tell = false, s.roots.tell || wake
	s.mu.Unlock()
	if wake {
		s.signal()
	}
}

// tellRoots tells the server that the roots have changed, where they have.
func (s *server) tellRoots() {
	s.mu.Lock()
	client, tell := s.roots.client, s.roots.tell && s.roots.declared
	s.roots.tell = false
	s.mu.Unlock()
	if tell && client != nil {
		client.AddRoots(s.p.workspaceRoot()) // the SDK tells it whenever one is added
	}
}

// noteCaller notes the session of a call. A server that asked for roots before is told
// then that there are others.
func (s *server) noteCaller(ctx context.Context) {
	sess := host.SessionFrom(ctx)
	if sess == nil {
		return
	}
	s.mu.Lock()
	s.roots.last = sess
	s.mu.Unlock()
	if !s.p.isQuiet(sess) {
		s.wakeStale()
	}
}

// forgetCaller notes the end of a session.
func (s *server) forgetCaller(sess *host.Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sess != nil && s.roots.last == sess {
		s.roots.last, s.roots.stale = nil, true
	}
}

// workspaceRoot is the root where the agent names none.
func (p *Plugin) workspaceRoot() *sdk.Root {
	path := filepath.ToSlash(p.env.Workspace)
	if path == "" || path[0] != '/' {
		path = "/" + path
	}
	return &sdk.Root{Name: "workspace", URI: (&url.URL{Scheme: "file", Path: path}).String()}
}
