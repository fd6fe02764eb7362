package run

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"a2e/host"
	"a2e/host/schema"
	"a2e/protocol"
)

// toolTimeout bounds one tool call of a loop, in seconds; the whole run may end before.
const toolTimeout = 120

// toolsOf gives tools as a model sees them.
func toolsOf(services *host.Services, defs []protocol.ToolDefinition) []Tool {
	tools := make([]Tool, 0, len(defs))
	for _, def := range defs {
		t := Tool{Name: def.Name, Description: def.Description, Schema: schema.Object(def.InputParameters, false)}
		if detail, _ := services.Tool(def.Name); len(detail.InputSchema) > 0 {
			t.Schema = detail.InputSchema
		}
		tools = append(tools, t)
	}
	return tools
}

// toolResult is what the model gets of a call.
type toolResult struct {
	well bool
	text string
}

func refusal(format string, args ...any) toolResult {
	return toolResult{text: "error: " + fmt.Sprintf(format, args...)}
}

// call makes one call. The error is the cause of a ctx that ended.
func (l *loop) call(ctx context.Context, c ToolCall) (toolResult, error) {
	switch {
	case c.Invalid != "":
		return refusal("%s", head(c.Invalid, maxToolResult)), nil
	case !l.has(c.Name):
		var names []string
		for _, t := range l.tools {
			names = append(names, t.Name)
		}
		return refusal("there is no tool %q here; these are: %s", head(c.Name, maxKind), strings.Join(names, ", ")), nil
	}
	var resp protocol.ToolCallResponse
	err := l.Services.Call(ctx, protocol.TypeToolCallReq, &protocol.ToolCallRequest{ToolName: c.Name, Arguments: c.Arguments, Timeout: toolTimeout}, &resp, nil)
	if ctx.Err() != nil {
		return toolResult{}, context.Cause(ctx)
	}
	if err != nil {
		refused := (*protocol.Error)(nil)
		if errors.As(err, &refused) {
			return refusal("%s: %s", refused.Code, head(refused.Message, maxToolResult)), nil
		}
		return refusal("%s", head(err.Error(), maxToolResult)), nil
	}
	text := "null"
	if len(resp.Data.Data) > 0 {
		text = string(resp.Data.Data)
		if s, ok := protocol.Value(resp.Data.Data).Str(); ok {
			text = s
		}
	}
	if !resp.Data.Success {
		why := "it failed"
		if resp.Data.Error != nil {
			why = *resp.Data.Error
		}
		text = "error: " + head(why, maxToolResult) + "\n" + text
	}
	if short := head(text, maxToolResult); len(short) < len(text) {
		text = fmt.Sprintf("%s\n(cut: %d more bytes)", short, len(text)-len(short))
	}
	return toolResult{resp.Data.Success, text}, nil
}
