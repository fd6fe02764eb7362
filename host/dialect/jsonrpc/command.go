package jsonrpc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"a2e/host"
	"a2e/host/agent"
	"a2e/host/dialect"
	"a2e/protocol"
	"a2e/protocol/jsonrpc"
)

// commandTimeout is what a tool gets at most, in seconds; an interrupt ends it sooner.
const commandTimeout = 600

// commands are those that are no tools, by their names, with what /help says of them.
func commands() []command {
	return []command{
		{"/auth", "what the host and its workers may use", func(f *Front, _ context.Context, _ *session, _ []string) (any, error) {
			return map[string]any{"auth_status": f.auth(), "hint": "use auth.set.* to set keys"}, nil
		}},
		{"/onboarding", "whether the user was shown around", func(f *Front, ctx context.Context, _ *session, _ []string) (any, error) {
			return onboardingStatus(f, ctx, nil)
		}},
		{"/forgeteverything", "forget the selected model, the stored key and the onboarding, and clear this session", forgetEverything},
		{"/model", "the selected model, and those there are; model.select selects one", func(f *Front, ctx context.Context, _ *session, _ []string) (any, error) {
			all := f.models(ctx, "")
			return map[string]any{
				"selected_model": all["selected_model"], "selected_provider": all["selected_provider"], "selected_thinking": all["selected_thinking"],
				"selected_openrouter_provider": all["selected_openrouter_provider"], "available": all,
			}, nil
		}},
		{"/limits", "limits and their use", func(f *Front, ctx context.Context, _ *session, _ []string) (any, error) {
			return limitsGet(f, ctx, nil)
		}},
		{"/history", "saved chats of this folder (/history) or of all (/history --all), or continue one (/history " +
			"last, /history ID)", historyCommand},
		{"/compression", "how much of a long conversation the worker gets", func(
			f *Front, _ context.Context, _ *session, _ []string) (any, error) {
			return map[string]any{"error": fmt.Sprintf("conversations are not compressed here; a worker is told the last %d bytes of one", f.opts.MaxContext)}, nil
		}},
		{"/skills", "the skills", func(f *Front, ctx context.Context, _ *session, _ []string) (any, error) {
			return skillsList(f, ctx, &call{})
		}},
		{"/tools", "the tools; /NAME key=value runs one", func(f *Front, ctx context.Context, _ *session, _ []string) (any, error) {
			return toolsList(f, ctx, &call{})
		}},
		{"/clear", "start a new conversation; the old one stays in the history", func(
			f *Front, ctx context.Context, s *session, _ []string) (any, error) {
			return map[string]any{"cleared": true}, f.leave(ctx, s, "")
		}},
		{"/quit", "end the host", nil},
		{"/exit", "end the host", nil},
		{"/help", "the commands", func(*Front, context.Context, *session, []string) (any, error) {
			return map[string]any{"commands": commands()}, nil
		}},
	}
}

// command is one that is no tool.
type command struct {
	Name string                                                                      `json:"name"`
	Help string                                                                      `json:"description"`
	run  func(f *Front, ctx context.Context, s *session, args []string) (any, error) // nil = it ends the host
}

func historyCommand(f *Front, ctx context.Context, s *session, args []string) (any, error) {
	switch {
	case len(args) == 0 || args[0] == "list":
		return historyList(f, ctx, nil, &pageParams{Folder: "."})
	case args[0] == "all" || args[0] == "--all":
		return historyList(f, ctx, nil, &pageParams{})
	}
	folder, id, none := "", args[0], "no saved chat matched id: "+quoted(args[0])
	if strings.EqualFold(id, "last") {
		folder, id = f.history.folder, ""
		none = "no saved chat in this folder yet; /history --all lists those of others"
	}
	r, err := f.rollout(ctx, folder, id, none)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	busy := s.turn != nil
	f.mu.Unlock()
	if busy {
		return nil, jsonrpc.Refused("session_busy", "the session is busy; session.interrupt first")
	}
	if err := f.leave(ctx, s, r.ID); err != nil {
		return nil, err
	}
	if _, there := f.option(r.Provider, r.Provider); there {
		if err := f.choose(ctx, selection{Worker: r.Provider, Thinking: r.Thinking}); err != nil {
			return nil, err
		}
	}
	f.changed(ctx, "session_resumed", "")
	return map[string]any{"resumed": r.ID}, nil
}

// forgetEverything forgets what the client has set. What was said stays in the history.
func forgetEverything(f *Front, ctx context.Context, s *session, _ []string) (any, error) {
	f.mu.Lock()
	s.queue = nil
	f.mu.Unlock()
	err := cmp.Or(f.forgetKeys(), f.choose(ctx, selection{}), f.history.set(ctx, settingOnboarded, ""), f.leave(ctx, s, ""))
	if err != nil {
		return nil, err
	}
	f.changed(ctx, "forgeteverything", "")
	return map[string]any{"cleared": true}, nil
}

