package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/dialect/jsonrpc"
	"a2e/protocol"
	"a2e/protocol/fleet"
	wire "a2e/protocol/jsonrpc"
)

// chatTurn is what is known of a turn.
type chatTurn struct {
	begun    time.Time
	streamed strings.Builder // of the answer
	answer   string          // the whole one
	failed   string          // why it did not come to its end
}

// chatCall is a call of a tool under way.
type chatCall struct {
	begun time.Time
	text  string
}

// chatEvent is what events tell, each of them a part.
type chatEvent struct {
	Session string `json:"session_id"`
	Pending bool   `json:"pending"`
	Label   string `json:"status_label"`
	Chunk   struct {
		Segments []chatSegment `json:"segments"`
	} `json:"chunk"`
	Message jsontext.Value `json:"message"` // an object, or the text of an error
	Data    struct {
		Call     chatTool       `json:"call"`
		Executed jsontext.Value `json:"executed"`
	} `json:"data"`
	Status    fleet.Status `json:"status"` // of a turn that is completed
	Tokens    int          `json:"tokens_spent"`
	Estimated bool         `json:"tokens_estimated"`
}

type chatSegment struct {
	Kind host.PieceKind `json:"kind"`
	Text string         `json:"text"`
}

// chatTool is a call of a tool.
type chatTool struct {
	ID    string         `json:"callId"`
	Name  string         `json:"name"`
	Input jsontext.Value `json:"input"`
	OK    bool           `json:"ok"`
	Error string         `json:"error"`
}

// event takes what the host tells.
func (t *chat) event(kind wire.EventType, payload jsontext.Value) {
	var e chatEvent
	err := json.Unmarshal(payload, &e)
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil || e.Session != t.session {
		return // of another session, or of none
	}
	switch kind {
	case wire.SessionStatus:
		t.statusLocked(e.Pending)
		if e.Label == jsonrpc.LabelRetrying && t.screen != nil {
			t.screen.line(styleDim, "the model's answer broke off; trying again")
		}
	case wire.StreamChunk:
		for _, s := range e.Chunk.Segments {
			t.pieceLocked(s)
		}
	case wire.MessageAppended:
		t.messageLocked(e.Message)
	case wire.ToolCallStarted:
		t.startedLocked(&e.Data.Call)
	case wire.ToolCallCompleted:
		t.endedLocked(e.Data.Executed)
	case wire.SessionCompleted:
		t.completedLocked(&e)
	case wire.SessionInterrupted:
		t.turn.failed = "interrupted"
	case wire.SessionError:
		_ = json.Unmarshal(e.Message, &t.turn.failed) // a text
		if !t.begun {
			t.idleLocked()
		}
	}
}

// statusLocked notes whether a worker is at work.
func (t *chat) statusLocked(pending bool) {
	switch {
	case pending && !t.begun:
		t.busy, t.begun, t.turn = true, true, chatTurn{begun: time.Now()}
		if t.screen != nil {
			t.screen.working()
		}
	case !pending && t.begun:
		t.idleLocked()
	}
}

func (t *chat) idleLocked() {
	t.busy, t.begun = false, false
	select {
	case t.over <- struct{}{}:
	default:
	}
	if t.screen != nil {
		t.screen.ready()
	}
}

func (t *chat) pieceLocked(s chatSegment) {
	style := ""
	if s.Kind == host.PieceThought {
		style = styleDim
	} else {
		t.turn.streamed.WriteString(s.Text)
	}
	if t.screen != nil {
		t.screen.piece(string(s.Kind), style, s.Text)
	}
}

// messageLocked takes a whole message. What was streamed of it is there already.
func (t *chat) messageLocked(text jsontext.Value) {
	var m struct {
		Kind string `json:"kind"`
		Text string `json:"text"`
	}
	if json.Unmarshal(text, &m) != nil {
		return
	}
	switch m.Kind {
	case "assistant":
		if t.turn.answer = m.Text; t.screen != nil && !strings.HasSuffix(strings.TrimSpace(t.turn.streamed.String()), strings.TrimSpace(m.Text)) {
			t.screen.line("", m.Text)
		}
	case "system":
		if t.screen != nil {
			t.screen.line(styleBad, m.Text)
		}
	}
}

func (t *chat) startedLocked(call *chatTool) {
	if t.screen == nil {
		return
	}
	text := "· " + oneLine(call.Name) + " "
	text += cut(oneLine(string(call.Input)), max(t.screen.columns()-textWidth(text)-len("  ✗ 10m20s "), leastColumns))
	t.calls[call.ID] = chatCall{time.Now(), text}
	t.screen.open("call "+call.ID, styleDim, text)
}

