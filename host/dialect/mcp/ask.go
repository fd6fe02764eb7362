package mcp

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/host/schema"
	"a2e/protocol"
)

// capabilities is what the client offers, as in initialize. Each member is an object, or nil if it is not offered.
type capabilities struct {
	Sampling    jsontext.Value `json:"sampling,omitzero"`
	Roots       jsontext.Value `json:"roots,omitzero"`
	Elicitation jsontext.Value `json:"elicitation,omitzero"`
}

// said returns the capabilities as JSON, without members that are not objects.
func (c capabilities) said() jsontext.Value {
	for _, one := range []*jsontext.Value{&c.Sampling, &c.Roots, &c.Elicitation} {
		if one.Kind() != '{' {
			*one = nil
		}
	}
	raw, _ := protocol.AppendJSON(nil, c) // cannot fail: the members came as JSON
	return raw
}

// forms returns in which ways the user can be asked; nil = not at all.
func (c capabilities) forms() *mcp.ElicitationCapabilities {
	if c.Elicitation.Kind() != '{' {
		return nil
	}
	all := new(mcp.ElicitationCapabilities)
	_ = json.Unmarshal(c.Elicitation, all) // the go-sdk refuses members that do not fit
	if all.URL == nil {                    // an empty object means forms
		all.Form = &mcp.FormElicitationCapabilities{}
	}
	return all
}

// asker passes the questions of plugins to the client, as sampling, roots and elicitation of MCP.
type asker struct {
	server *server
	offers capabilities
}

// ask is a host.Asker. req is a struct of the protocol, or its JSON.
func (a *asker) ask(ctx context.Context, t protocol.Type, req, resp any) error {
	raw, err := protocol.AppendJSON(nil, req)
	if err != nil {
		return err
	}
	var answer any
	switch t {
	case protocol.TypeMCPSampleReq:
		answer, err = a.sample(ctx, raw)
	case protocol.TypeMCPRootListReq:
		answer, err = a.roots(ctx, raw)
	case protocol.TypeMCPElicitReq:
		answer, err = a.elicit(ctx, raw)
	default:
		return protocol.Errorf(protocol.CodeRuntimeError, "%s cannot be asked: the agent of this session is an MCP "+
			"client, which answers sampling, roots and elicitation", t)
	}
	if err != nil {
		return err
	}
	if raw, err = protocol.AppendJSON(nil, answer); err != nil {
		return err
	}
	return read(raw, resp)
}

// read decodes a JSON object into the value that a plugin passed for it.
func read(raw []byte, dst any) error {
	if v, ok := dst.(*jsontext.Value); ok {
		*v = raw
		return nil
	}
	obj, err := protocol.ParseObject(raw)
	if err != nil {
		return err
	}
	if o, ok := dst.(*protocol.Object); ok {
		*o = obj
		return nil
	}
	return protocol.Decode(obj, nil, dst)
}

func lacks(what string) error {
	return protocol.Errorf(protocol.CodeMCPCapabilityMissing, "the MCP client of this session offers no %s", what)
}

// refused returns the error for a client that answered with an error or not as it should.
func refused(ctx context.Context, code protocol.ErrorCode, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if rpc, ok := errors.AsType[*rpcError](err); ok {
		return protocol.Errorf(code, "the MCP client refused: %s", shortened(rpc.Message)).With("code", rpc.Code)
	}
	return protocol.Errorf(code, "the MCP client did not answer as it should: %s", shortened(err.Error()))
}

// names maps the members of a question from their names in A2E to those in MCP.
type names map[string]string

func samplingNames() names {
	return names{
		"messages": "messages", "system_prompt": "systemPrompt", "max_tokens": "maxTokens",
		"temperature":    "temperature",
		"stop_sequences": "stopSequences", "include_context": "includeContext", "model_preferences": "modelPreferences",
		"metadata": "metadata",
	}
}

// params makes params of MCP from a question: the members that n names, with their values unchanged, and the members of
// extra. It leaves out empty members that must does not name.
func (n names) params(q protocol.Object, must ...string) jsontext.Value {
	out := []byte("{}")
	for key, val := range q.All() {
		empty := len(val) == 2 && val.Kind() != '0' || val.Kind() == 'n' // "", [] or {}
		if name := n[string(key)]; name != "" && (!empty || slices.Contains(must, name)) {
			out = withLast(out, name, val)
		}
	}
	extra, _ := q.Child("extra")
	return withMembers(out, extra)
}

// without returns the members of an answer except some.
func without(obj protocol.Object, some ...string) protocol.Object {
	out := withMembers([]byte("{}"), obj, some...)
	if len(out) == len("{}") {
		return protocol.Object{}
	}
	rest, _ := protocol.ParseObject(out) // cannot fail: out is an object
	return rest
}

// has returns what the client offers. A modern client says so in each request, and can be asked only while that request
// is served.
func (a *asker) has(ctx context.Context) capabilities {
	if !a.server.isModern.Load() {
		return a.offers
	}
	rd, ok := ctx.Value(roundKey{}).(*round)
	if !ok {
		return capabilities{}
	}
	rd.mu.Lock()
	defer rd.mu.Unlock()
	return rd.of.meta.Offers
}

