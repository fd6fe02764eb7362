package jsonrpc

import (
	"cmp"
	"context"
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
	"a2e/host/agent"
	"a2e/host/dialect"
	"a2e/protocol"
	"a2e/protocol/jsonrpc"
)

// command is a command that does not run a tool.
type command struct {
	Name string  `json:"name"`
	Help string  `json:"description"`
	run  handler // call.args are the words after the name
}

// commands returns the commands that do not run a tool.
func commands() []command {
	return []command{
		{"/auth", "what the host and its workers may use", authCommand},
		{"/onboarding", "whether the user was shown around", onboardingStatus},
		{
			"/forgeteverything", "forget the selected model, the stored key and the onboarding, and clear this session",
			forgetEverything,
		},
		{"/model", "the selected model, and those there are; model.select selects one", modelCommand},
		{"/limits", "limits and their use", limitsGet},
		{"/history", "saved chats of this folder (/history) or of all (/history --all), or continue one (/history " +
			"last, /history ID)", historyCommand},
		{"/compression", "have the model sum up the older part of this conversation", compressionCommand},
		{"/skills", "the skills", skillsList},
		{"/tools", "the tools; /NAME key=value runs one", toolsList},
		{"/clear", "start a new conversation; the old one stays in the history", clearCommand},
		{"/quit", "end the host", quitCommand},
		{"/exit", "end the host", quitCommand},
		{"/help", "the commands", helpCommand},
	}
}

func authCommand(f *Front, _ context.Context, _ *call) (any, error) {
	return map[string]any{"auth_status": f.auth(), "hint": "use auth.set.* to set keys"}, nil
}

func modelCommand(f *Front, ctx context.Context, _ *call) (any, error) {
	sel := f.chosen(ctx)
	return sel.tell(map[string]any{"available": sel.tell(listed(f.workers()))}), nil
}

func clearCommand(f *Front, ctx context.Context, c *call) (any, error) {
	return map[string]any{"cleared": true}, f.leave(ctx, c.on, "")
}

func quitCommand(f *Front, _ context.Context, c *call) (any, error) {
	c.reason = "quit_command"
	c.then = func() { host.Shutdown(f.ctx, host.DrainTimeout) }
	return map[string]any{"shutting_down": true}, nil
}

func helpCommand(*Front, context.Context, *call) (any, error) {
	return map[string]any{"commands": commands()}, nil
}

func historyCommand(f *Front, ctx context.Context, c *call) (any, error) {
	id := strings.Join(c.args[:min(1, len(c.args))], "")
	folder, none := "", "no saved chat matched id: "+quoted(id)
	switch {
	case id == "" || id == "list":
		return historyList(f, ctx, nil, &pageParams{Folder: "."})
	case id == "all" || id == "--all":
		return historyList(f, ctx, nil, &pageParams{})
	case strings.EqualFold(id, "last"):
		folder, id = f.history.folder, ""
		none = "no saved chat in this folder yet; /history --all lists those of others"
	}
	r, err := f.history.rollout(ctx, folder, id, none)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	busy := c.on.turn != nil
	f.mu.Unlock()
	if busy {
		return nil, jsonrpc.Refused("session_busy", "the session is busy; session.interrupt first")
	}
	err = f.leave(ctx, c.on, r.ID)
	if err == nil && len(those(f.workers(), called(r.Provider))) > 0 {
		err = f.choose(ctx, selection{Worker: r.Provider, Thinking: r.Thinking})
	}
	c.reason = "session_resumed"
	return map[string]any{"resumed": r.ID}, err
}

// forgetEverything resets what the client has set. The history stays.
func forgetEverything(f *Front, ctx context.Context, c *call) (any, error) {
	f.mu.Lock()
	c.on.queue = nil
	f.mu.Unlock()
	var err error
	for _, w := range f.keyed() {
		err = cmp.Or(err, agent.StoreKey(f.opts.StateDir, w.KeyFor, ""))
	}
	c.reason = "forgeteverything"
	return map[string]any{"cleared": true}, cmp.Or(err, f.choose(ctx, selection{}),
		f.history.set(ctx, settingOnboarded, ""), f.leave(ctx, c.on, ""))
}

func commandExecute(f *Front, ctx context.Context, c *call) (any, error) {
	raw := strings.TrimSpace(c.params.Text("raw_command"))
	words := strings.Fields(raw)
	switch {
	case len(raw) > f.opts.MaxText:
		return nil, c.wrong("raw_command", "is too long")
	case !strings.HasPrefix(raw, "/"):
		return map[string]any{"handled": false}, nil
	}
	name := words[0]
	if run := builtin(name); run != nil {
		c.params, c.args = protocol.Object{}, words[1:]
		out, err := run(f, ctx, c)
		return handled(out), err
	}
	ctx = dialect.Merge(f.enter(c.on), ctx)
	args, err := arguments(raw[len(name):], func() map[string]string { return f.types(ctx, name[1:]) })
	if err != nil {
		return nil, c.wrong("raw_command", err.Error())
	}
	f.mu.Lock()
	c.tool = uuid.NewString()
	f.mu.Unlock()
	return f.runTool(ctx, c, name, args)
}

