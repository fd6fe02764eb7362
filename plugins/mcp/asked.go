package mcp

import (
	"context"
	"errors"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"a2e/host/schema"
	"a2e/protocol"
)

// The methods of a server's requests and notifications.
const (
	methodRoots    = "roots/list"
	methodSample   = "sampling/createMessage"
	methodElicit   = "elicitation/create"
	methodProgress = "notifications/progress"
	methodLog      = "notifications/message"
	methodUpdated  = "notifications/resources/updated"
	methodElicited = "notifications/elicitation/complete"
)

// handle handles a request or a notification of the server. params are JSON as the server wrote it, or nil
// if there are none. The result is JSON, or nil for a notification.
func (s *server) handle(ctx context.Context, method string, params jsontext.Value) (jsontext.Value, error) {
	var obj protocol.Object
	if params != nil {
		var err error
		if obj, err = protocol.ParseObject(params); err != nil {
			return nil, invalid("params are not a JSON object")
		}
	}
	s.mu.Lock()
	may := s.may
	s.mu.Unlock()
	switch {
	case method == methodSample && may.sampling:
		return s.sample(ctx, obj)
	case method == methodElicit && may.elicitation:
		return s.elicit(ctx, obj)
	case method == methodRoots && may.roots:
		return s.listRoots(ctx)
	case method == methodProgress:
		s.progressed(obj)
	case method == methodLog:
		s.push.add(method, "", obj)
	case method == methodUpdated && obj.Text("uri") != "":
		s.push.add(method, obj.Text("uri"), obj)
	case method == methodElicited && obj.Text("elicitationId") != "":
		s.push.add(method, obj.Text("elicitationId"), obj)
	default:
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: "this client does not offer " + method}
	}
	return nil, nil
}

// answer answers a request that the server put into its answer to another request; see request.
func (s *server) answer(ctx context.Context, request jsontext.Value) (jsontext.Value, error) {
	obj, err := protocol.ParseObject(request)
	if err != nil {
		return nil, errors.New("it asks for something that is not a JSON object")
	}
	params, _ := obj.Get("params")
	result, err := s.handle(ctx, obj.Text("method"), jsontext.Value(params))
	if wire, ok := errors.AsType[*jsonrpc.Error](err); ok {
		err = protocol.Errorf(protocol.CodeMCPProtocolError,
			"the MCP server %q asks for what it cannot have: %s", s.opts.ID, wire.Message)
	}
	return result, err
}

func invalid(message string) error {
	return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: message}
}

// field is a member of a request: its name in MCP, its name in this host's protocol, and its rule.
type field struct {
	theirs, ours string
	fits         rule
}

// fields copies the members of params that are in known to req, under this host's names, and the others to
// the member extra.
func fields(params protocol.Object, known []field, req map[string]any) {
	extra := remade(params, func(name string, val protocol.Value) protocol.Value {
		for _, f := range known {
			if f.theirs == name {
				if val = f.fits(val); val != nil {
					req[f.ours] = jsontext.Value(val)
				}
				return nil
			}
		}
		if name == "_meta" {
			return passedMeta(val)
		}
		return val
	})
	if extra.Len() > 0 {
		req["extra"] = extra
	}
}

// sample asks the agent's model to answer a request of the server.
func (s *server) sample(ctx context.Context, params protocol.Object) (jsontext.Value, error) {
	if tools, _ := params.Get("tools"); tools != nil && tools.Kind() != 'n' && string(tools) != "[]" {
		return nil, invalid("this client's sampling has no tools; it did not declare sampling.tools")
	}
	messages, _ := params.Get("messages")
	if items, err := listItems(messages); err != nil || listOf(isObject)(messages) == nil && len(items) > 0 {
		return nil, invalid("messages should be a list of objects")
	}
	req := map[string]any{
		"server_id": s.opts.ID, "mcp_request_id": s.askID(), "messages": []string{}, "model_preferences": struct{}{},
		"system_prompt": "", "include_context": "none", "temperature": 1, "max_tokens": 1024,
		"stop_sequences": []string{}, "metadata": struct{}{},
	}
	fields(params, []field{
		{"messages", "messages", listOf(isObject)},
		{"modelPreferences", "model_preferences", isObject},
		{"systemPrompt", "system_prompt", isText},
		{"includeContext", "include_context", isText},
		{"temperature", "temperature", isNumber},
		{"maxTokens", "max_tokens", isCount},
		{"stopSequences", "stop_sequences", listOf(isText)},
		{"metadata", "metadata", isObject},
	}, req)
	var resp protocol.MCPSampleResponse
	resp.SetDefaults()
	switch err := s.ask(ctx, sampleWait, protocol.TypeMCPSampleReq, req, &resp); {
	case err != nil:
		return nil, refusal(err)
	case resp.Error != "":
		return nil, &jsonrpc.Error{Code: codeRefused, Message: "the agent refused: " + resp.Error}
	}
	if one, known := blocks()[resp.Content.Text("type")]; known {
		if _, err := one.fit(resp.Content.Raw()); err == nil {
			return sampled(&resp)
		}
	}
	s.p.env.Log.Warn().Str("mcp_server", s.opts.ID).Msg("the agent's mcp/sample/resp cannot be passed on")
	return nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "the agent's answer is not MCP content"}
}

