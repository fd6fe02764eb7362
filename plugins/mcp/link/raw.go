package link

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// rawMethod is what the SDK takes for the method of requests that it has no types for. Their
// own stands in the params, and takes its place on the way out.
const rawMethod = "a2e/raw"

type rawParams struct {
	mcp.ParamsBase
	Method string         `json:"method"`
	Params jsontext.Value `json:"params"`
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

// Raw makes a request, within a Call, whose result is as the server gave it: what the SDK has
// no types for is lost otherwise. It is for versions of MCP that begin with initialize.
func Raw(ctx context.Context, session *mcp.ClientSession, method string, params jsontext.Value) (jsontext.Value, error) {
	res, err := mcp.CallCustomMethod[*rawParams, *rawResult](ctx, session, rawMethod, &rawParams{Method: method, Params: params})
	if err != nil {
		return nil, err
	}
	return res.raw, nil
}

// HasRaw reports whether a session may be used for Raw.
func HasRaw(session *mcp.ClientSession) bool {
	hello := session.InitializeResult()
	return hello != nil && hello.ProtocolVersion <= legacy
}

// unwrap gives a message as it goes out.
func unwrap(msg jsonrpc.Message) jsonrpc.Message {
	req, ok := msg.(*jsonrpc.Request)
	if !ok || req.Method != rawMethod {
		return msg
	}
	var p rawParams
	if json.Unmarshal(req.Params, &p) != nil {
		return msg
	}
	out := *req
	out.Method, out.Params = p.Method, []byte(p.Params)
	return &out
}

// unwrapBody does the same for the body of an HTTP request.
func unwrapBody(req *http.Request) error {
	if req.Body == nil || req.GetBody == nil {
		return nil
	}
	again, err := req.GetBody()
	if err != nil {
		return err
	}
	defer again.Close()
	body, err := io.ReadAll(again)
	if err != nil || !bytes.Contains(body, []byte(`"`+rawMethod+`"`)) {
		return err
	}
	msg, err := jsonrpc.DecodeMessage(body)
	if err != nil {
		return err
	}
	if body, err = jsonrpc.EncodeMessage(unwrap(msg)); err != nil {
		return err
	}
	req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	return nil
}
