package mcp

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// roleVar is the variable that makes the test binary an MCP server. describeVar sets the description of
// its tool echo, secondVar the name of a further tool.
const (
	roleVar     = "MCP_TEST_ROLE"
	describeVar = "MCP_TEST_DESCRIBE"
	secondVar   = "MCP_TEST_SECOND"
)

// play runs a server. The roles: `full` has everything; `hang` reads and never answers; `gone` ends at
// once; `flood` sends log messages without end after its handshake; `raw` is playRaw.
func play(role string) int {
	switch role {
	case "hang":
		_, _ = io.Copy(io.Discard, os.Stdin)
		return 0
	case "gone":
		fmt.Fprintln(os.Stderr, "no config")
		return 4
	case "raw":
		return playRaw(os.Stdin, os.Stdout)
	}
	if err := newFake(role).Run(context.Background(), &sdk.StdioTransport{}); err != nil {
		return 1
	}
	return 0
}

// objectOf returns the JSON Schema of an object. Its members, each `name:type`, are all required.
func objectOf(members ...string) jsontext.Value {
	var props, names []string
	for _, m := range members {
		name, typ, _ := strings.Cut(m, ":")
		props = append(props, fmt.Sprintf(`%q:{"type":%q,"description":"the %s"}`, name, typ, name))
		names = append(names, fmt.Sprintf("%q", name))
	}
	return jsontext.Value(fmt.Sprintf(`{"type":"object","properties":{%s},"required":[%s]}`, strings.Join(props, ","),
		strings.Join(names, ",")))
}

func text(s string) *sdk.CallToolResult {
	return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: s}}}
}

// newFake makes a server with all features of MCP.
func newFake(role string) *sdk.Server {
	kept := make(chan *sdk.CallToolResult, 1)
	s := sdk.NewServer(&sdk.Implementation{Name: "fake", Version: "1.2.3"}, &sdk.ServerOptions{
		Instructions: "be kind", HasTools: true, HasResources: true, HasPrompts: true,
		SubscribeHandler: func(context.Context, *sdk.SubscribeRequest) error { return nil },
		UnsubscribeHandler: func(_ context.Context, r *sdk.UnsubscribeRequest) error {
			return os.WriteFile("unsubscribed", []byte(r.Params.URI), 0o600)
		},
		RootsListChangedHandler: func(_ context.Context, r *sdk.RootsListChangedRequest) {
			go func() { kept <- rootsText(context.Background(), r.Session) }()
		},
		InitializedHandler: func(_ context.Context, r *sdk.InitializedRequest) {
			if role == "flood" {
				go flood(r.Session)
			}
		},
	})
	addTools(s)
	addAskers(s)
	addRoots(s, kept)
	for i := range 3 {
		s.AddResource(&sdk.Resource{
			URI: fmt.Sprintf("test://%d", i), Name: fmt.Sprintf("r%d", i),
			MIMEType: "text/plain", Description: "number",
		}, readResource)
	}
	s.AddResource(&sdk.Resource{URI: "test://blob", Name: "blob"}, readResource)
	s.AddResourceTemplate(&sdk.ResourceTemplate{URITemplate: "item://{id}", Name: "items"}, readResource)
	s.AddPrompt(&sdk.Prompt{
		Name: "greet", Description: "says hello",
		Arguments: []*sdk.PromptArgument{{Name: "who", Required: true}},
	},
		func(_ context.Context, r *sdk.GetPromptRequest) (*sdk.GetPromptResult, error) {
			return &sdk.GetPromptResult{
				Description: "hello",
				Messages: []*sdk.PromptMessage{{
					Role:    "user",
					Content: &sdk.TextContent{Text: "hello " + r.Params.Arguments["who"]},
				}},
			}, nil
		})
	return s
}

func readResource(_ context.Context, r *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
	if r.Params.URI == "test://blob" {
		return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{{URI: r.Params.URI, Blob: []byte{0, 1}}}}, nil
	}
	return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{{
		URI:  r.Params.URI,
		Text: "content of " + r.Params.URI,
	}}}, nil
}

// flood sends log messages as fast as possible.
func flood(ss *sdk.ServerSession) {
	for i := 0; ; i++ {
		if err := ss.Log(context.Background(), &sdk.LoggingMessageParams{
			Level: "error",
			Data:  fmt.Sprintf("%d %s", i, strings.Repeat("x", 1000)),
		}); err != nil {
			return
		}
	}
}

