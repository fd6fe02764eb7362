package jsonrpc

import (
	"context"
	"encoding/base64"
	"errors"
	"regexp"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"a2e/host"
	"a2e/host/dialect"
	"a2e/protocol"
	"a2e/protocol/jsonrpc"
)

// commandTimeout is what a tool gets at most, in seconds; an interrupt ends it sooner.
const commandTimeout = 600

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
	args, err := f.arguments(dialect.Merge(in, ctx), name, rest)
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
	result, err := f.runTool(dialect.Merge(in, ctx), s, t, req.Raw, args)
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

// splitCommand takes the name off a command.
func splitCommand(raw string) (name, rest string, err error) {
	raw = strings.TrimSpace(raw)
	if !strings.HasPrefix(raw, "/") {
		return "", "", errors.New(`must be a tool with its arguments, such as /NAME {"key":"value"} or /NAME key=value`)
	}
	raw = raw[1:]
	end := strings.IndexFunc(raw, unicode.IsSpace)
	if end < 0 {
		end = len(raw)
	}
	if end == 0 {
		return "", "", errors.New("has no name of a tool after the slash")
	}
	return raw[:end], strings.TrimSpace(raw[end:]), nil
}

// arguments reads the arguments of a command, JSON or key=value pairs.
func (f *Front) arguments(ctx context.Context, tool, rest string) (protocol.Object, error) {
	if rest == "" {
		return protocol.Object{}, nil
	}
	if strings.HasPrefix(rest, "{") {
		obj, err := protocol.ParseObject([]byte(rest))
		if err != nil {
			return obj, errors.New("the arguments: " + jsonrpc.From(err).Message)
		}
		return obj, nil
	}
	pairs, err := splitPairs(rest)
	if err != nil {
		return protocol.Object{}, err
	}
	types := f.types(ctx, tool)
	raw := []byte{'{'}
	for i, p := range pairs {
		if i > 0 {
			raw = append(raw, ',')
		}
		raw = append(protocol.AppendString(raw, p.key), ':')
		raw = append(raw, p.json(types[p.key])...)
	}
	obj, err := protocol.ParseObject(append(raw, '}'))
	if err != nil {
		return obj, errors.New(jsonrpc.From(err).Message)
	}
	return obj, nil
}

// types returns the types of a tool's parameters, as far as they are known.
func (f *Front) types(ctx context.Context, tool string) map[string]string {
	var resp protocol.ToolListResponse
	if err := host.ServicesOf(ctx).Call(ctx, protocol.TypeToolListReq, &protocol.ToolListRequest{IncludeDeferred: true}, &resp, nil); err != nil {
		return nil
	}
	types := make(map[string]string)
	for _, t := range resp.Tools {
		if t.Name == tool {
			for _, p := range t.InputParameters {
				types[p.Name] = p.Type
			}
		}
	}
	return types
}

// pair is one key=value of a command.
type pair struct {
	key, value string
	quoted     bool
}

// json returns the value as JSON. Where the parameter's type is not known, a bare value that
// is JSON is taken as that.
func (p *pair) json(typ string) []byte {
	text := jsontext.Value(strings.TrimSpace(p.value))
	if p.quoted && typ == "" || typ == "string" || !text.IsValid() {
		return protocol.AppendString(nil, p.value)
	}
	return text
}

// splitPairs reads key=value pairs. A value, or a part of one, may stand in quotes; within
// double quotes a backslash escapes as in JSON, and a line break is one.
func splitPairs(rest string) (pairs []pair, err error) {
	for rest = strings.TrimSpace(rest); rest != ""; rest = strings.TrimSpace(rest) {
		key, text, ok := strings.Cut(rest, "=")
		if !ok || key == "" || strings.ContainsFunc(key, func(r rune) bool { return unicode.IsSpace(r) || r == '"' || r == '\'' }) {
			return nil, errors.New("the arguments should be a JSON object, or key=value pairs with quotes around values that have spaces")
		}
		p := pair{key: key}
		if rest, err = p.read(text); err != nil {
			return nil, err
		}
		pairs = append(pairs, p)
	}
	return pairs, nil
}

// valuePart matches what a value is put together of: 'text', "text" or one without quotes.
var valuePart = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(?:'([^']*)'|"((?s:\\.|[^"\\])*)"|([^'" \t\r\n]+))`)
})

// read takes a value off the text; rest is what follows it.
func (p *pair) read(text string) (rest string, err error) {
	if text != "" && (text[0] == '{' || text[0] == '[') {
		dec := jsontext.NewDecoder(strings.NewReader(text))
		if val, err := dec.ReadValue(); err == nil {
			p.value = string(val)
			return text[dec.InputOffset():], nil
		}
	}
	for part := valuePart().FindStringSubmatch(text); part != nil; part = valuePart().FindStringSubmatch(text) {
		text = text[len(part[0]):]
		inner := part[1] + part[3]
		if strings.HasPrefix(part[0], `"`) && json.Unmarshal([]byte(escapeBreaks(part[0])), &inner) != nil {
			return "", errors.New("the value of " + quoted(p.key) + " has an escape that JSON does not have")
		}
		p.value += inner
		p.quoted = p.quoted || part[3] == ""
	}
	if strings.HasPrefix(text, "'") || strings.HasPrefix(text, `"`) {
		return "", errors.New("a quote in the value of " + quoted(p.key) + " is not closed")
	}
	return text, nil
}

// escapeBreaks writes line breaks and tabs in a text in double quotes as JSON wants them.
func escapeBreaks(text string) string {
	return strings.NewReplacer(`\\`, `\\`, "\\\n", "\\\n", "\n", `\n`, "\r", `\r`, "\t", `\t`).Replace(text)
}
