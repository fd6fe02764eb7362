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

// The SDK decodes what servers say into Go types: numbers and members that those do not hold
// are lost, and one member of another type fails the whole. So requests are made by Raw, whose
// params and result stay JSON; the SDK carries them.

// rawMethod is what the SDK takes for the method of these requests. Their own stands in the
// params, and takes its place on the way out.
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

// Raw makes a request, within a Call, whose result is as the server wrote it: valid JSON without
// a key that stands twice in an object. params is a JSON object.
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

// tidy returns JSON that has no key twice in an object, of which the last counts, and no text
// that is no Unicode. JSON that is so already keeps its bytes.
func tidy(raw jsontext.Value) (jsontext.Value, error) {
	if raw.IsValid() {
		return raw, nil
	}
	numbers := json.UnmarshalFromFunc(func(dec *jsontext.Decoder, v *any) error {
		*v = nil // the value of the same key before is gone
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

// rawKey is the member of _meta that has the params of what a server sends, as a text: on their
// way to Env.Handle the SDK decodes them.
const rawKey = "a2e/raw"

// isHandled reports whether Env.Handle is for a method.
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

// handled has Env.Handle take in what was wrapped; ok = false means that it was not.
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

// unwrap returns a request as it goes out.
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

// withMeta adds the members of meta to those that the _meta of params has.
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

// The headers by which newer versions of MCP tell a request of HTTP.
const (
	headerMethod = "Mcp-Method"
	headerName   = "Mcp-Name"
	headerParam  = "Mcp-Param-"
)

// nameRequest puts the right headers in the place of those that the SDK made for rawMethod.
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

// headerText returns a text as a header can carry it.
func headerText(text string) string {
	strange := strings.ContainsFunc(text, func(c rune) bool { return c < ' ' || c > '~' })
	if strange || strings.TrimSpace(text) != text || strings.HasPrefix(text, "=?base64?") {
		return "=?base64?" + base64.StdEncoding.EncodeToString([]byte(text)) + "?="
	}
	return text
}
