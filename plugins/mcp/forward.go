package mcp

import (
	"context"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/host"
	"a2e/protocol"
)

// uriScheme begins URIs that name their server: mcp://SERVER/URI.
const uriScheme = "mcp://"

// ForwardMCP implements host.MCPGateway.
func (p *Plugin) ForwardMCP(ctx context.Context, method string, params jsontext.Value, emit host.Emitter) (jsontext.Value, error) {
	switch method {
	case "completion/complete":
		return p.complete(ctx, params)
	case "resources/unsubscribe":
		return p.unsubscribe(ctx, params)
	case "tasks/get", "tasks/result", "tasks/cancel":
		return p.task(ctx, method, params)
	case "tasks/list":
		return p.taskList(ctx)
	}
	return nil, host.NotMine(protocol.Errorf(protocol.CodeMCPCapabilityMissing, "%s is not forwarded to MCP servers", method))
}

// badParams is the error of params that do not decode.
func badParams(err error) error {
	return protocol.Violation(protocol.FieldError{Path: "/params", Message: "cannot be read: " + clip(err.Error(), maxProblem)})
}

// complete has the server of a prompt or of a resource template complete an argument of it.
func (p *Plugin) complete(ctx context.Context, raw jsontext.Value) (jsontext.Value, error) {
	var params sdk.CompleteParams
	if err := json.Unmarshal(raw, &params); err != nil {
		return nil, badParams(err)
	}
	if params.Ref == nil || params.Argument.Name == "" {
		return nil, protocol.Violation(protocol.FieldError{Path: "/params", Message: "need a ref, and an argument with a name"})
	}
	s := p.refer(ctx, params.Ref)
	if s == nil {
		return nil, host.NotMine(protocol.Errorf(protocol.CodeSchemaViolation, "no MCP server has the prompt or resource template that ref names; the lists tell what there is"))
	}
	params.Meta = nil // it is that of the client in front
	var res *sdk.CompleteResult
	err := s.asked(ctx, func(ctx context.Context, cs *sdk.ClientSession) (err error) {
		if capabilities(cs).Completions == nil { // then there is nothing to suggest
			res = &sdk.CompleteResult{Completion: sdk.CompletionResultDetails{Values: []string{}}}
			return nil
		}
		res, err = cs.Complete(ctx, &params)
		return err
	})
	if err != nil {
		return nil, err
	}
	return encode(res)
}

// refer finds the server that a reference is for, and makes the name or URI in it the
// server's own; nil = none.
func (p *Plugin) refer(ctx context.Context, ref *sdk.CompleteReference) *server {
	all := p.all()
	p.await(ctx, all, kindAll, nil)
	if ref.Type == "ref/prompt" {
		for _, s := range all {
			if name, ok := strings.CutPrefix(ref.Name, s.opts.ID+separator); ok && s.hasPrompt(name) {
				ref.Name = name
				return s
			}
		}
		return nil
	}
	for _, s := range all {
		uri, named := strings.CutPrefix(ref.URI, uriScheme+s.opts.ID+"/")
		if (named || !strings.HasPrefix(ref.URI, uriScheme)) && s.hasTemplate(uri) {
			ref.URI = uri
			return s
		}
	}
	return nil
}

// hasTemplate reports whether the server lists a template, or a resource of that URI, that the
// config lets be read.
func (s *server) hasTemplate(uri string) bool {
	s.mu.Lock()
	found := slices.ContainsFunc(s.templates, func(t *boundTemplate) bool { return t.URITemplate == uri })
	s.mu.Unlock()
	listed, templated := s.offers(uri)
	return (found || listed || templated) && s.readable(uri)
}

// unsubscribe ends what the session of ctx listens to.
func (p *Plugin) unsubscribe(ctx context.Context, raw jsontext.Value) (jsontext.Value, error) {
	var params sdk.UnsubscribeParams
	if err := json.Unmarshal(raw, &params); err != nil {
		return nil, badParams(err)
	}
	sess := host.SessionFrom(ctx)
	for _, s := range p.all() {
		uri, named := strings.CutPrefix(params.URI, uriScheme+s.opts.ID+"/")
		if named || !strings.HasPrefix(params.URI, uriScheme) {
			s.forget(func(of string, f *host.Feed) bool { return of == uri && f.Session() == sess })
		}
	}
	return jsontext.Value("{}"), nil
}
