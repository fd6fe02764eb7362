package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/agent"
	"a2e/host/dialect/jsonrpc"
	"a2e/protocol"
	"a2e/protocol/fleet"
	wire "a2e/protocol/jsonrpc"
)

// maxAsked limits how much of a call a question shows, in bytes.
const maxAsked = 8 << 10

// chatTurn is the state of a turn.
type chatTurn struct {
	begun    time.Time
	streamed strings.Builder // the streamed part of the answer
	answer   string          // the whole answer
	failed   string          // why the turn did not finish; "" = it did not fail
}

// chatCall is a running call of a tool.
type chatCall struct {
	begun  time.Time
	text   string
	file   string // the file that it changes, if the change is to be shown afterwards; "" = no file
	before string // content of the file before the call
}

// chatEvent holds the fields of all events. Each event has some of them.
type chatEvent struct {
	Session string `json:"session_id"`
	Pending bool   `json:"pending"`
	Label   string `json:"status_label"`
	Chunk   struct {
		Segments []struct {
			Kind agent.PieceKind `json:"kind"`
			Text string          `json:"text"`
		} `json:"segments"`
	} `json:"chunk"`
	Message jsontext.Value `json:"message"` // an object, or the text of an error
	Data    struct {
		Call     chatTool `json:"call"`
		Executed chatTool `json:"executed"`
	} `json:"data"`
	Status    fleet.Status `json:"status"` // of a completed turn
	Tokens    int          `json:"tokens_spent"`
	Estimated bool         `json:"tokens_estimated"`

	// For a question.
	Question string                    `json:"question_id"`
	Kind     string                    `json:"kind"`
	Call     chatTool                  `json:"call"`
	File     string                    `json:"file"` // the file that the call changes
	Form     protocol.MCPElicitRequest `json:"form"`
}

// chatTool is a call of a tool.
type chatTool struct {
	ID    string         `json:"callId"`
	Name  string         `json:"name"`
	Input jsontext.Value `json:"input"`
	OK    bool           `json:"ok"`
	Error string         `json:"error"`
}

// event handles an event of the host.
func (t *chat) event(ctx context.Context, kind wire.EventType, payload jsontext.Value) {
	e := new(chatEvent)
	err := json.Unmarshal(payload, e)
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil || e.Session != t.session {
		return // the event belongs to another session
	}
	switch kind {
	case wire.SessionStatus:
		t.statusLocked(e)
	case wire.StreamChunk:
		for _, s := range e.Chunk.Segments {
			if s.Kind == agent.PieceThought {
				t.screen.piece(string(s.Kind), styleDim, s.Text)
				continue
			}
			t.turn.streamed.WriteString(s.Text)
			t.screen.piece(string(s.Kind), styleMarkdown, s.Text)
		}
	case wire.MessageAppended:
		t.messageLocked(e.Message)
	case wire.ToolCallStarted:
		t.startedLocked(&e.Data.Call)
	case wire.ToolCallCompleted:
		t.endedLocked(&e.Data.Executed)
	case wire.SessionQuestion:
		t.questionLocked(ctx, e)
	case wire.QuestionClosed:
		if cancel := t.asked[e.Question]; cancel != nil {
			cancel()
		}
	case wire.SessionCompleted:
		t.completedLocked(e)
	case wire.SessionInterrupted:
		t.turn.failed = "interrupted"
	case wire.SessionError:
		_ = json.Unmarshal(e.Message, &t.turn.failed) // the message is a string
		if !t.begun {
			t.idleLocked()
		}
	}
}

// statusLocked records whether a worker is working.
func (t *chat) statusLocked(e *chatEvent) {
	switch {
	case e.Label == jsonrpc.LabelRetrying:
		t.screen.line(styleDim, "the model's answer broke off; trying again")
	case e.Pending && !t.begun:
		t.busy, t.begun, t.turn = true, true, chatTurn{begun: time.Now()}
		t.screen.prompt(false)
	case !e.Pending && t.begun:
		t.idleLocked()
	}
}

func (t *chat) idleLocked() {
	t.busy, t.begun = false, false
	select {
	case t.over <- struct{}{}:
	default:
	}
	t.screen.prompt(true)
}

