//lint:file-ignore SA1019 MCP 2026-07-28 begins to retire sampling, roots and logging; servers of all earlier versions use them, and this file is where the host serves them.

package mcp

import (
	"context"

	"github.com/go-json-experiment/json"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

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
