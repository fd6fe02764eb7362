package link

import (
	"context"
	"encoding/base64"
	"errors"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/protocol"
)

// The SDK decodes messages of servers into Go types: it loses numbers and members that these cannot hold,
// and one member of another type makes the whole message fail. So Raw sends requests whose params and
// results stay JSON; the SDK only carries them.

// rawMethod is the method of these requests for the SDK. The real method is in the params and replaces
// rawMethod when the request is sent.
const rawMethod = "a2e/raw"

type rawParams struct {
	mcp.ParamsBase                // what the SDK adds to each request of newer versions of MCP
	Method         string         `json:"method"`
	Params         jsontext.Value `json:"params"`
}

type rawResult struct {
	mcp.ResultBase
	raw jsontext.Value
}

// UnmarshalJSON implements json.Unmarshaler.
func (r *rawResult) UnmarshalJSON(b []byte) error {
	r.raw = slices.Clone(b)
	return nil
}

// Raw sends a request, within a Call. The result is the JSON of the server, made valid if it is not: no
// object has a name twice. params is a JSON object.
func Raw(
	ctx context.Context, session *mcp.ClientSession, method string, params jsontext.Value,
) (jsontext.Value, error) {
	p := &rawParams{Method: method, Params: params}
	res, err := mcp.CallCustomMethod[*rawParams, *rawResult](ctx, session, rawMethod, p)
	if err != nil {
		return nil, err
	}
	return tidy(res.raw)
}

// tidy returns JSON without a name that is twice in an object (the last one counts) and without invalid
// Unicode. Valid JSON keeps its bytes.
func tidy(raw jsontext.Value) (jsontext.Value, error) {
	if raw.IsValid() {
		return raw, nil
	}
	numbers := json.UnmarshalFromFunc(func(dec *jsontext.Decoder, v *any) error {
		*v = nil // drops the value of an earlier member of the same name
		if dec.PeekKind() != '0' {
			return errors.ErrUnsupported
		}
		val, err := dec.ReadValue()
		*v = val.Clone()
		return err
	})
	var v any
	loose := json.JoinOptions(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if err := json.Unmarshal(raw, &v, loose, json.WithUnmarshalers(numbers)); err != nil {
		return nil, err
	}
	return json.Marshal(v, json.Deterministic(true), jsontext.AllowInvalidUTF8(true))
}

// MarshalJSON implements json.Marshaler.
func (r *rawResult) MarshalJSON() ([]byte, error) { return r.raw, nil }

// rawKey is the member of _meta that holds the params of a server's message as a text: the SDK decodes the
// params before Env.Handle gets them.
const rawKey = "a2e/raw"

// isHandled reports whether Env.Handle handles a method.
func isHandled(method string) bool {
	switch method {
	case "sampling/createMessage", "elicitation/create", "roots/list", methodProgress,
		"notifications/message", "notifications/resources/updated", "notifications/elicitation/complete":
		return true
	}
	return false
}

// wrap hides the params of what a server sends from the SDK. It reports whether it did.
func (l *Link) wrap(req *jsonrpc.Request) bool {
	if l.env.Handle == nil || !isHandled(req.Method) {
		return false
	}
	text := []byte(`""`)
	if params, err := tidy(jsontext.Value(req.Params)); err == nil && params.Kind() != 'n' && len(params) > 0 {
		text = protocol.AppendString(nil, params)
	}
	req.Params = append(append([]byte(`{"_meta":{"`+rawKey+`":`), text...), "}}"...)
	return true
}

// handled passes a wrapped message to Env.Handle; ok = false: the message was not wrapped.
func (l *Link) handled(ctx context.Context, method string, req mcp.Request) (_ mcp.Result, ok bool, err error) {
	params := req.GetParams()
	if l.env.Handle == nil || !isHandled(method) || params == nil || reflect.ValueOf(params).IsNil() {
		return nil, false, nil
	}
	text, ok := params.GetMeta()[rawKey].(string)
	if !ok {
		return nil, false, nil
	}
	var raw jsontext.Value
	if text != "" {
		raw = jsontext.Value(text)
	}
	res, err := l.env.Handle(ctx, method, raw)
	if err != nil || strings.HasPrefix(method, "notifications/") {
		return nil, true, err
	}
	return &rawResult{raw: res}, true, nil
}

// unwrap returns a request as it is sent, with the method and params of Raw.
func unwrap(req *jsonrpc.Request) *jsonrpc.Request {
	if req.Method != rawMethod {
		return req
	}
	var p struct {
		Meta   jsontext.Value `json:"_meta"`
		Method string         `json:"method"`
		Params jsontext.Value `json:"params"`
	}
	if json.Unmarshal(req.Params, &p) != nil {
		return req
	}
	out := *req
	out.Method, out.Params = p.Method, []byte(withMeta(p.Params, p.Meta))
	return &out
}

// withMeta adds the members of meta to the _meta of params, whose own members win.
func withMeta(params, meta jsontext.Value) jsontext.Value {
	if len(meta) == 0 {
		return params
	}
	var all, both map[string]jsontext.Value
	if json.Unmarshal(params, &all) != nil || json.Unmarshal(meta, &both) != nil {
		return params
	}
	if own, there := all["_meta"]; there {
		_ = json.Unmarshal(own, &both) // ours are an object
	}
	var err error
	if all["_meta"], err = json.Marshal(both, json.Deterministic(true), jsontext.PreserveRawStrings(true)); err != nil {
		return params
	}
	out, err := json.Marshal(all, json.Deterministic(true), jsontext.PreserveRawStrings(true))
	if err != nil {
		return params
	}
	return out
}

// The HTTP headers in which newer versions of MCP describe a request.
const (
	headerMethod = "Mcp-Method"
	headerName   = "Mcp-Name"
	headerParam  = "Mcp-Param-"
)

// nameRequest replaces the headers that the SDK made for rawMethod by those of the real request.
func nameRequest(header http.Header, msg *jsonrpc.Request) {
	req := unwrap(msg)
	if req == msg || header.Get(headerMethod) == "" {
		return
	}
	header.Set(headerMethod, req.Method)
	params, err := protocol.ParseObject(req.Params)
	if err != nil {
		return
	}
	switch req.Method {
	case "tools/call", "prompts/get":
		header.Set(headerName, headerText(params.Text("name")))
	case "resources/read":
		header.Set(headerName, headerText(params.Text("uri")))
	}
}

// headerText returns a text in the form in which a header can carry it.
func headerText(text string) string {
	strange := strings.ContainsFunc(text, func(c rune) bool { return c < ' ' || c > '~' })
	if strange || strings.TrimSpace(text) != text || strings.HasPrefix(text, "=?base64?") {
		return "=?base64?" + base64.StdEncoding.EncodeToString([]byte(text)) + "?="
	}
	return text
}
