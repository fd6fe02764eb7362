package mcp

import (
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/host"
	"a2e/plugins/tools"
	"a2e/protocol"
)

// The bounds of what is said of a result in words.
const (
	maxSummary = 300
	maxFailure = 4000
)

// outcome makes of a result what the answer to a tool call holds:
//
//	{"content":[the blocks as MCP sends them],"structuredContent":…}
func outcome(res *sdk.CallToolResult, emit host.Emitter) (*tools.Outcome, error) {
	data := []byte(`{"content":[`)
	var texts []string
	for i, block := range res.Content {
		raw, err := encode(block)
		if err != nil {
			return nil, protocol.Errorf(protocol.CodeMCPProtocolError, "the server's result cannot be read: %w", err)
		}
		if i > 0 {
			data = append(data, ',')
		}
		data = append(data, raw...)
		if text, ok := block.(*sdk.TextContent); ok {
			texts = append(texts, text.Text)
		}
		artifact(block, emit)
	}
	data = append(data, ']')
	if res.StructuredContent != nil {
		raw, err := encode(res.StructuredContent)
		if err != nil {
			return nil, protocol.Errorf(protocol.CodeMCPProtocolError, "the server's structured result cannot be read: %w", err)
		}
		data = append(append(data, `,"structuredContent":`...), raw...)
	}
	text := strings.Join(texts, "\n")
	out := &tools.Outcome{Data: jsontext.Value(append(data, '}')), Summary: clip(strings.Join(strings.Fields(clip(text, 2*maxSummary)), " "), maxSummary)}
	if res.IsError {
		out.Failed, out.Failure = true, clip(strings.TrimSpace(text), maxFailure)
		if out.Failure == "" {
			out.Failure = "the tool reports that it failed, and not why"
		}
	}
	return out, nil
}

// artifact passes on what is a file of its own to an agent that listens.
func artifact(block sdk.Content, emit host.Emitter) {
	if !emit.Streaming() {
		return
	}
	switch b := block.(type) {
	case *sdk.ImageContent:
		emit.Artifact("image", b.MIMEType, b.Data, true)
	case *sdk.AudioContent:
		emit.Artifact("audio", b.MIMEType, b.Data, true)
	case *sdk.EmbeddedResource:
		if b.Resource != nil && b.Resource.Blob != nil {
			emit.Artifact(b.Resource.URI, b.Resource.MIMEType, b.Resource.Blob, true)
		}
	}
}
