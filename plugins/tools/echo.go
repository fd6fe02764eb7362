package tools

import (
	"context"

	"a2e/host"
	"a2e/protocol"
)

// newEcho makes the tool that gives back the text it is given: the way to try a
// connection, and to measure one.
func newEcho() Tool {
	text := protocol.ToolParameter{Name: "text", Type: "string", Description: "Any text.", Required: true}
	return Tool{
		Def: protocol.ToolDefinition{
			Name:             "echo",
			Description:      "Give back the text that was sent.",
			InputParameters:  []protocol.ToolParameter{text},
			OutputParameters: []protocol.ToolParameter{{Name: "text", Type: "string", Description: "The same text.", Required: true}},
			Idempotent:       true,
			Tags:             []string{"test"},
			Version:          "1.0.0",
		},
		Kind:   KindBuiltin,
		Detail: host.ToolDetail{ReadOnly: true},
		quick:  true,
		Call: func(_ context.Context, args protocol.Object, _ host.Emitter) (*Outcome, error) {
			text, _ := args.Get("text") // required, so it is there
			return &Outcome{Data: echoed(text)}, nil
		},
	}
}

// echoed is the text as it came, quotes and escapes included. It needs no bound
// of its own: it cannot be longer than the line it came in.
type echoed protocol.Value

// AppendJSON implements protocol.Appender.
func (e echoed) AppendJSON(dst []byte) ([]byte, error) {
	dst = append(dst, `{"text":`...)
	return append(append(dst, e...), '}'), nil
}
