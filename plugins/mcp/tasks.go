package mcp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/host"
	"a2e/plugins/mcp/link"
	"a2e/plugins/tools"
	"a2e/protocol"
)

// uriScheme begins URIs that name their server: mcp://SERVER/URI.
const uriScheme = "mcp://"

// ForwardMCP implements dialect.MCPGateway.
func (p *Plugin) ForwardMCP(ctx context.Context, method string, params jsontext.Value,
	emit host.Emitter,
) (jsontext.Value, error) {
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
	return nil, host.NotOwner(protocol.Errorf(protocol.CodeMCPCapabilityMissing, "%s is not forwarded to MCP servers",
		method))
}

// complete asks the server of a prompt or of a resource template to complete one of its arguments.
func (p *Plugin) complete(ctx context.Context, raw jsontext.Value) (jsontext.Value, error) {
	var params sdk.CompleteParams
	obj, err := protocol.ParseObject(raw)
	if err == nil {
		err = json.Unmarshal(raw, &params)
	}
	if err != nil {
		return nil, protocol.Misfit("/params", err)
	}
	if params.Ref == nil || params.Argument.Name == "" {
		return nil, protocol.Violation(protocol.FieldError{Path: "/params", Message: "need a ref, and an argument " +
			"with a name"})
	}
	s := p.refer(ctx, params.Ref)
	if s == nil {
		return nil, host.NotOwner(protocol.Errorf(protocol.CodeSchemaViolation,
			"no MCP server has the prompt or resource template that ref names; the lists name them"))
	}
	var res jsontext.Value
	err = s.asked(ctx, func(ctx context.Context, cs *sdk.ClientSession) (err error) {
		if s.capabilities().Completions == nil { // the server suggests nothing
			res = jsontext.Value(`{"completion":{"values":[]}}`)
			return nil
		}
		sent := remade(obj, func(name string, val protocol.Value) protocol.Value {
			switch name {
			case "ref":
				return referTo(val, params.Ref)
			case "_meta": // this is the _meta of the client in front
				return nil
			}
			return val
		})
		if res, err = link.Raw(ctx, cs, "completion/complete", sent.Raw()); err == nil {
			res, err = fitCompletion(res)
		}
		return err
	})
	return res, err
}

// referTo replaces the name or the URI in a reference by those of ref.
func referTo(raw protocol.Value, ref *sdk.CompleteReference) protocol.Value {
	obj, err := protocol.ParseObject(raw)
	if err != nil {
		return raw
	}
	return remade(obj, func(name string, val protocol.Value) protocol.Value {
		switch name {
		case "name":
			return protocol.AppendString(nil, ref.Name)
		case "uri":
			return protocol.AppendString(nil, ref.URI)
		}
		return val
	}).Raw()
}

// maxSuggestions is how many values MCP lets a completion have.
const maxSuggestions = 100

// fitCompletion returns a result of completion/complete as the host passes it on.
func fitCompletion(raw jsontext.Value) (jsontext.Value, error) {
	count := 0
	some := func(v protocol.Value) protocol.Value {
		if count++; count > maxSuggestions {
			return nil
		}
		return isText(v)
	}
	values := func(v protocol.Value) protocol.Value {
		if list := listOf(some)(v); list != nil || v.Kind() != '[' {
			return list
		}
		return protocol.Value("[]")
	}
	inner := shape{required: []string{"values"}, members: map[string]rule{
		"values": values, "total": isNumber, "hasMore": isFlag,
	}}
	outer := shape{required: []string{"completion"}, members: map[string]rule{
		"completion": inner.within, "_meta": passedMeta,
	}}
	obj, err := outer.fit(raw)
	if err != nil {
		return nil, fmt.Errorf("the completion %w", err)
	}
	return obj.Raw(), nil
}

