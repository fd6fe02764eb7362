package mcp

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/host"
	"a2e/host/trace"
	"a2e/plugins/mcp/link"
	"a2e/plugins/tools"
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
	return nil, host.NotOwner(protocol.Errorf(protocol.CodeMCPCapabilityMissing, "%s is not forwarded to MCP servers", method))
}

// badParams is the error of params that do not decode.
func badParams(err error) error {
	return protocol.Violation(protocol.FieldError{Path: "/params", Message: "cannot be read: " + protocol.Clip(err.Error(), maxProblem)})
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
		return nil, host.NotOwner(protocol.Errorf(protocol.CodeSchemaViolation, "no MCP server has the prompt or resource template that ref names; the lists tell what there is"))
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
	found := slices.ContainsFunc(s.templates, func(t *boundTemplate) bool { return t.uri == uri })
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
			s.forget(func(of string, f *host.Stream) bool { return of == uri && f.Session() == sess })
		}
	}
	return jsontext.Value("{}"), nil
}

// taskRequired is what a tool says that is called as a task only.
const taskRequired = "required"

// taskStop bounds the request that ends a task whose call is over.
const taskStop = 2 * time.Second

// taskSupport is what a tool says of tasks; "" = it cannot be one.
func (s *server) taskSupport(tool string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tasks[tool]
}

// created is the result of a call that is a task.
type created struct {
	Task struct {
		ID string `json:"taskId"`
	} `json:"task"`
}

// callTask begins a task for a client that asked for one, and else waits for its result: so
// tools that must be tasks are there for all.
func (s *server) callTask(ctx context.Context, name string, args protocol.Object, emit host.Emitter) (*tools.Outcome, error) {
	task := host.MCPTask(ctx)
	c := &activeCall{ctx: ctx, emit: emit}
	var out *tools.Outcome
	span := trace.From(ctx).Child("tools/call "+name, trace.Client)
	err := s.within(c, func(ctx context.Context, cs *sdk.ClientSession, token string) error {
		meta := map[string]string{"progressToken": token}
		if parent := span.Parent(); parent != "" {
			meta["traceparent"] = parent
		}
		params := map[string]any{"name": name, "arguments": jsontext.Value(args.Raw()), "task": struct{}{}, "_meta": meta}
		if task != nil {
			params["task"] = task
		}
		raw, err := rawCall(ctx, cs, "tools/call", params)
		if err != nil {
			return err
		}
		var begun created
		if err := json.Unmarshal(raw, &begun); err != nil || begun.Task.ID == "" {
			return protocol.Errorf(protocol.CodeMCPProtocolError, "the MCP server %q began no task, which it should for this tool", s.opts.ID)
		}
		if task != nil {
			raw, err = s.named(raw)
			out = &tools.Outcome{Data: raw}
			return err
		}
		raw, err = rawCall(ctx, cs, "tasks/result", map[string]any{"taskId": begun.Task.ID})
		if err != nil {
			s.stopTask(ctx, cs, begun.Task.ID)
			return err
		}
		res := new(sdk.CallToolResult)
		if err := res.UnmarshalJSON(raw); err != nil {
			return err
		}
		out, err = outcome(res, emit)
		return err
	})
	endSpan(span, s.opts.ID, err)
	return out, err
}

// stopTask ends a task that nobody waits for any more.
func (s *server) stopTask(ctx context.Context, cs *sdk.ClientSession, id string) {
	if ctx.Err() == nil {
		return
	}
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), taskStop)
	defer stop()
	if _, err := rawCall(ctx, cs, "tasks/cancel", map[string]any{"taskId": id}); err != nil {
		s.p.env.Log.Debug().Err(err).Str("mcp_server", s.opts.ID).Msg("a task of the MCP server could not be ended")
	}
}

func rawCall(ctx context.Context, cs *sdk.ClientSession, method string, params any) (jsontext.Value, error) {
	raw, err := encode(params)
	if err != nil {
		return nil, err
	}
	return link.Raw(ctx, cs, method, raw)
}

// task makes a request about one task, of the server that its id begins with.
func (p *Plugin) task(ctx context.Context, method string, raw jsontext.Value) (jsontext.Value, error) {
	var params struct {
		ID string `json:"taskId"`
	}
	if err := json.Unmarshal(raw, &params); err != nil {
		return nil, badParams(err)
	}
	for _, s := range p.all() {
		id, ok := strings.CutPrefix(params.ID, s.opts.ID+separator)
		if !ok || s.usable() != nil {
			continue
		}
		var res jsontext.Value
		err := s.asked(ctx, func(ctx context.Context, cs *sdk.ClientSession) (err error) {
			res, err = rawCall(ctx, cs, method, map[string]any{"taskId": id})
			return err
		})
		if err != nil {
			return nil, err
		}
		return s.named(res)
	}
	return nil, host.NotOwner(protocol.Errorf(protocol.CodeSchemaViolation, "no MCP server has the task %q", protocol.Clip(params.ID, maxQuoted)))
}

// taskList lists the tasks of all servers that have any.
func (p *Plugin) taskList(ctx context.Context) (jsontext.Value, error) {
	all := []jsontext.Value{}
	for _, s := range p.all() {
		s.mu.Lock()
		has := len(s.tasks) > 0
		s.mu.Unlock()
		if !has {
			continue
		}
		always := func(*sdk.ServerCapabilities) bool { return true }
		found, err := s.collect(ctx, maxTools, always, "tasks/list", "tasks")
		for i := range found {
			if err == nil {
				found[i], err = s.named(found[i])
			}
		}
		if err != nil {
			p.env.Log.Debug().Err(err).Str("mcp_server", s.opts.ID).Msg("the tasks of the MCP server could not be listed")
			continue
		}
		all = append(all, found...)
	}
	return encode(map[string]any{"tasks": all})
}

// named puts the server's id before the ids of tasks in a result: at the top, in `task`, in
// each of `tasks`, and where _meta says what the result belongs to.
func (s *server) named(raw jsontext.Value) (jsontext.Value, error) {
	var obj map[string]jsontext.Value
	if err := json.Unmarshal(raw, &obj); err != nil {
		return nil, err
	}
	for key, val := range obj {
		var err error
		switch key {
		case "taskId":
			id, _ := protocol.Value(val).Str()
			val = protocol.AppendString(nil, s.opts.ID+separator+id)
		case "task", "_meta", "io.modelcontextprotocol/related-task":
			val, err = s.named(val)
		case "tasks":
			var list []jsontext.Value
			if err = json.Unmarshal(val, &list); err == nil {
				for i := range list {
					if list[i], err = s.named(list[i]); err != nil {
						return nil, err
					}
				}
				val, err = encode(list)
			}
		}
		if err != nil {
			return nil, err
		}
		obj[key] = val
	}
	return encode(obj)
}
