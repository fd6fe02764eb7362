package agent

import (
	"cmp"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/schema"
	"a2e/protocol"
)

// maxAsked is how many calls of one answer are read at most.
const maxAsked = 4 * maxCalls

// chatPiece is a piece of an answer, or all of it.
type chatPiece struct {
	Choices []struct {
		Delta        chatDelta `json:"delta"`
		Message      chatDelta `json:"message"` // of an answer that is no stream
		FinishReason chatText  `json:"finish_reason"`
	} `json:"choices"`
	Usage jsontext.Value `json:"usage"`
}

// chatDelta is what a piece adds to the message.
type chatDelta struct {
	Content          chatText `json:"content"`
	ReasoningContent chatText `json:"reasoning_content"`
	Reasoning        chatText `json:"reasoning"` // the same at other servers
	Refusal          chatText `json:"refusal"`
	ToolCalls        []struct {
		Index    *int     `json:"index"` // which call it is a piece of; some servers leave it out
		ID       chatText `json:"id"`
		Function struct {
			Name      chatText      `json:"name"`
			Arguments chatArguments `json:"arguments"`
		} `json:"function"`
	} `json:"tool_calls"`
}

// chatText is a text. If a server sends a list of parts, it is their texts; any other value is an empty text.
type chatText string

// UnmarshalJSONFrom implements json.UnmarshalerFrom.
func (t *chatText) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	switch dec.PeekKind() {
	case '"':
		return json.UnmarshalDecode(dec, (*string)(t))
	case '[':
		var parts []struct {
			Text string `json:"text"`
		}
		err := json.UnmarshalDecode(dec, &parts)
		for _, p := range parts {
			*t += chatText(p.Text)
		}
		return err
	}
	return dec.SkipValue()
}

// chatArguments are JSON in a text, as the API says. Some servers send the object itself.
type chatArguments string

// UnmarshalJSONFrom implements json.UnmarshalerFrom.
func (a *chatArguments) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	if kind := dec.PeekKind(); kind == '"' || kind == 'n' {
		return json.UnmarshalDecode(dec, (*string)(a))
	}
	raw, err := dec.ReadValue()
	*a = chatArguments(raw)
	return err
}

// errForm is the error for an answer that cannot be read.
var errForm = errors.New(`the answer is not of the form {"choices":[{"message":{"role":"assistant","content":"…"}}]}`)

// answer collects the pieces of an answer. It implements openai.Receiver.
type answer struct {
	to      Listener
	text    strings.Builder
	refusal strings.Builder
	calls   []*askedCall
	began   bool
	finish  string
	tokens  Tokens
}

// askedCall is a call whose pieces are being received.
type askedCall struct {
	index     int // -1 = the server sends none
	id, name  string
	arguments strings.Builder
}

// Begin implements openai.Receiver.
func (a *answer) Begin() {
	*a = answer{to: a.to}
	a.to.Restart()
}

// Complete implements openai.Receiver.
func (a *answer) Complete() bool { return a.finish != "" }

// Take implements openai.Receiver.
func (a *answer) Take(data []byte) error {
	var p chatPiece
	if err := json.Unmarshal(data, &p, jsontext.AllowInvalidUTF8(true),
		jsontext.AllowDuplicateNames(true)); err != nil {
		return errForm
	}
	if u := reported(p.Usage); u != (Tokens{}) { // some servers report it with each piece
		a.tokens = u
	}
	if len(p.Choices) == 0 {
		return nil
	}
	first := &p.Choices[0]
	a.began = true
	a.add(&first.Delta)
	a.add(&first.Message)
	if first.FinishReason != "" {
		a.finish = string(first.FinishReason)
	}
	return nil
}

// add adds a piece to the message.
func (a *answer) add(d *chatDelta) {
	a.say(PieceThought, string(cmp.Or(d.ReasoningContent, d.Reasoning)))
	a.text.WriteString(string(d.Content))
	a.say(PieceAnswer, string(d.Content))
	a.refusal.WriteString(string(d.Refusal))
	a.say(PieceAnswer, string(d.Refusal))
	for _, piece := range d.ToolCalls {
		c := a.call(piece.Index, string(piece.ID), string(piece.Function.Name))
		if c == nil {
			continue
		}
		c.id, c.name = cmp.Or(c.id, string(piece.ID)), cmp.Or(c.name, string(piece.Function.Name))
		c.arguments.WriteString(string(piece.Function.Arguments))
		a.to.Grew(len(piece.Function.Arguments))
	}
}

// say passes a piece of text to the listener.
func (a *answer) say(kind PieceKind, text string) {
	if text != "" {
		a.to.Piece(kind, strings.ToValidUTF8(text, "\uFFFD"))
		a.to.Grew(len(text))
	}
}

// call returns the call that a piece belongs to: the one with its index, or else with its id. A piece with neither
// continues the last call, unless it has a name. Some servers give every call the same index, so another id begins
// another call. nil = there are too many calls.
func (a *answer) call(index *int, id, name string) *askedCall {
	at := -1
	if index != nil {
		at = max(*index, 0)
	}
	for _, c := range slices.Backward(a.calls) {
		switch {
		case at >= 0 && c.index != at:
		case id != "" && c.id != "" && c.id != id:
		case at < 0 && id == "" && name != "":
		default:
			return c
		}
	}
	if len(a.calls) == maxAsked {
		return nil
	}
	c := &askedCall{index: at}
	a.calls = append(a.calls, c)
	return c
}

// reply returns the whole message as a Reply.
func (a *answer) reply(names schema.Names) (*Reply, error) {
	if !a.began {
		return nil, errForm
	}
	r := &Reply{Text: a.text.String(), Cut: a.finish == "length", Tokens: a.tokens}
	if a.refusal.Len() > 0 || a.finish == "content_filter" {
		r.Refused = true
		r.Text = cmp.Or(strings.TrimSpace(a.refusal.String()), strings.TrimSpace(r.Text),
			"its content filter stopped the answer")
		return r, nil
	}
	for _, c := range a.calls {
		call := ToolCall{ID: c.id, Name: names.Here(c.name), WireName: c.name}
		if text := strings.TrimSpace(c.arguments.String()); text != "" {
			call.Arguments, call.Invalid = argumentsOf(protocol.Value(text))
		}
		r.Calls = append(r.Calls, call)
	}
	return r, nil
}

// reported returns the counts that a server reports, limited so that they can be added up. A value that is no
// number counts as 0, because the answer itself may still be right.
func reported(usage jsontext.Value) Tokens {
	var u struct {
		Prompt     jsontext.Value `json:"prompt_tokens"`
		Completion jsontext.Value `json:"completion_tokens"`
	}
	_ = json.Unmarshal(usage, &u, jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true))
	count := func(v jsontext.Value) int {
		n, _ := strconv.ParseFloat(string(v), 64) // infinite where it is too large
		return int(min(max(n, 0), 1<<40))
	}
	return Tokens{Input: count(u.Prompt), Output: count(u.Completion)}
}
