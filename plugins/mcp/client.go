package mcp

import (
	"context"
	"net/url"
	"path/filepath"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/host"
	"a2e/protocol"
)

// offers says which requests a server was told that it may send.
type offers struct{ roots, sampling, elicitation bool }

// client returns the capabilities of this client for the server, and handlers that only note that a list
// has changed.
func (s *server) client() *sdk.ClientOptions {
	opts := &sdk.ClientOptions{
		Capabilities:             &sdk.ClientCapabilities{},
		ToolListChangedHandler:   func(context.Context, *sdk.ToolListChangedRequest) { s.listChanged(kindTools) },
		PromptListChangedHandler: func(context.Context, *sdk.PromptListChangedRequest) { s.listChanged(kindPrompts) },
		ResourceListChangedHandler: func(context.Context, *sdk.ResourceListChangedRequest) {
			s.listChanged(kindResources)
		},
	}
	can := s.p.askable()
	may := offers{
		roots:       allowed(s.opts.Roots) && can.RootsV2 != nil,
		sampling:    allowed(s.opts.Sampling) && can.Sampling != nil,
		elicitation: allowed(s.opts.Elicitation) && can.Elicitation != nil,
	}
	s.mu.Lock()
	s.may = may
	s.mu.Unlock()
	if may.roots {
		opts.Capabilities.RootsV2 = &sdk.RootCapabilities{ListChanged: true}
	}
	if may.sampling {
		opts.Capabilities.Sampling = &sdk.SamplingCapabilities{}
	}
	if may.elicitation {
		opts.Capabilities.Elicitation = can.Elicitation
	}
	return opts
}

// askable returns what the client in front of the host can be asked: servers leave out the tools that need
// more. It waits for an MCP client until clientBy.
func (p *Plugin) askable() *sdk.ClientCapabilities {
	if p.env.MCPClient == nil {
		return &sdk.ClientCapabilities{
			RootsV2: &sdk.RootCapabilities{}, Sampling: &sdk.SamplingCapabilities{},
			Elicitation: &sdk.ElicitationCapabilities{
				Form: &sdk.FormElicitationCapabilities{},
				URL:  &sdk.URLElicitationCapabilities{},
			},
		}
	}
	ctx, stop := context.WithDeadline(p.life, p.clientBy)
	defer stop()
	can, raw := new(sdk.ClientCapabilities), p.env.MCPClient(ctx)
	var said struct {
		Roots *sdk.RootCapabilities `json:"roots"` // the SDK does not decode it into a pointer
	}
	if raw == nil || json.Unmarshal(raw, can) != nil || json.Unmarshal(raw, &said) != nil {
		return new(sdk.ClientCapabilities)
	}
	if can.RootsV2 = said.Roots; can.Elicitation != nil && can.Elicitation.URL == nil { // an empty object means forms
		can.Elicitation.Form = &sdk.FormElicitationCapabilities{}
	}
	return can
}

// setup gives a client the workspace as its root, if the server was offered roots. The agent may name
// others; see listRoots.
func (s *server) setup(client *sdk.Client) {
	s.mu.Lock()
	declared := s.may.roots
	s.roots.client = client
	s.mu.Unlock()
	if declared {
		client.AddRoots(s.p.workspaceRoot())
	}
}

// setLogLevel sets the log level of a server that has logging: some servers send no log messages before.
func (s *server) setLogLevel(ctx context.Context) error {
	return s.link.Call(ctx, func(ctx context.Context, cs *sdk.ClientSession) error {
		if s.capabilities().Logging == nil {
			return nil
		}
		return cs.SetLoggingLevel(ctx, &sdk.SetLoggingLevelParams{Level: loggingLevel})
	})
}

// rootState is what a server knows of the agent's roots. Servers ask for them when they
// are connected and keep the answer; there may be no agent yet, or another one later.
type rootState struct {
	client *sdk.Client   // of the current connection
	last   *host.Session // the session of the last call; nil = there was none, or it has ended
	stale  bool          // the server's roots are a guess, or those of an agent that is gone
	tell   bool          // the server is to be told that the roots have changed
}

// listRoots returns the agent's roots, or the workspace if the agent names none within rootsWait. The
// question belongs to the session, so that the end of a call does not end it. If roots come later, the
// server is told that they have changed.
func (s *server) listRoots(ctx context.Context) (jsontext.Value, error) {
	guess, err := encode(map[string]any{"roots": []*sdk.Root{s.p.workspaceRoot()}})
	if err != nil {
		return nil, err
	}
	sess := host.SessionFrom(s.behalf(ctx))
	if s.p.isQuiet(sess) {
		s.noteGuess()
		return guess, nil
	}
	answer := make(chan jsontext.Value, 1)
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

// askRoots asks the agent of a session for its roots; nil stands for the current agent. It returns nil if
// the agent names no roots.
func (s *server) askRoots(sess *host.Session) jsontext.Value {
	if s.asking.Add(1) > maxAsking {
		s.asking.Add(-1)
		return nil
	}
	defer s.asking.Add(-1)
	ctx, stop := context.WithTimeout(host.InSession(s.p.life, sess), rootsLate)
	defer stop()
	var resp protocol.MCPRootListResponse
	if err := s.p.Services().Ask(ctx, protocol.TypeMCPRootListReq, &protocol.MCPRootListRequest{
		ServerID:     s.opts.ID,
		MCPRequestID: s.askID(),
	}, &resp); err != nil {
		if sess == nil { // there may be no agent yet
			s.noteGuess()
		}
		return nil
	}
	return s.rootsOf(&resp)
}

// isQuiet reports whether the agent of a session did not answer for its roots in time, so that servers do
// not wait for it again.
func (p *Plugin) isQuiet(sess *host.Session) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.quiet[sess]
}

// setQuiet notes whether the agent of a session is quiet. When it has answered after all, the servers that
// did not wait for it are told that the roots have changed.
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

// noteGuess notes that the server got the workspace as its root because no agent answered.
func (s *server) noteGuess() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.roots.stale = true
}

// wakeStale has run tell the server that the roots have changed, if its roots are stale.
func (s *server) wakeStale() {
	s.mu.Lock()
	wake := s.roots.stale
	s.roots.stale, s.roots.tell = false, s.roots.tell || wake
	s.mu.Unlock()
	if wake {
		s.signal()
	}
}

// tellRoots tells the server that the roots have changed, if wakeStale asked for it.
func (s *server) tellRoots() {
	s.mu.Lock()
	client, tell := s.roots.client, s.roots.tell && s.may.roots
	s.roots.tell = false
	s.mu.Unlock()
	if tell && client != nil {
		client.AddRoots(s.p.workspaceRoot()) // the SDK notifies the server whenever a root is added
	}
}

// noteCaller notes the session of a call. A server whose roots are stale is then told that they have
// changed.
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

// workspaceRoot returns the root for an agent that names none.
func (p *Plugin) workspaceRoot() *sdk.Root {
	path := filepath.ToSlash(p.env.Workspace)
	if path == "" || path[0] != '/' {
		path = "/" + path
	}
	return &sdk.Root{Name: "workspace", URI: (&url.URL{Scheme: "file", Path: path}).String()}
}