// sampled makes the MCP result from the answer of the agent's model.
func sampled(resp *protocol.MCPSampleResponse) (jsontext.Value, error) {
	result := map[string]any{"role": resp.Role, "content": resp.Content, "model": resp.Model}
	if resp.StopReason != "" {
		result["stopReason"] = resp.StopReason
	}
	for key, val := range resp.Extra.All() {
		result[string(key)] = jsontext.Value(val)
	}
	return encode(result)
}

// elicit asks the user a question of the server. No answer counts as declined.
func (s *server) elicit(ctx context.Context, params protocol.Object) (jsontext.Value, error) {
	mode := params.Text("mode")
	wanted, _ := params.Child("requestedSchema")
	address := params.Text("url")
	if message, _ := params.Get("message"); isText(message) == nil {
		return nil, invalid("message should be a text")
	}
	switch mode {
	case "", "form":
		mode = "form"
		if address != "" {
			return nil, invalid("a form has no url")
		}
	case "url":
		if address == "" || wanted.Len() > 0 {
			return nil, invalid("the mode url needs a url, and no requestedSchema")
		}
	default:
		return nil, invalid("there are no modes but form and url")
	}
	form, err := formOf(params)
	if err != nil {
		return nil, err
	}
	req := map[string]any{
		"server_id": s.opts.ID, "mcp_request_id": s.askID(), "mode": mode, "message": "", "url": "",
		"requested_schema": struct{}{},
	}
	fields(params, []field{
		{"mode", "mode", isText},
		{"message", "message", isText},
		{"url", "url", isText},
		{"requestedSchema", "requested_schema", isObject},
	}, req)
	var resp protocol.MCPElicitResponse
	if err := s.ask(ctx, elicitWait, protocol.TypeMCPElicitReq, req, &resp); err != nil {
		s.p.env.Log.Debug().Err(err).Str("mcp_server", s.opts.ID).
			Msg("a question of the MCP server got no answer: it counts as declined")
		return jsontext.Value(`{"action":"decline"}`), nil
	}
	result := map[string]any{}
	for key, val := range resp.Extra.All() {
		result[string(key)] = jsontext.Value(val)
	}
	switch result["action"] = resp.Action; resp.Action {
	case "accept":
		if mode != "form" {
			break
		}
		content := resp.Content
		if form != nil {
			if wrong := form.Check(content.Raw(), "content"); wrong != nil {
				why := protocol.Violation(wrong...).Message
				return nil, invalid("the answer does not fit the requested schema: " + why)
			}
			content = schema.WithDefaults(wanted, content)
		}
		result["content"] = content
	case "decline", "cancel":
	default:
		s.p.env.Log.Warn().Str("mcp_server", s.opts.ID).
			Msg("the action of the agent's mcp/elicit/resp should be accept, decline or cancel; it counts as cancel")
		result["action"] = "cancel"
	}
	return encode(result)
}

// formOf compiles the schema of an answer. It returns nil if there is no schema, or one of an unknown
// dialect that cannot be checked here.
func formOf(params protocol.Object) (*schema.Schema, error) {
	wanted, there := params.Get("requestedSchema")
	if !there || wanted.Kind() == 'n' {
		return nil, nil
	}
	if wanted.Kind() != '{' {
		return nil, invalid("requestedSchema is not a JSON object")
	}
	fit, _, err := schema.NormaliseInput(jsontext.Value(wanted))
	var form *schema.Schema
	if err == nil && schema.Known(jsontext.Value(wanted)) {
		form, err = schema.Compile(fit, maxElicitSize)
	}
	if err != nil {
		return nil, invalid("requestedSchema " + err.Error() + "; it should be that of a flat object")
	}
	return form, nil
}

// isCount accepts a whole number of 1 or more.
func isCount(v protocol.Value) protocol.Value {
	if n, ok := v.Int(); !ok || n < 1 {
		return nil
	}
	return v
}

// rootsOf makes the result of roots/list from the roots that the agent names. Roots without a uri are left
// out.
func (s *server) rootsOf(resp *protocol.MCPRootListResponse) jsontext.Value {
	roots := []protocol.Object{}
	for _, r := range resp.Roots {
		if r.Text("uri") == "" {
			s.p.env.Log.Warn().Str("mcp_server", s.opts.ID).Msg("a root in the agent's mcp/root/list/resp has no uri")
			continue
		}
		roots = append(roots, r)
	}
	raw, err := json.Marshal(map[string]any{"roots": roots}, jsontext.PreserveRawStrings(true))
	if err != nil {
		return nil // cannot be: the roots are JSON
	}
	return raw
}