// messageLocked handles a complete message. It shows an answer only if it was not streamed.
func (t *chat) messageLocked(text jsontext.Value) {
	var m struct {
		Kind string `json:"kind"`
		Text string `json:"text"`
	}
	_ = json.Unmarshal(text, &m) // an undecodable message has no kind
	switch m.Kind {
	case "assistant":
		t.turn.answer = m.Text
		if !strings.HasSuffix(strings.TrimSpace(t.turn.streamed.String()), strings.TrimSpace(m.Text)) {
			t.screen.piece("message", styleMarkdown, m.Text)
		}
	case "system":
		style := styleBad
		if strings.HasPrefix(m.Text, jsonrpc.CompactionNotice) {
			style = styleDim
		}
		t.screen.say(style, m.Text)
	}
}

func (t *chat) startedLocked(call *chatTool) {
	text := "· " + oneLine(call.Name) + " "
	text += cut(oneLine(call.arguments()), max(t.screen.columns()-textWidth(text)-len("  ✗ 10m20s "), leastColumns))
	t.calls[call.ID] = &chatCall{begun: time.Now(), text: text}
	t.screen.piece("call "+call.ID, styleDim, text)
}

// endedLocked shows the outcome of a call, on the line of the call unless other text came in
// between, and the changes of its file.
func (t *chat) endedLocked(call *chatTool) {
	begun := cmp.Or(t.calls[call.ID], new(chatCall))
	delete(t.calls, call.ID)
	style, outcome := styleGood, " ✓ "
	if !call.OK {
		style, outcome = styleBad, " ✗ "
	}
	outcome += shortDuration(time.Since(begun.begun).Round(time.Millisecond))
	if !t.screen.ended("call "+call.ID, style, outcome) {
		t.screen.line(style, begun.text+outcome)
	}
	if call.Error != "" {
		t.screen.line(styleBad, "  "+cut(oneLine(call.Error), max(t.screen.columns()-3, leastColumns)))
	}
	if after, _, ok := t.content(begun.file); ok {
		t.screen.showDiff(begun.before, after, maxDiffLines)
	}
}

func (t *chat) completedLocked(e *chatEvent) {
	if e.Status == fleet.StatusPartial {
		t.turn.failed = "the worker did only part of it"
	}
	if t.turn.failed != "" {
		t.screen.say(styleBad, t.turn.failed)
	}
	text := shortDuration(time.Since(t.turn.begun).Round(100 * time.Millisecond))
	if e.Tokens > 0 {
		text = tokens(e.Tokens) + ", " + text
	}
	if e.Estimated {
		text = "about " + text
	}
	t.screen.line(styleDim, text)
}

// arguments returns the arguments of a call for a person: name=value, as they are typed after /NAME.
func (c *chatTool) arguments() string {
	args, _ := protocol.ParseObject(protocol.Value(c.Input)) // an empty object if the input is not one
	var all []string
	for name, value := range args.All() {
		all = append(all, string(name)+"="+argument(value))
	}
	return strings.Join(all, " ")
}

// argument formats a value for a person: the items of a list as words of a shell, not as JSON.
func argument(value protocol.Value) string {
	var list []jsontext.Value
	if json.Unmarshal(value, &list) != nil {
		return plainly(jsontext.Value(value))
	}
	return strings.Join(each(list, func(one jsontext.Value) string {
		text := plainly(one)
		if text == "" || strings.ContainsAny(text, " \t\n\"'\\$;&|<>*?()") {
			return strconv.Quote(text)
		}
		return text
	}), " ")
}

// outcome returns the content that a call would give to a file. This is known for a call that
// writes the file, or replaces one text by another.
func (c *chatTool) outcome(before string) (after string, ok bool) {
	var args struct {
		Content *string `json:"content"`
		Old     string  `json:"old"`
		New     *string `json:"new"`
		All     bool    `json:"all"`
	}
	switch err := json.Unmarshal(c.Input, &args); {
	case err != nil:
		return "", false
	case args.Content != nil:
		return *args.Content, true
	case args.New != nil && strings.Contains(before, args.Old):
		most := 1
		if args.All {
			most = -1
		}
		return strings.Replace(before, args.Old, *args.New, most), true
	}
	return "", false
}

// questionLocked answers a question in the background, while other events are handled.
func (t *chat) questionLocked(ctx context.Context, e *chatEvent) {
	ctx, cancel := context.WithCancel(ctx)
	t.asked[e.Question] = cancel
	call := cmp.Or(t.calls[e.Call.ID], new(chatCall))
	go func() {
		defer cancel()
		answer := map[string]any{"question_id": e.Question, "action": "cancel"}
		if e.Kind != jsonrpc.QuestionForm {
			answer["action"], answer["reason"] = t.permit(ctx, e, call)
		} else if resp, err := t.person.elicit(ctx, &e.Form); err == nil {
			answer["action"], answer["content"] = resp.Action, resp.Content
		}
		t.mu.Lock()
		delete(t.asked, e.Question)
		call.begun = time.Now()
		t.mu.Unlock()
		if ctx.Err() == nil {
			_ = t.call(ctx, wire.SessionAnswer, answer, nil) // a host that has ended needs no answer
		}
	}()
}

