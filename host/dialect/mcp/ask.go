//lint:file-ignore SA1019 MCP 2026-07-28 begins to retire sampling and roots; clients of all earlier versions offer them, and this file is where they are asked.

package mcp

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/protocol"
)

// capabilities is what the client offers, as initialize says it: an object each.
type capabilities struct {
	Sampling    jsontext.Value `json:"sampling"`
	Roots       jsontext.Value `json:"roots"`
	Elicitation jsontext.Value `json:"elicitation"`
}

// typed gives what can be asked as the go-sdk has it.
func (c capabilities) typed() *mcp.ClientCapabilities {
	all := new(mcp.ClientCapabilities)
	if c.Sampling.Kind() == '{' {
		all.Sampling = &mcp.SamplingCapabilities{}
	}
	if c.Roots.Kind() == '{' {
		all.RootsV2 = &mcp.RootCapabilities{}
	}
	if c.Elicitation.Kind() == '{' {
		all.Elicitation = &mcp.ElicitationCapabilities{}
		_ = json.Unmarshal(c.Elicitation, all.Elicitation) // what does not fit is refused by the go-sdk
		if all.Elicitation.URL == nil {                    // {} is forms
			all.Elicitation.Form = &mcp.FormElicitationCapabilities{}
		}
	}
	return all
}

// asker puts the plugins' questions to the client: what an agent is asked by A2E, an MCP
// client is asked as sampling, roots and elicitation.
type asker struct {
	server *server
	offers capabilities
	client *mcp.ServerSession // set before the first request is served
}

// ask is a host.Asker.
func (a *asker) ask(ctx context.Context, t protocol.Type, req, resp any) error {
	var answer any
	var err error
	switch t {
	case protocol.TypeMCPSampleReq:
		answer, err = a.sample(ctx, req)
	case protocol.TypeMCPRootListReq:
		answer, err = a.roots(ctx, req)
	case protocol.TypeMCPElicitReq:
		answer, err = a.elicit(ctx, req)
	default:
		return protocol.Errorf(protocol.CodeRuntimeError, "%s cannot be asked: the agent of this session is an MCP client, which answers sampling, roots and elicitation", t)
	}
	if err != nil {
		return err
	}
	raw, err := protocol.AppendJSON(nil, answer)
	if err != nil {
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

// as reads a question, which is a struct of the protocol or its JSON.
func as[T any](req any) (*T, error) {
	raw, err := protocol.AppendJSON(nil, req)
	if err != nil {
		return nil, err
	}
	v := new(T)
	return v, read(raw, v)
}

func lacks(what string) error {
	return protocol.Errorf(protocol.CodeMCPCapabilityMissing, "the MCP client of this session offers no %s", what)
}

// refused tells of a client that answered with an error.
func refused(ctx context.Context, code protocol.ErrorCode, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var rpc *rpcError
	if errors.As(err, &rpc) {
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

// has gives what the client offers: a modern one says so with each request, and is asked
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

func (a *asker) sample(ctx context.Context, req any) (*protocol.MCPSampleResponse, error) {
	if a.has(ctx).Sampling.Kind() != '{' {
		return nil, lacks("sampling")
	}
	q, err := as[protocol.MCPSampleRequest](req)
	if err != nil {
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

// firstBlock gives the first block of a content: A2E has room for one.
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

func (a *asker) roots(ctx context.Context, req any) (*protocol.MCPRootListResponse, error) {
	if a.has(ctx).Roots.Kind() != '{' {
		return nil, lacks("roots")
	}
	q, err := as[protocol.MCPRootListRequest](req)
	if err != nil {
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

// refers tells whether a schema has references: with one to itself the go-sdk would hold
// the answer against it without end.
func refers(schema []byte) bool {
	dec := jsontext.NewDecoder(bytes.NewReader(schema))
	for {
		token, err := dec.ReadToken()
		if err != nil {
			return false
		}
		if token.Kind() == '"' && slices.Contains([]string{"$ref", "$dynamicRef"}, token.String()) {
			return true
		}
	}
}

// elicitation asks the user of the client.
func (a *asker) elicitation(ctx context.Context, params *mcp.ElicitParams) (*mcp.ElicitResult, error) {
	if a.server.isModern.Load() {
		params.Mode = cmp.Or(params.Mode, "form")
		res := new(mcp.ElicitResult)
		return res, a.question(ctx, "elicitation/create", params, res, protocol.CodeMCPProtocolError)
	}
	res, err := a.client.Elicit(ctx, params)
	if err != nil {
		return nil, refused(ctx, protocol.CodeMCPProtocolError, err)
	}
	return res, nil
}

// elicit leaves the question to the go-sdk, which holds the answer against the schema.
func (a *asker) elicit(ctx context.Context, req any) (*protocol.MCPElicitResponse, error) {
	if a.has(ctx).Elicitation.Kind() != '{' {
		return nil, lacks("elicitation")
	}
	q, err := as[protocol.MCPElicitRequest](req)
	if err != nil {
		return nil, err
	}
	params := &mcp.ElicitParams{Mode: q.Mode, Message: q.Message, URL: q.URL}
	if q.Mode == "url" {
		params.ElicitationID = q.MCPRequestID
	} else if q.RequestedSchema.Len() > 0 {
		if refers(q.RequestedSchema.Raw()) {
			return nil, protocol.Violation(protocol.FieldError{Path: "/requested_schema", Message: "has a reference in it; it should be the schema of a flat object"})
		}
		params.RequestedSchema = jsontext.Value(q.RequestedSchema.Raw())
	}
	res, err := a.elicitation(ctx, params)
	if err != nil {
		return nil, err
	}
	out := &protocol.MCPElicitResponse{ServerID: q.ServerID, MCPRequestID: q.MCPRequestID, Action: res.Action}
	if res.Content != nil {
		raw, err := json.Marshal(res.Content)
		if err != nil {
			return nil, err
		}
		if out.Content, err = protocol.ParseObject(raw); err != nil {
			return nil, err
		}
	}
	return out, nil
}