// addTools adds the tools that ask the client for nothing.
func addTools(s *sdk.Server) {
	describe := "Gives back a text."
	if d := os.Getenv(describeVar); d != "" {
		describe = d
	}
	yes := true
	add := func(name, description string, in jsontext.Value, a *sdk.ToolAnnotations, do sdk.ToolHandler) {
		s.AddTool(&sdk.Tool{Name: name, Description: description, InputSchema: in, Annotations: a}, do)
	}
	echo := func(_ context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		return text(string(r.Params.Arguments)), nil
	}
	add("echo", describe, objectOf("text:string"), &sdk.ToolAnnotations{ReadOnlyHint: true, Title: "Echo"}, echo)
	if second := os.Getenv(secondVar); second != "" {
		add(second, "one more", objectOf(), nil, echo)
	}
	add("bad name", "cannot be named", objectOf(), nil, echo)
	add("wide", "takes anything", jsontext.Value(`{"type":"object"}`), &sdk.ToolAnnotations{DestructiveHint: &yes},
		echo)
	add("fail", "reports failure", objectOf(), nil, func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult,
		error,
	) {
		res := text("it broke")
		res.IsError = true
		return res, nil
	})
	add("picture", "a picture", objectOf(), nil, func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult,
		error,
	) {
		return &sdk.CallToolResult{Content: []sdk.Content{
			&sdk.ImageContent{MIMEType: "image/png", Data: []byte{1, 2, 3}}, &sdk.ResourceLink{
				URI:  "test://1",
				Name: "one",
			},
			&sdk.EmbeddedResource{Resource: &sdk.ResourceContents{URI: "test://2", Text: "two"}},
		}, StructuredContent: map[string]any{"n": 1}}, nil
	})
	add("crash", "ends the server", objectOf(), nil, func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult,
		error,
	) {
		os.Exit(3)
		return nil, nil
	})
	add("wait", "waits for its cancellation", objectOf(), nil, func(ctx context.Context,
		_ *sdk.CallToolRequest,
	) (*sdk.CallToolResult, error) {
		_ = os.WriteFile("waiting", nil, 0o600)
		<-ctx.Done()
		_ = os.WriteFile("cancelled", nil, 0o600)
		return nil, ctx.Err()
	})
	add("steps", "reports progress", objectOf("n:integer", "pause_ms:integer"), nil, steps)
	add("grow", "adds a tool", objectOf(), nil, func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult,
		error,
	) {
		s.AddTool(&sdk.Tool{Name: "grown", Description: "new", InputSchema: objectOf()}, echo)
		return text("done"), nil
	})
	add("update", "a resource changed", objectOf("uri:string"), nil, func(ctx context.Context,
		r *sdk.CallToolRequest,
	) (*sdk.CallToolResult, error) {
		return text("done"), s.ResourceUpdated(ctx, &sdk.ResourceUpdatedNotificationParams{URI: member(r, "uri")})
	})
	add("log", "logs", objectOf("text:string"), nil, func(ctx context.Context,
		r *sdk.CallToolRequest,
	) (*sdk.CallToolResult, error) {
		return text("done"), r.Session.Log(ctx, &sdk.LoggingMessageParams{
			Level: "warning", Logger: "fake",
			Data: member(r, "text"),
		})
	})
}

// member returns an argument that is a string.
func member(r *sdk.CallToolRequest, name string) string {
	var v string
	dec := jsontext.Value(r.Params.Arguments)
	_, rest, _ := strings.Cut(string(dec), `"`+name+`":"`)
	v, _, _ = strings.Cut(rest, `"`)
	return v
}

// number returns an argument that is a number.
func number(r *sdk.CallToolRequest, name string) (n int) {
	_, rest, _ := strings.Cut(string(r.Params.Arguments), `"`+name+`":`)
	_, _ = fmt.Sscan(rest, &n)
	return n
}