func (a *asker) sample(ctx context.Context, raw []byte) (*protocol.MCPSampleResponse, error) {
	if a.has(ctx).Sampling.Kind() != '{' {
		return nil, lacks("sampling")
	}
	q, err := protocol.ParseObject(raw)
	if err != nil {
		return nil, err
	}
	if err := read(raw, new(protocol.MCPSampleRequest)); err != nil { // checks the types
		return nil, err
	}
	params := samplingNames().params(q, "messages")
	for _, absent := range [][2]string{{"maxTokens", "1024"}, {"temperature", "1"}, {"includeContext", `"none"`}} {
		if member(params, absent[0]) == nil {
			params = withLast(params, absent[0], []byte(absent[1]))
		}
	}
	said, err := a.question(ctx, "sampling/createMessage", params, protocol.CodeMCPSamplingRefused)
	if err != nil {
		return nil, err
	}
	if role, there := said.Get("role"); there && role.Kind() != '"' {
		return nil, refused(ctx, protocol.CodeMCPSamplingRefused, errors.New("the role should be a text"))
	}
	out := &protocol.MCPSampleResponse{
		ServerID: q.Text("server_id"), MCPRequestID: q.Text("mcp_request_id"),
		Role: said.Text("role"), Model: said.Text("model"), StopReason: said.Text("stopReason"),
	}
	content, _ := said.Get("content")
	out.Extra = without(said, "role", "model", "stopReason", "content", "resultType")
	if all := blocks(jsontext.Value(content), true); len(all) > 1 { // the response has room for one block
		out.Extra = without(said, "role", "model", "stopReason", "resultType")
	}
	out.Content, err = firstBlock(jsontext.Value(content))
	return out, err
}

// question asks the client and returns its result. If the client refuses, the error has the code given.
func (a *asker) question(
	ctx context.Context, method string, params jsontext.Value, code protocol.ErrorCode,
) (result protocol.Object, err error) {
	answer, err := a.server.question(ctx, method, params)
	if err == nil {
		result, err = protocol.ParseObject(answer)
	}
	if err != nil {
		return result, refused(ctx, code, err)
	}
	return result, nil
}

// firstBlock returns the first block of a content, because A2E has room for one.
func firstBlock(content jsontext.Value) (block protocol.Object, err error) {
	if content.Kind() == '[' {
		var all []jsontext.Value
		if err := json.Unmarshal(content, &all); err != nil || len(all) == 0 {
			return block, err
		}
		content = all[0]
	}
	if len(content) == 0 || content.Kind() == 'n' {
		return block, nil
	}
	return protocol.ParseObject(content)
}

func (a *asker) roots(ctx context.Context, raw []byte) (*protocol.MCPRootListResponse, error) {
	if a.has(ctx).Roots.Kind() != '{' {
		return nil, lacks("roots")
	}
	var q protocol.MCPRootListRequest
	if err := read(raw, &q); err != nil {
		return nil, err
	}
	said, err := a.question(ctx, "roots/list", jsontext.Value("{}"), protocol.CodeMCPProtocolError)
	if err != nil {
		return nil, err
	}
	var list struct {
		Roots []protocol.Object `json:"roots"`
	}
	if err := json.Unmarshal(said.Raw(), &list); err != nil {
		return nil, refused(ctx, protocol.CodeMCPProtocolError, errors.New("roots should be a list of objects"))
	}
	return &protocol.MCPRootListResponse{ServerID: q.ServerID, MCPRequestID: q.MCPRequestID, Roots: list.Roots}, nil
}

// maxElicitSize bounds the schema of a form, in subschemas.
const maxElicitSize = 1000

func (a *asker) elicit(ctx context.Context, raw []byte) (*protocol.MCPElicitResponse, error) {
	q, err := protocol.ParseObject(raw)
	if err != nil {
		return nil, err
	}
	mode := cmp.Or(q.Text("mode"), "form")
	switch can := a.has(ctx).forms(); {
	case can == nil:
		return nil, lacks("elicitation")
	case mode == "url" && can.URL == nil, mode != "url" && can.Form == nil:
		return nil, lacks("elicitation by " + mode)
	}
	asked := names{"message": "message"}
	wanted, _ := q.Child("requested_schema")
	var form *schema.Schema
	var normal jsontext.Value
	if mode == "url" {
		asked["url"] = "url"
	} else if wanted.Len() > 0 {
		if normal, _, err = schema.NormaliseInput(wanted.Raw()); err == nil && schema.Known(wanted.Raw()) {
			form, err = schema.Compile(normal, maxElicitSize)
		}
		if err != nil {
			return nil, protocol.Violation(protocol.FieldError{Path: "/requested_schema", Message: err.Error()})
		}
	}
	params := withMember(asked.params(q, "message"), `"mode":`+string(protocol.AppendString(nil, mode)))
	if normal != nil {
		params = withLast(params, "requestedSchema", normal)
	}
	if mode == "url" && member(params, "elicitationId") == nil { // a question of the host itself has none
		params = withLast(params, "elicitationId", protocol.AppendString(nil, q.Text("mcp_request_id")))
	}
	said, err := a.question(ctx, "elicitation/create", params, protocol.CodeMCPProtocolError)
	if err != nil {
		return nil, err
	}
	out := &protocol.MCPElicitResponse{
		ServerID: q.Text("server_id"), MCPRequestID: q.Text("mcp_request_id"), Action: said.Text("action"),
		Extra: without(said, "action", "content", "resultType"),
	}
	content, has := said.Child("content")
	if has && form != nil && out.Action == "accept" {
		if wrong := form.Check(content.Raw(), "content"); wrong != nil {
			why := errors.New("the content does not match the requested schema: " +
				protocol.Violation(wrong...).Message)
			return nil, refused(ctx, protocol.CodeMCPProtocolError, why)
		}
		content = schema.WithDefaults(wanted, content)
	}
	out.Content = content
	return out, nil
}