// permit decides whether a call is allowed. It asks the person, unless --yes is set, the person has
// allowed such calls before, or the call creates a file or changes one that /undo restores.
func (t *chat) permit(ctx context.Context, e *chatEvent, call *chatCall) (action, reason string) {
	before, there, ok := t.content(e.File)
	t.mu.Lock()
	if ok {
		call.file, call.before = e.File, before
	}
	t.mu.Unlock()
	if t.Yes || ok && (!there || t.kept(ctx, e.File, before)) {
		return "accept", ""
	}
	t.person.turn.Lock()
	defer t.person.turn.Unlock()
	t.mu.Lock()
	always := t.always[e.allows()] // perhaps allowed in a question a moment ago
	t.mu.Unlock()
	if always {
		return "accept", ""
	}
	t.explain(e, call)
	for {
		line, ok := t.person.ask(ctx, "allow once [o], always [a], deny [d]?")
		word, why, _ := strings.Cut(line, " ")
		switch word = strings.ToLower(word); {
		case !ok:
			return "cancel", ""
		case slices.Contains([]string{"d", "deny", "n", "no"}, word):
			return "decline", why
		case why != "":
		case word == "a" || word == "always":
			t.mu.Lock()
			t.always[e.allows()] = true
			t.mu.Unlock()
			return "accept", ""
		case slices.Contains([]string{"o", "once", "y", "yes"}, word):
			return "accept", ""
		}
	}
}

// explain shows what a call would do and what the answers mean.
func (t *chat) explain(e *chatEvent, call *chatCall) {
	what, always := e.Call.arguments(), "this very call"
	if len(what) > maxAsked {
		what = protocol.Head(what, maxAsked) + fmt.Sprintf("… (%d bytes more are not shown)", len(what)-maxAsked)
	}
	if e.allows() == e.Call.Name {
		always = "each call of " + e.Call.Name
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if after, ok := e.Call.outcome(call.before); ok && call.file != "" {
		t.screen.line(styleBusy, e.Call.Name+" would change "+e.File)
		t.screen.showDiff(call.before, after, maxAskLines)
		call.file = "" // it need not be shown again
	} else {
		t.screen.line(styleBusy, strings.TrimSuffix(e.Call.Name+" may change something: "+what, ": "))
	}
	t.screen.line(styleDim, "always: "+always+" in this chat; d REASON tells the model why not")
	call.text = "· " + oneLine(e.Call.Name) // the rest has been shown
}

// allows returns what the answer "always" allows: all calls of a tool that changes a file or runs
// no code, otherwise only a call with the same input.
func (e *chatEvent) allows() string {
	runs := []string{"command", "cmd", "args", "argv", "code", "script", "sql", "query", "input"}
	args, _ := protocol.ParseObject(protocol.Value(e.Call.Input)) // an empty object if the input is not one
	for name := range args.All() {
		if e.File == "" && slices.Contains(runs, strings.ToLower(string(name))) {
			return e.Call.Name + " " + string(e.Call.Input)
		}
	}
	return e.Call.Name
}

// greet shows the name of the model, and the end of a continued conversation.
func (t *chat) greet(ctx context.Context) {
	var models struct {
		Model string `json:"selected_model"`
	}
	if t.call(ctx, wire.ModelList, nil, &models) == nil && models.Model != "" {
		t.screen.line(styleDim, "talking to "+models.Model+"; /help lists the commands, Ctrl-C interrupts, Ctrl-D ends")
	}
	if t.Session != "" || t.Continue {
		t.recall(ctx)
	}
}

// recall shows the last messages of the conversation.
func (t *chat) recall(ctx context.Context) {
	var state struct {
		History []struct {
			Role string `json:"role"`
			Text string `json:"text"`
		} `json:"history"`
	}
	_ = t.call(ctx, wire.SessionGet, nil, &state) // without an answer there is nothing to show
	const shown = 4
	for _, m := range state.History[max(0, len(state.History)-shown):] {
		if m.Role == "user" {
			typed, _, _ := strings.Cut(m.Text, fileBegun)
			t.screen.line("", chatPrompt+typed)
		} else {
			t.screen.piece("message", styleMarkdown, m.Text+"\n")
		}
	}
}