// steps reports progress n times, or until a file `enough` exists.
func steps(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
	n := number(r, "n")
	for i := range n {
		params := &sdk.ProgressNotificationParams{
			ProgressToken: r.Params.GetProgressToken(), Progress: float64(i + 1),
			Total: float64(n), Message: fmt.Sprintf("step %d", i+1),
		}
		if err := r.Session.NotifyProgress(ctx, params); err != nil {
			return nil, err
		}
		if _, err := os.Stat("enough"); err == nil {
			break
		}
		select {
		case <-time.After(time.Duration(number(r, "pause_ms")) * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return text("done"), nil
}

// addAskers adds the tools that ask the client for something.
func addAskers(s *sdk.Server) {
	s.AddTool(&sdk.Tool{Name: "model", InputSchema: objectOf()}, func(ctx context.Context,
		r *sdk.CallToolRequest,
	) (*sdk.CallToolResult, error) {
		res, err := r.Session.CreateMessage(ctx, &sdk.CreateMessageParams{
			SystemPrompt: "you are a test", MaxTokens: 7, Temperature: 0.5,
			Messages: []*sdk.SamplingMessage{{Role: "user", Content: &sdk.TextContent{Text: "hi"}}},
		})
		if err != nil {
			return text("error: " + err.Error()), nil
		}
		return text(res.Model + ": " + res.Content.(*sdk.TextContent).Text), nil
	})
	s.AddTool(&sdk.Tool{Name: "user", InputSchema: objectOf()}, func(ctx context.Context,
		r *sdk.CallToolRequest,
	) (*sdk.CallToolResult, error) {
		res, err := r.Session.Elicit(ctx, &sdk.ElicitParams{
			Message: "your name?", RequestedSchema: jsontext.Value(`{"type":"object","properties":{"name":{"type":"string"}},"required":["name"]}`),
		})
		if err != nil {
			return text("error: " + err.Error()), nil
		}
		return text(fmt.Sprint(res.Action, " ", res.Content["name"])), nil
	})
}

// rootsText returns the URIs of the client's roots, with blanks between them.
func rootsText(ctx context.Context, ss *sdk.ServerSession) *sdk.CallToolResult {
	res, err := ss.ListRoots(ctx, nil)
	if err != nil {
		return text("error: " + err.Error())
	}
	var uris []string
	for _, root := range res.Roots {
		uris = append(uris, root.URI)
	}
	return text(strings.Join(uris, " "))
}

// addRoots adds tools for roots: `roots` asks for them, `aside` asks for them outside of its call and
// waits until `release` is called, and `kept` waits for the answer that came outside of a call.
func addRoots(s *sdk.Server, kept chan *sdk.CallToolResult) {
	release := make(chan struct{})
	s.AddTool(&sdk.Tool{Name: "roots", InputSchema: objectOf()}, func(ctx context.Context,
		r *sdk.CallToolRequest,
	) (*sdk.CallToolResult, error) {
		return rootsText(ctx, r.Session), nil
	})
	s.AddTool(&sdk.Tool{Name: "aside", InputSchema: objectOf()}, func(_ context.Context,
		r *sdk.CallToolRequest,
	) (*sdk.CallToolResult, error) {
		go func() { kept <- rootsText(context.Background(), r.Session) }()
		<-release
		return text("done"), nil
	})
	s.AddTool(&sdk.Tool{Name: "release", InputSchema: objectOf()}, func(context.Context,
		*sdk.CallToolRequest,
	) (*sdk.CallToolResult, error) {
		close(release)
		return text("done"), nil
	})
	s.AddTool(&sdk.Tool{Name: "kept", InputSchema: objectOf()}, func(context.Context,
		*sdk.CallToolRequest,
	) (*sdk.CallToolResult, error) {
		return <-kept, nil
	})
}

// playRaw is a server without the SDK. It lists a tool whose schema refers to itself, another tool of
// the same name, and a tool that is too large.
func playRaw(in io.Reader, out io.Writer) int {
	dec := jsontext.NewDecoder(in)
	for {
		line, err := dec.ReadValue()
		if err != nil {
			return 0
		}
		id, method := rawHead(line)
		switch {
		case method == "initialize":
			fmt.Fprintf(out, `{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"raw","version":"1"}}}`+"\n", id)
		case method == "tools/list":
			fmt.Fprintf(out, `{"jsonrpc":"2.0","id":%s,"result":{"tools":[`+
				`{"name":"loop","inputSchema":{"type":"object","properties":{"a":{"$ref":"#/properties/a"}}}},`+
				`{"name":"loop","inputSchema":{"type":"object"}},`+
				`{"name":"huge","inputSchema":{"type":"object"},"description":%q}]}}`+"\n", id,
				strings.Repeat("x", maxDefinition))
		case method == "tools/call":
			fmt.Fprintf(out, `{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":"called"}]}}`+"\n",
				id)
		case id != "":
			fmt.Fprintf(out, `{"jsonrpc":"2.0","id":%s,"result":{}}`+"\n", id)
		}
	}
}

// rawHead returns the id and the method of a message.
func rawHead(line jsontext.Value) (id, method string) {
	var m struct {
		ID     jsontext.Value `json:"id"`
		Method string         `json:"method"`
	}
	if err := json.Unmarshal(line, &m); err != nil {
		return "", ""
	}
	return string(m.ID), m.Method
}

// fakeTool returns a tool as a server lists it.
func fakeTool() map[string]any {
	return map[string]any{
		"name": "t", "description": "d",
		"inputSchema": map[string]any{
			"type": "object", "properties": map[string]any{"a": map[string]any{"type": "string"}},
		},
		"annotations": map[string]any{"readOnlyHint": true},
	}
}