func handled(output any) map[string]any { return map[string]any{"handled": true, "output": output} }

func (f *Front) runTool(ctx context.Context, c *call, name string, args protocol.Object) (any, error) {
	var resp protocol.ToolCallResponse
	begun := time.Now()
	err := host.ServicesOf(ctx).Call(ctx, protocol.TypeToolCallReq, &protocol.ToolCallRequest{
		ToolName: name[1:], Arguments: args, CorrelationID: c.tool, Timeout: commandTimeout,
	}, &resp, nil)
	if err != nil {
		e := jsonrpc.From(err)
		if e.Data["code"] == protocol.CodeUnknownTool {
			unknown := "unknown command: " + protocol.Clip(name, maxClient) + "; " + e.Message
			return handled(map[string]any{"error": unknown}), nil
		}
		if e.Code == jsonrpc.CodeInvalidParams {
			e.With("field", "raw_command") // the client does not know the name of the tool's argument
		}
		return nil, e
	}
	r := resp.Data
	output := map[string]any{
		"tool_name": cmp.Or(r.ToolName, name[1:]), "tool_call_id": c.tool, "success": r.Success,
		"data": or(r.Data, "null"), "summary": or(r.Summary, "null"), "truncated": value(r.Truncated),
		"exit_code": r.ExitCode, "error": r.Error, "error_code": r.ErrorCode,
		"duration_ms": time.Since(begun).Milliseconds(),
	}
	return handled(add(output, "group", resp.Group)), nil
}

// toolCall returns the tool call that a command makes, as far as it is known without a question to a plugin; false = it
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
	raw, _ := protocol.AppendJSON(nil, map[string]any{"tool_name": words[0][1:], "arguments": args})
	call, err := protocol.ParseObject(raw)
	return call, err == nil
}

// builtin returns the handler of a command that does not run a tool; nil = there is no such command.
func builtin(name string) handler {
	for _, c := range commands() {
		if c.Name == strings.ToLower(name) {
			return c.run
		}
	}
	return nil
}

// arguments reads the arguments of a command, which are JSON or key=value pairs. types returns the types of the
// parameters, as far as they are known. A value, or a part of it, may be in quotes. Within double quotes a backslash
// escapes as in JSON, and a line break stands for itself.
func arguments(text string, types func() map[string]string) (obj protocol.Object, err error) {
	if text = strings.TrimSpace(text); text == "" {
		return obj, nil
	}
	raw, where := []byte(text), "the arguments: "
	if text[0] != '{' {
		where = ""
		if raw, err = pairs(text, types); err != nil {
			return obj, err
		}
	}
	if obj, err = protocol.ParseObject(raw); err != nil {
		err = errors.New(where + jsonrpc.From(err).Message)
	}
	return obj, err
}

// types returns the types of a tool's parameters, as far as they are known.
func (f *Front) types(ctx context.Context, tool string) map[string]string {
	var resp protocol.ToolListResponse
	req := &protocol.ToolListRequest{IncludeDeferred: true}
	if err := host.ServicesOf(ctx).Call(ctx, protocol.TypeToolListReq, req, &resp, nil); err != nil {
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

// pairs makes a JSON object from key=value pairs.
func pairs(rest string, types func() map[string]string) (raw []byte, err error) {
	known := types()
	raw = []byte{'{'}
	for rest != "" {
		key, text, ok := strings.Cut(rest, "=")
		wrong := func(r rune) bool { return unicode.IsSpace(r) || r == '"' || r == '\'' }
		if !ok || key == "" || strings.ContainsFunc(key, wrong) {
			return nil, errors.New("the arguments should be a JSON object, or key=value pairs with quotes around " +
				"values that have spaces")
		}
		p := pair{key: key}
		if text, err = p.read(text); err != nil {
			return nil, err
		}
		if rest = strings.TrimSpace(text); len(raw) > 1 {
			raw = append(raw, ',')
		}
		raw = append(protocol.AppendString(raw, key), ':')
		raw = append(raw, p.json(known[key])...)
	}
	return append(raw, '}'), nil
}

// json returns the value as JSON. If the type of the parameter is not known, an unquoted value that is valid JSON is
// taken as JSON.
func (p *pair) json(typ string) []byte {
	text := jsontext.Value(strings.TrimSpace(p.value))
	if p.quoted && typ == "" || typ == "string" || !text.IsValid() {
		return protocol.AppendString(nil, p.value)
	}
	return text
}

// valuePart matches one part of a value: 'text', "text" or text without quotes.
var valuePart = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(?:'([^']*)'|"((?s:\\.|[^"\\])*)"|([^'" \t\r\n]+))`)
})

// read reads a value from the start of a text, and returns the rest of the text.
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

// escapeBreaks escapes the line breaks and tabs in a double-quoted text as JSON requires.
func escapeBreaks(text string) string {
	return strings.NewReplacer(`\\`, `\\`, "\\\n", "\\\n", "\n", `\n`, "\r", `\r`, "\t", `\t`).Replace(text)
}