// refer returns the server that a reference is for, or nil if there is none, and replaces the name or URI
// in ref by the server's own.
func (p *Plugin) refer(ctx context.Context, ref *sdk.CompleteReference) *server {
	all := p.all()
	p.await(ctx, all, kindAll, nil)
	if ref.Type == "ref/prompt" {
		for _, s := range all {
			if name, ok := strings.CutPrefix(ref.Name, protocol.MCPName(s.opts.ID, "")); ok && s.hasPrompt(name) {
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

// hasTemplate reports whether the server has this template, or a resource or a matching template for this
// URI, and the config lets it be read.
func (s *server) hasTemplate(uri string) bool {
	s.mu.Lock()
	found := slices.ContainsFunc(s.templates, func(t *boundTemplate) bool { return t.uri == uri })
	s.mu.Unlock()
	listed, templated := s.offers(uri)
	return (found || listed || templated) && s.readable(uri)
}

// unsubscribe ends the subscription of the session of ctx to a resource.
func (p *Plugin) unsubscribe(ctx context.Context, raw jsontext.Value) (jsontext.Value, error) {
	var params sdk.UnsubscribeParams
	if err := json.Unmarshal(raw, &params); err != nil {
		return nil, protocol.Misfit("/params", err)
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

// taskRequired is the taskSupport of a tool that can only be called as a task.
const taskRequired = "required"

// taskStop bounds the request that cancels a task after the end of its call.
const taskStop = 2 * time.Second

// taskSupport returns what a tool says about tasks: required, optional, or "" if it cannot run as a task.
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

// begun reads the answer to a call that runs as a task. If wait is set, it waits for the result of the task
// and returns it, else it returns the task.
func (s *server) begun(
	ctx context.Context, cs *sdk.ClientSession, raw jsontext.Value, wait bool, emit host.Emitter,
) (*tools.Outcome, error) {
	var task created
	if err := json.Unmarshal(raw, &task); err != nil || task.Task.ID == "" {
		return nil, protocol.Errorf(protocol.CodeMCPProtocolError,
			"the MCP server %q did not start a task, as it should for this tool", s.opts.ID)
	}
	if !wait {
		raw, err := s.named(raw)
		return &tools.Outcome{Data: raw}, err
	}
	raw, err := rawCall(ctx, cs, "tasks/result", map[string]any{"taskId": task.Task.ID})
	if err != nil {
		s.stopTask(ctx, cs, task.Task.ID)
		return nil, err
	}
	return outcome(raw, emit)
}

// stopTask cancels a task if ctx has ended, since nobody waits for it any more.
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

// maxRounds is how often a server may ask before it answers one request.
const maxRounds = 10

// request sends a request to the server. In versions of MCP in which servers send no requests, a server
// puts its questions into its answer; then the request is sent again with the answers to them.
func (s *server) request(
	ctx context.Context, cs *sdk.ClientSession, method string, params map[string]any,
) (jsontext.Value, error) {
	for range maxRounds {
		raw, err := rawCall(ctx, cs, method, params)
		if err != nil {
			return nil, err
		}
		var asks struct {
			Type     string                    `json:"resultType"`
			Requests map[string]jsontext.Value `json:"inputRequests"`
			State    jsontext.Value            `json:"requestState"`
		}
		if json.Unmarshal(raw, &asks) != nil || asks.Type != "input_required" {
			return raw, nil
		}
		answers := make(map[string]jsontext.Value, len(asks.Requests))
		for _, id := range slices.Sorted(maps.Keys(asks.Requests)) {
			if answers[id], err = s.answer(ctx, asks.Requests[id]); err != nil {
				return nil, err
			}
		}
		if params["inputResponses"] = answers; asks.State != nil {
			params["requestState"] = asks.State
		}
		if len(answers) == 0 && !link.Pause(ctx, debounce) { // the server asked for nothing: it is busy
			return nil, context.Cause(ctx)
		}
	}
	return nil, protocol.Errorf(protocol.CodeMCPProtocolError,
		"the MCP server %q has asked %d times and does not answer", s.opts.ID, maxRounds)
}

func rawCall(ctx context.Context, cs *sdk.ClientSession, method string, params any) (jsontext.Value, error) {
	raw, err := encode(params)
	if err != nil {
		return nil, err
	}
	return link.Raw(ctx, cs, method, raw)
}

// task sends a request about one task to the server whose id begins the task's id.
func (p *Plugin) task(ctx context.Context, method string, raw jsontext.Value) (jsontext.Value, error) {
	var params struct {
		ID string `json:"taskId"`
	}
	if err := json.Unmarshal(raw, &params); err != nil {
		return nil, protocol.Misfit("/params", err)
	}
	for _, s := range p.all() {
		id, ok := strings.CutPrefix(params.ID, protocol.MCPName(s.opts.ID, ""))
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
	return nil, host.NotOwner(protocol.Errorf(protocol.CodeSchemaViolation, "no MCP server has the task %q",
		protocol.Clip(params.ID, maxQuoted)))
}

// taskList returns the tasks of all servers that have tools with tasks.
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
			p.env.Log.Debug().Err(err).Str("mcp_server", s.opts.ID).Msg("the tasks of the MCP server could not be " +
				"listed")
			continue
		}
		all = append(all, found...)
	}
	return encode(map[string]any{"tasks": all})
}

// named puts the server's id before the ids of tasks in a result: at the top, in `task`, in each of
// `tasks`, and in the related-task of _meta.
func (s *server) named(raw jsontext.Value) (jsontext.Value, error) {
	obj, err := protocol.ParseObject(raw)
	if err != nil {
		return nil, errors.New("what the server says of a task is not a JSON object")
	}
	return s.namedIn(obj).Raw(), nil
}

func (s *server) namedIn(obj protocol.Object) protocol.Object {
	return remade(obj, func(name string, val protocol.Value) protocol.Value {
		child, _ := protocol.ParseObject(val)
		switch name {
		case "taskId":
			id, _ := val.Str()
			return protocol.AppendString(nil, protocol.MCPName(s.opts.ID, id))
		case "task", "_meta", hopPrefix + "related-task":
			if val.Kind() == '{' {
				return s.namedIn(child).Raw()
			}
		case "tasks":
			return listOf(func(v protocol.Value) protocol.Value {
				one, err := protocol.ParseObject(v)
				if err != nil {
					return nil
				}
				return s.namedIn(one).Raw()
			})(val)
		}
		return val
	})
}
