package jsonrpc

import (
	"context"
	"encoding/base64"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"a2e/host"
	"a2e/protocol"
	"a2e/protocol/jsonrpc"
)

// commandTimeout is what a tool gets at most, in seconds; an interrupt ends it sooner.
const commandTimeout = 600

// commandParams is what command.execute runs.
type commandParams struct {
	named
	Raw string `json:"raw_command"`
}

func commandExecute(f *Front, ctx context.Context, c *call, s *session, req *commandParams) (any, error) {
	if len(req.Raw) > f.opts.MaxText {
		return nil, jsonrpc.Params("raw_command", "is too long")
	}
	name, rest, err := splitCommand(req.Raw)
	if err != nil {
		return nil, jsonrpc.Params("raw_command", err.Error())
	}
	in := f.enter(s)
	args, err := f.arguments(merged(in, ctx), name, rest)
	if err != nil {
		return nil, jsonrpc.Params("raw_command", err.Error())
	}
	t := &toolCall{ID: uuid.NewString(), Name: name, Arguments: args.Raw()}
	f.mu.Lock()
	c.tool = t.ID
	s.commands++
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		s.commands--
		f.mu.Unlock()
		f.tellStatus(s)
	}()
	result, err := f.runTool(merged(in, ctx), s, t, req.Raw, args)
	if err != nil {
		if e := jsonrpc.From(err); e.Code == jsonrpc.CodeInvalidParams {
			return nil, e.With("field", "raw_command") // not what it was called among the tool's arguments
		}
	}
	return result, err
}

// runTool runs a tool and tells how it goes.
func (f *Front) runTool(ctx context.Context, s *session, t *toolCall, raw string, args protocol.Object) (any, error) {
	f.tellStatus(s)
	f.note(s, message{ID: uuid.NewString(), Role: roleUser, Text: raw})
	f.event(jsonrpc.ToolCallStarted, map[string]any{"session_id": s.ID, "tool_call_id": t.ID, "tool_name": t.Name, "arguments": args})
	out := &streamed{front: f, session: s.ID, call: t.ID}
	begun := time.Now()
	var resp protocol.ToolCallResponse
	err := host.ServicesOf(ctx).Call(ctx, protocol.TypeToolCallReq, &protocol.ToolCallRequest{
		ToolName: t.Name, Arguments: args, CorrelationID: t.ID, Streaming: true, Timeout: commandTimeout,
	}, &resp, out)
	out.gate.close()
	t.Duration = time.Since(begun).Milliseconds()
	told := map[string]any{"session_id": s.ID, "tool_call_id": t.ID, "tool_name": t.Name, "success": err == nil && resp.Data.Success, "duration_ms": t.Duration, "error": nil}
	var text string
	switch {
	case err != nil:
		text = jsonrpc.From(err).Message
		told["error"] = text
	case resp.Data.Error != nil:
		text = *resp.Data.Error
		told["error"] = text
	}
	f.event(jsonrpc.ToolCallCompleted, told)
	result := resultOf(t, &resp.Data)
	if err == nil {
		t.Success = resp.Data.Success
		text = textOf(&resp.Data)
		f.event(jsonrpc.ToolResults, map[string]any{"session_id": s.ID, "results": []any{result}})
	}
	f.note(s, message{ID: uuid.NewString(), Role: roleTool, Text: text, ToolCalls: []toolCall{*t}})
	if err != nil {
		return nil, err
	}
	return map[string]any{"session_id": s.ID, "tool_call_id": t.ID, "tool_name": t.Name, "success": resp.Data.Success, "result": result}, nil
}

// resultOf makes what a client is told of a result.
func resultOf(t *toolCall, r *protocol.ToolResult) map[string]any {
	return map[string]any{
		"tool_call_id": t.ID, "tool_name": t.Name, "success": r.Success, "data": orNull(r.Data), "summary": orNull(r.Summary),
		"truncated": r.Truncated != nil && *r.Truncated, "exit_code": r.ExitCode, "error": r.Error, "error_code": r.ErrorCode, "duration_ms": t.Duration,
	}
}

func orNull(v jsontext.Value) jsontext.Value {
	if len(v) == 0 {
		return jsontext.Value("null")
	}
	return v
}

// textOf makes a text for the history of a result.
func textOf(r *protocol.ToolResult) string {
	if text, ok := protocol.Value(r.Data).Str(); ok {
		return text
	}
	text := string(r.Data)
	if summary, ok := protocol.Value(r.Summary).Str(); ok && len(r.Data) == 0 {
		text = summary
	}
	if r.Error != nil {
		text = strings.TrimSpace(*r.Error + "\n" + text)
	}
	return text
}

// streamed tells of a tool's output as it comes. It implements host.Emitter.
type streamed struct {
	front         *Front
	session, call string
	gate          gate
	seq           int // guarded by gate
}

func (e *streamed) tell(stream string, payload map[string]any) {
	e.gate.pass(func() {
		payload["session_id"], payload["tool_call_id"], payload["stream"], payload["seq"] = e.session, e.call, stream, e.seq
		e.seq++
		e.front.event(jsonrpc.StreamChunk, payload)
	})
}

// Progress implements host.Emitter.
func (e *streamed) Progress(pct float64, message string) {
	e.tell("progress", map[string]any{"pct": pct, "text": message})
}

// Status implements host.Emitter.
func (e *streamed) Status(message string) { e.tell("status", map[string]any{"text": message}) }

// Log implements host.Emitter.
func (e *streamed) Log(level, message, stream string) {
	if stream == "" {
		stream = "log"
	}
	e.tell(stream, map[string]any{"level": level, "text": message + "\n"}) // a line, as those of workers are
}

// Artifact implements host.Emitter.
func (e *streamed) Artifact(name, mime string, chunk []byte, final bool) {
	e.tell("artifact", map[string]any{"name": name, "mime": mime, "chunk": base64.StdEncoding.EncodeToString(chunk), "final": final, "text": ""})
}

// Streaming implements host.Emitter.
func (e *streamed) Streaming() bool { return true }