// forgetKeys takes the keys away that were stored for endpoints of the workers.
func (f *Front) forgetKeys() error {
	for _, w := range f.workers() {
		if w.KeyFor != "" && f.opts.StateDir != "" {
			if err := agent.StoreKey(f.opts.StateDir, w.KeyFor, ""); err != nil {
				return err
			}
		}
	}
	return nil
}

type commandParams struct {
	named
	Raw string `json:"raw_command"`
}

func commandExecute(f *Front, ctx context.Context, c *call, s *session, req *commandParams) (any, error) {
	raw := strings.TrimSpace(req.Raw)
	words := strings.Fields(raw)
	switch {
	case len(raw) > f.opts.MaxText:
		return nil, c.wrong("raw_command", "is too long")
	case !strings.HasPrefix(raw, "/"):
		return map[string]any{"handled": false}, nil
	}
	name := words[0]
	switch cmd := builtin(name); {
	case cmd == nil:
	case cmd.run == nil:
		f.changed(ctx, "quit_command", "")
		c.then = func() { host.Shutdown(f.ctx, host.DrainTimeout) }
		return handled(map[string]any{"shutting_down": true}), nil
	default:
		out, err := cmd.run(f, ctx, s, words[1:])
		return handled(out), err
	}
	in := f.enter(s)
	args, err := arguments(raw[len(name):], func() map[string]string {
		return f.types(dialect.Merge(in, ctx), name[1:])
	})
	if err != nil {
		return nil, c.wrong("raw_command", err.Error())
	}
	f.mu.Lock()
	c.tool = uuid.NewString()
	f.mu.Unlock()
	return f.runTool(dialect.Merge(in, ctx), c, name, args)
}

// handled is the answer to a command.
func handled(output any) map[string]any { return map[string]any{"handled": true, "output": output} }

// runTool runs a tool.
func (f *Front) runTool(ctx context.Context, c *call, name string, args protocol.Object) (any, error) {
	var resp protocol.ToolCallResponse
	begun := time.Now()
	err := host.ServicesOf(ctx).Call(ctx, protocol.TypeToolCallReq, &protocol.ToolCallRequest{
		ToolName: name[1:], Arguments: args, CorrelationID: c.tool, Timeout: commandTimeout,
	}, &resp, nil)
	if err != nil {
		e := jsonrpc.From(err)
		if e.Data["code"] == protocol.CodeUnknownTool {
			return handled(map[string]any{"error": "unknown command: " + protocol.Clip(name, maxClient) + "; " + e.Message}), nil
		}
		if e.Code == jsonrpc.CodeInvalidParams {
			e.With("field", "raw_command") // not what it was called among the tool's arguments
		}
		return nil, e
	}
	r := resp.Data
	output := map[string]any{
		"tool_name": cmp.Or(r.ToolName, name[1:]), "tool_call_id": c.tool, "success": r.Success, "data": orNull(r.Data), "summary": orNull(r.Summary),
		"truncated": r.Truncated != nil && *r.Truncated, "exit_code": r.ExitCode, "error": r.Error, "error_code": r.ErrorCode, "duration_ms": time.Since(begun).Milliseconds(),
	}
	if resp.Group != "" {
		output["group"] = resp.Group
	}
	return handled(output), nil
}

// toolCall is the call of a tool that a command makes, as far as it can be told without asking a plugin; false = it
// makes none.
func (f *Front) toolCall(command string) (protocol.Object, bool) {
	command = strings.TrimSpace(command)
	words := strings.Fields(command)
	if len(command) > f.opts.MaxText || !strings.HasPrefix(command, "/") || builtin(words[0]) != nil {
		return protocol.Object{}, false
	}
	args, err := arguments(command[len(words[0]):], func() map[string]string { return nil })
	if err != nil {
		return protocol.Object{}, false
	}
	raw := append(protocol.AppendString([]byte(`{"tool_name":`), words[0][1:]), `,"arguments":`...)
	call, err := protocol.ParseObject(append(append(raw, args.Raw()...), '}'))
	return call, err == nil
}

// builtin finds a command that is no tool; nil = there is none of this name.
func builtin(name string) *command {
	all := commands()
	at := slices.IndexFunc(all, func(c command) bool { return c.Name == strings.ToLower(name) })
	if at < 0 {
		return nil
	}
	return &all[at]
}

// arguments reads the arguments of a command, JSON or key=value pairs. types returns the types of the parameters,
// as far as they are known.
func arguments(text string, types func() map[string]string) (protocol.Object, error) {
	if text = strings.TrimSpace(text); text == "" {
		return protocol.Object{}, nil
	}
	if strings.HasPrefix(text, "{") {
		obj, err := protocol.ParseObject([]byte(text))
		if err != nil {
			return obj, errors.New("the arguments: " + jsonrpc.From(err).Message)
		}
		return obj, nil
	}
	pairs, err := splitPairs(text)
	if err != nil {
		return protocol.Object{}, err
	}
	known := types()
	raw := []byte{'{'}
	for i, p := range pairs {
		if i > 0 {
			raw = append(raw, ',')
		}
		raw = append(protocol.AppendString(raw, p.key), ':')
		raw = append(raw, p.json(known[p.key])...)
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
