package jsonrpc

import (
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/agent"
	"a2e/protocol/jsonrpc"
)

// watcher reports to the client what a worker does. It implements agent.Watcher.
type watcher struct {
	front *Front
	turn  *turn

	mu      sync.Mutex // guards the fields below; held while events are sent, which keeps their order
	closed  bool
	model   bool            // the worker is a model and reports pieces
	draft   strings.Builder // of the answer
	begun   int             // where in draft the text of this round begins
	label   string          // the status label sent last
	thought string          // the end of the current thought
}

// do calls what unless the worker has ended. Before that it reports the texts that the worker has taken.
func (w *watcher) do(what func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed {
		w.settleLocked()
		what()
	}
}

// close is called when the worker has ended.
func (w *watcher) close() { w.do(func() { w.closed = true }) }

// said returns what the worker has said so far, and whether it is a model.
func (w *watcher) said() (text string, model bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.draft.String(), w.model
}

// begin is called when a worker takes the turn. It drops what an earlier worker, which failed, has said.
func (w *watcher) begin() {
	w.do(func() {
		if w.draft.Len() > 0 {
			w.tell(LabelRetrying)
		}
		w.draft.Reset()
		w.model, w.begun, w.thought = false, 0, ""
	})
}

// settleLocked reports the texts that the worker has taken.
func (w *watcher) settleLocked() {
	var taken []string
	w.front.mu.Lock()
	w.turn.steers = slices.DeleteFunc(w.turn.steers, func(st *steer) bool {
		took := len(st.taken) > 0 && <-st.taken
		if took {
			taken = append(taken, st.text)
		}
		return took
	})
	w.front.mu.Unlock()
	for _, text := range taken {
		w.front.note(w.turn, message{Role: roleUser, Text: text})
	}
	if len(taken) > 0 {
		w.tell(labelSteered)
	}
}

// tell sends a status label if it is new.
func (w *watcher) tell(label string) {
	if w.label != label {
		w.label = label
		w.front.tell(w.turn.session, label, "")
	}
}

// debug sends a stage of the turn, if the client has switched that on.
func (w *watcher) debug(stage string, data any) {
	if w.front.debug.Load() {
		w.front.about(w.turn, jsonrpc.SessionDebug, map[string]any{"stage": stage, "data": data})
	}
}

// Round implements agent.Watcher.
func (w *watcher) Round(round, of int) {
	w.do(func() {
		w.model, w.begun, w.thought = true, w.draft.Len(), ""
		w.debug("request", map[string]any{"toolRound": round, "of": of})
	})
}

// Piece implements agent.Watcher.
func (w *watcher) Piece(kind agent.PieceKind, text string) {
	w.do(func() {
		if w.model = true; kind == agent.PieceAnswer && w.draft.Len() == w.begun && w.begun > 0 {
			text = "\n\n" + text // the answer goes on after calls of tools
		}
		w.piece(kind, text)
	})
}

// output passes on a line that a worker prints, unless it is a model.
func (w *watcher) output(stream, line string) {
	w.do(func() {
		if w.model {
			return
		}
		kind := agent.PieceAnswer
		if stream == "stderr" {
			kind = agent.PieceThought
		}
		w.piece(kind, line+"\n")
	})
}

func (w *watcher) piece(kind agent.PieceKind, text string) {
	segment := map[string]any{"kind": kind, "text": text}
	chunk := map[string]any{"thoughts": []string{}, "answerText": "", "segments": []any{segment}}
	if kind == agent.PieceThought {
		chunk["thoughts"] = []string{text}
		w.thought += text
		if w.thought = w.thought[max(0, len(w.thought)-maxThought):]; w.model {
			w.tell("thinking: " + titleOfThought(w.thought))
		}
	} else {
		chunk["answerText"] = text
		if w.draft.Len()+len(text) <= w.front.opts.MaxText {
			w.draft.WriteString(text)
		}
		w.tell(labelDrafting)
	}
	w.front.about(w.turn, jsonrpc.StreamChunk, map[string]any{"chunk": chunk})
}

// thoughtTitle matches a line in bold. Models mark the titles of their thoughts so.
var thoughtTitle = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?m)^\s*\*\*([^*\n]+)\*\*`) })

// titleOfThought returns the last title in a thought, or else its first line, once that is complete.
func titleOfThought(thought string) string {
	if titles := thoughtTitle().FindAllStringSubmatch(thought, -1); titles != nil {
		return strings.ToLower(strings.TrimSpace(titles[len(titles)-1][1]))
	}
	first, _, ended := strings.Cut(strings.TrimLeft(thought, " \n"), "\n")
	if title := titleOf(first); ended && title != "" && !strings.HasPrefix(title, "**") {
		return strings.ToLower(title)
	}
	return "reasoning"
}

// Restart implements agent.Watcher.
func (w *watcher) Restart() {
	w.do(func() {
		whole := w.draft.String()[:w.begun]
		w.draft.Reset()
		w.draft.WriteString(whole)
		w.thought = ""
		w.tell(LabelRetrying)
	})
}

// toolCall is a tool call that a model makes.
type toolCall struct {
	Name     string         `json:"name"`
	Input    jsontext.Value `json:"input"`
	WireName string         `json:"providerToolName"`
	ID       string         `json:"callId"`
}

// executed is a tool call with its outcome.
type executed struct {
	Name   string         `json:"name"`
	OK     bool           `json:"ok"`
	Input  jsontext.Value `json:"input"`
	Result jsontext.Value `json:"result"`
	Error  string         `json:"error,omitzero"`
	Cut    bool           `json:"truncated,omitzero"` // Result is only a part
	ID     string         `json:"callId"`
}

func executedOf(c agent.ModelCall, r agent.ModelResult) executed {
	return executed{c.Name, r.OK, or(c.Arguments, "{}"), or(r.Result, "null"), r.Error, r.Cut != "", c.ID}
}

func (w *watcher) tool(t jsonrpc.EventType, stage string, data map[string]any) {
	w.do(func() {
		w.front.about(w.turn, t, map[string]any{"data": data})
		w.debug(stage, data)
	})
}

// ToolStarted implements agent.Watcher.
func (w *watcher) ToolStarted(round int, c agent.ModelCall) {
	call := toolCall{c.Name, or(c.Arguments, "{}"), c.WireName, c.ID}
	w.tool(jsonrpc.ToolCallStarted, "tool_call_started", map[string]any{"toolRound": round, "call": call})
}

// ToolEnded implements agent.Watcher.
func (w *watcher) ToolEnded(round int, c agent.ModelCall, r agent.ModelResult) {
	data := map[string]any{"toolRound": round, "executed": executedOf(c, r)}
	w.tool(jsonrpc.ToolCallCompleted, "tool_call_completed", data)
}

// Calls implements agent.Watcher.
func (w *watcher) Calls(round int, calls []agent.ModelCall, results []agent.ModelResult) {
	all := make([]executed, 0, len(calls))
	for i := range min(len(calls), len(results)) {
		all = append(all, executedOf(calls[i], results[i]))
	}
	w.tool(jsonrpc.ToolResults, "tool_results", map[string]any{"toolRound": round, "executed": all})
}
