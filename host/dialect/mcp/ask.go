package mcp

import (
	"cmp"
	"context"
	"errors"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/host/schema"
	"a2e/protocol"
)

// capabilities is what the client offers, as initialize says it: an object each.
type capabilities struct {
	Sampling    jsontext.Value `json:"sampling,omitzero"`
	Roots       jsontext.Value `json:"roots,omitzero"`
	Elicitation jsontext.Value `json:"elicitation,omitzero"`
}

// said returns them as JSON, without what is no object.
func (c capabilities) said() jsontext.Value {
	for _, one := range []*jsontext.Value{&c.Sampling, &c.Roots, &c.Elicitation} {
		if one.Kind() != '{' {
			*one = nil
		}
	}
	raw, _ := protocol.AppendJSON(nil, c) // it was JSON before
	return raw
}

// forms returns how the user can be asked; nil = not at all.
func (c capabilities) forms() *mcp.ElicitationCapabilities {
	if c.Elicitation.Kind() != '{' {
		return nil
	}
	all := new(mcp.ElicitationCapabilities)
	_ = json.Unmarshal(c.Elicitation, all) // what does not fit is refused by the go-sdk
	if all.URL == nil {                    // {} is forms
		all.Form = &mcp.FormElicitationCapabilities{}
	}
	return all
}

// asker puts the plugins' questions to the client: what an agent is asked by A2E, an MCP
// client is asked as sampling, roots and elicitation.
type asker struct {
	server *server
	offers capabilities
}

// ask is a host.Asker. req is a struct of the protocol or its JSON.
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
		return protocol.Errorf(protocol.CodeRuntimeError, "%s cannot be asked: the agent of this session is an MCP client, which answers sampling, roots and elicitation", t)
	}
	if err != nil {
		return err
	}
	if raw, err = protocol.AppendJSON(nil, answer); err != nil {
		return err
	}
	return read(raw, resp)
}

// read decodes JSON, an object, into what a plugin gave for it.
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

// refused tells of a client that answered with an error.
func refused(ctx context.Context, code protocol.ErrorCode, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if rpc, ok := errors.AsType[*rpcError](err); ok {
		return protocol.Errorf(code, "the MCP client refused: %s", shortened(rpc.Message)).With("code", rpc.Code)
	}
	return protocol.Errorf(code, "the MCP client did not answer as it should: %s", shortened(err.Error()))
}

// sampling is the params of sampling/createMessage.
type sampling struct {
	Messages         []protocol.Object `json:"messages"`
	SystemPrompt     string            `json:"systemPrompt,omitempty"`
	MaxTokens        int               `json:"maxTokens"`
	Temperature      float64           `json:"temperature"`
	StopSequences    []string          `json:"stopSequences,omitempty"`
	IncludeContext   string            `json:"includeContext,omitempty"`
	ModelPreferences jsontext.Value    `json:"modelPreferences,omitempty"`
	Metadata         jsontext.Value    `json:"metadata,omitempty"`
}

// sampled is what the client's model said.
type sampled struct {
	Role       string         `json:"role"`
	Content    jsontext.Value `json:"content"` // a block, or an array of them
	Model      string         `json:"model"`
	StopReason string         `json:"stopReason"`
}

// has returns what the client offers: a modern one says so with each request, and is asked
// while it is served.
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
	var q protocol.MCPSampleRequest
	if err := read(raw, &q); err != nil {
		return nil, err
	}
	params := &sampling{
		Messages: q.Messages, SystemPrompt: q.SystemPrompt, MaxTokens: q.MaxTokens, Temperature: q.Temperature,
		StopSequences: q.StopSequences, IncludeContext: q.IncludeContext,
	}
	if q.ModelPreferences.Len() > 0 {
		params.ModelPreferences = q.ModelPreferences.Raw()
	}
	if q.Metadata.Len() > 0 {
		params.Metadata = q.Metadata.Raw()
	}
	var said sampled
	if err := a.question(ctx, "sampling/createMessage", params, &said, protocol.CodeMCPSamplingRefused); err != nil {
		return nil, err
	}
	out := &protocol.MCPSampleResponse{
		ServerID: q.ServerID, MCPRequestID: q.MCPRequestID, Role: said.Role, Model: said.Model, StopReason: said.StopReason,
	}
	var err error
	out.Content, err = firstBlock(said.Content)
	return out, err
}

// question asks the client and decodes its result. The error has the code given where the
// client refuses.
func (a *asker) question(ctx context.Context, method string, params, result any, code protocol.ErrorCode) error {
	raw, err := protocol.AppendJSON(nil, params)
	if err != nil {
		return err
	}
	answer, err := a.server.question(ctx, method, raw)
	if err == nil {
		err = json.Unmarshal(answer, result)
	}
	if err != nil {
		return refused(ctx, code, err)
	}
	return nil
}

// firstBlock returns the first block of a content: A2E has room for one.
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
	var list struct {
		Roots []protocol.Object `json:"roots"`
	}
	if err := a.question(ctx, "roots/list", struct{}{}, &list, protocol.CodeMCPProtocolError); err != nil {
		return nil, err
	}
	return &protocol.MCPRootListResponse{ServerID: q.ServerID, MCPRequestID: q.MCPRequestID, Roots: list.Roots}, nil
}

// maxElicitSize bounds the schema of a form, in schemas.
const maxElicitSize = 1000

func (a *asker) elicit(ctx context.Context, raw []byte) (*protocol.MCPElicitResponse, error) {
	var q protocol.MCPElicitRequest
	if err := read(raw, &q); err != nil {
		return nil, err
	}
	params := &mcp.ElicitParams{Mode: cmp.Or(q.Mode, "form"), Message: q.Message, URL: q.URL}
	switch can := a.has(ctx).forms(); {
	case can == nil:
		return nil, lacks("elicitation")
	case params.Mode == "url" && can.URL == nil, params.Mode != "url" && can.Form == nil:
		return nil, lacks("elicitation by " + params.Mode)
	}
	var form *schema.Schema
	if params.Mode == "url" {
		params.ElicitationID = q.MCPRequestID
	} else if q.RequestedSchema.Len() > 0 {
		wanted, _, err := schema.NormaliseInput(q.RequestedSchema.Raw())
		if err == nil && schema.Known(q.RequestedSchema.Raw()) {
			form, err = schema.Compile(wanted, maxElicitSize)
		}
		if err != nil {
			return nil, protocol.Violation(protocol.FieldError{Path: "/requested_schema", Message: err.Error()})
		}
		params.RequestedSchema = wanted
	}
	var res mcp.ElicitResult
	if err := a.question(ctx, "elicitation/create", params, &res, protocol.CodeMCPProtocolError); err != nil {
		return nil, err
	}
	out := &protocol.MCPElicitResponse{ServerID: q.ServerID, MCPRequestID: q.MCPRequestID, Action: res.Action}
	if res.Content == nil {
		return out, nil
	}
	if form != nil && res.Action == "accept" {
		if err := fill(form, &res.Content); err != nil {
			return nil, refused(ctx, protocol.CodeMCPProtocolError, err)
		}
	}
	filled, err := json.Marshal(res.Content)
	if err == nil {
		out.Content, err = protocol.ParseObject(filled)
	}
	return out, err
}

// fill holds what the user entered against the schema of the form, and adds its defaults.
func fill(form *schema.Schema, content *map[string]any) error {
	resolved, err := form.Resolve(nil)
	if err != nil {
		return err
	}
	if err := resolved.Validate(*content); err != nil {
		return errors.New("the content does not match the requested schema: " + err.Error())
	}
	return resolved.ApplyDefaults(content)
}