// endedLocked tells the outcome of a call, on its line unless others came in between.
func (t *chat) endedLocked(text jsontext.Value) {
	var call chatTool
	if json.Unmarshal(text, &call) != nil || t.screen == nil {
		return
	}
	begun := t.calls[call.ID]
	delete(t.calls, call.ID)
	style, outcome := styleGood, "✓ "
	if !call.OK {
		style, outcome = styleBad, "✗ "
	}
	outcome += shortDuration(time.Since(begun.begun).Round(time.Millisecond))
	if !t.screen.closing("call "+call.ID, style, " "+outcome) {
		t.screen.line(style, begun.text+" "+outcome)
	}
	if call.Error != "" {
		t.screen.line(styleBad, "  "+cut(oneLine(call.Error), max(t.screen.columns()-3, leastColumns)))
	}
}

func (t *chat) completedLocked(e *chatEvent) {
	if e.Status == fleet.StatusPartial {
		t.turn.failed = "the worker did only part of it"
	}
	if t.screen == nil {
		return
	}
	if t.turn.failed != "" {
		t.screen.line(styleBad, t.turn.failed)
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

// greet tells with whom one talks, and what was said before.
func (t *chat) greet(ctx context.Context, c *chatCmd) {
	var models struct {
		Model    string `json:"selected_model"`
		Thinking string `json:"selected_thinking"`
	}
	var state struct {
		History []struct {
			Role string `json:"role"`
			Text string `json:"text"`
		} `json:"history"`
	}
	if t.host.call(ctx, wire.ModelList, map[string]any{}, &models) == nil && models.Model != "" {
		t.screen.line(styleDim, fmt.Sprintf("%s; /help lists the commands, Ctrl-C interrupts, Ctrl-D ends",
			models.Model))
	}
	if c.Session == "" && !c.Continue || t.host.call(ctx, wire.SessionGet, t.of(nil), &state) != nil {
		return
	}
	const shown = 4 // the end of the conversation
	for _, m := range state.History[max(0, len(state.History)-shown):] {
		if m.Role == "user" {
			t.screen.line("", chatPrompt+m.Text)
		} else {
			t.screen.line("", m.Text)
		}
	}
}

// command has the host execute a slash command and returns its output.
func (t *chat) command(ctx context.Context, raw string) (output jsontext.Value, err error) {
	t.running(true)
	defer t.running(false)
	var told struct {
		Output jsontext.Value `json:"output"`
	}
	if err := t.host.call(ctx, wire.CommandExecute, t.of(map[string]any{"raw_command": raw}), &told); err != nil {
		return nil, err
	}
	var refused struct {
		Error string `json:"error"`
	}
	if json.Unmarshal(told.Output, &refused) == nil && refused.Error != "" {
		return nil, fmt.Errorf("%s", refused.Error)
	}
	return told.Output, nil
}

func (t *chat) running(runs bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.runs = runs
}

// slash does a slash command: the host's, but for the choice of a model.
func (t *chat) slash(ctx context.Context, name, rest, raw string) error {
	if name == "/model" && rest != "" {
		return t.choose(ctx, strings.Fields(rest))
	}
	output, err := t.command(ctx, raw)
	if err != nil {
		return err
	}
	t.show(output, strings.HasSuffix(rest, "all"))
	if name == "/help" {
		t.screen.line("", "  /image FILE  an image for the next message; @FILE in a text does the same\n  /model NAME [LEVEL]  select a model, and how much it thinks")
	}
	return nil
}

// choose selects a model.
func (t *chat) choose(ctx context.Context, words []string) error {
	var list struct {
		Models []struct {
			ID       string `json:"id"`
			Provider string `json:"provider"`
			Thinking string `json:"defaultThinkingLevel"`
		} `json:"models"`
	}
	if err := t.host.call(ctx, wire.ModelList, map[string]any{}, &list); err != nil {
		return err
	}
	var known []string
	for _, m := range list.Models {
		known = append(known, m.ID)
		if m.ID != words[0] && m.Provider != words[0] {
			continue
		}
		level := append(words[1:], m.Thinking)[0]
		var told struct {
			Thinking string `json:"selected_thinking"`
		}
		err := t.host.call(ctx, wire.ModelSelect, map[string]any{"model_id": m.ID, "provider": m.Provider, "thinking_level": strings.ToUpper(level)}, &told)
		if err == nil {
			t.screen.line(styleDim, m.ID+", thinking "+strings.ToLower(told.Thinking))
		}
		return err
	}
	return unknown("model", words[0], known)
}

// show shows the output of a command: a list of things with names as rows, of chats with their folders if these
// are wanted, else JSON.
func (t *chat) show(output jsontext.Value, folders bool) {
	var all map[string]jsontext.Value
	_ = json.Unmarshal(output, &all) // what is no object has no lists
	for _, name := range []string{"commands", "tools", "skills", "sessions"} {
		var items []struct {
			Name        string `json:"name"`
			ID          string `json:"id"`
			Description string `json:"description"`
			Title       string `json:"title"`
			Folder      string `json:"folder"`
		}
		if json.Unmarshal(all[name], &items) != nil {
			continue
		}
		var rows table
		for _, item := range items {
			row := []string{"  " + cut(item.Name+item.ID, 36), firstSentence(item.Description) + item.Title}
			if folders {
				row = append(row, item.Folder)
			}
			rows.row(row...)
		}
		if len(items) == 0 && name == "sessions" {
			t.screen.line(styleDim, "no saved chat in this folder; /history --all lists those of others")
			return
		}
		var text strings.Builder
		_ = rows.print(&text, t.screen.columns()-1, false) // into memory
		t.screen.line("", strings.TrimSuffix(text.String(), "\n"))
		return
	}
	if text, err := json.Marshal(output, jsontext.WithIndent("  ")); err == nil {
		t.screen.line("", string(text))
	}
}

// rpcConn is a client of the JSON-RPC sessions of a host. It is safe for concurrent use.
type rpcConn struct {
	to    io.WriteCloser
	event func(wire.EventType, jsontext.Value) // called in the order of the events; it must not call the host

	writing sync.Mutex // held while a line is written

	gone chan struct{} // closed when the host has ended

	mu      sync.Mutex // guards the fields below
	last    int        // id of a request
	waiting map[int]chan<- rpcAnswer
	over    error // why no answer comes any more
}

// rpcAnswer is a line of the host: an answer, or an event.
type rpcAnswer struct {
	ID     *int           `json:"id"`
	Result jsontext.Value `json:"result"`
	Error  *struct {
		Message string `json:"message"`
	} `json:"error"`
	Params struct {
		Type    wire.EventType `json:"type"`
		Payload jsontext.Value `json:"payload"`
	} `json:"params"`
}

// read takes the lines of the host until there are no more.
func (c *rpcConn) read(from *io.PipeReader) {
	in := bufio.NewReaderSize(from, 64<<10)
	for {
		line, err := in.ReadBytes('\n')
		var a rpcAnswer
		if err == nil {
			err = json.Unmarshal(line, &a)
		}
		switch {
		case err != nil:
			from.CloseWithError(err) // what the host writes has no reader any more
			c.end(err)
			return
		case a.ID == nil:
			c.event(a.Params.Type, a.Params.Payload)
			continue
		}
		c.mu.Lock()
		to := c.waiting[*a.ID]
		delete(c.waiting, *a.ID)
		c.mu.Unlock()
		if to != nil {
			to <- a
		}
	}
}

func (c *rpcConn) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrClosedPipe) {
		err = errors.New("the host has ended")
	}
	c.over = err
	for _, to := range c.waiting {
		close(to)
	}
	c.waiting = nil
	close(c.gone)
}

// call makes a request and decodes its answer into result, unless that is nil.
func (c *rpcConn) call(ctx context.Context, method string, params, result any) error {
	answer := make(chan rpcAnswer, 1)
	c.mu.Lock()
	if c.over != nil {
		defer c.mu.Unlock()
		return c.over
	}
	c.last++
	id := c.last
	if c.waiting == nil {
		c.waiting = make(map[int]chan<- rpcAnswer)
	}
	c.waiting[id] = answer
	c.mu.Unlock()
	line, err := protocol.AppendJSON(nil, map[string]any{"jsonrpc": wire.Version, "id": id, "method": method, "params": params})
	if err != nil {
		return err
	}
	c.writing.Lock()
	_, err = c.to.Write(append(line, '\n'))
	c.writing.Unlock()
	if err != nil {
		return fmt.Errorf("the host takes no requests: %w", err)
	}
	select {
	case a, ok := <-answer:
		switch {
		case !ok:
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.over
		case a.Error != nil:
			return errors.New(a.Error.Message)
		case result != nil:
			return json.Unmarshal(a.Result, result)
		}
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
