package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"a2e/host"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// The bounds of a loop.
const (
	defaultTurns  = 10
	MostTurns     = 1000     // turns that a loop may have
	maxTurnText   = 64 << 10 // bytes of what the model says beside its calls
	maxContext    = 8 << 20  // bytes of a conversation without its images, however large the window
	maxFinalText  = 8 << 20  // bytes of the final answer
	maxShown      = 2 << 10  // bytes of a text that is shortened
	bytesPerToken = 4        // for an estimate
	tellRepeats   = 3        // rounds with the same calls and results until the model is told
	mostRepeats   = 10       // such rounds until the run is stopped
)

// Turns describes one run of the loop.
type Turns struct {
	System  string
	Earlier []Said // the conversation before
	Prompt  string
	Images  []Image                   // that belong to the prompt
	Tools   []protocol.ToolDefinition // the only ones that may be called
	// the child agent that the tools belong to, with the bound of its calls; nil = none
	Agent    *fleet.Agent
	MaxTurns int    // answers of the model; 0 = 10, at most MostTurns
	Budget   int    // tokens; 0 = no limit
	Window   int    // tokens that the model can read; 0 = not known
	Meter    *Meter // of the model; nil = tokens are estimated by the usual ratio
	Model    Model
	Name     string // of another model of the same endpoint; "" = the model's own
	Thinking string // how much the model should think; "" = as its options say
	Services *host.Services
	Box      host.ToolBox            // tools that take the place of the host's; nil = none
	Own      []Own                   // tools of the run itself, after the others
	Steer    func() []Steering       // returns the texts that came in since the last call; nil = none do
	Watch    Watcher                 // follows the run; nil = nobody does
	Accept   func(text string) error // checks the final answer: the model gets the error; nil = no check

	// Permit is called before a call that may change something: an error prevents it; nil = all calls are made.
	Permit func(context.Context, ModelCall) error
}

// End says how a run ended.
type End string

// The ends.
const (
	EndDone    End = "done"
	EndTurns   End = "max_turns"
	EndBudget  End = "token_budget"
	EndRepeats End = "repeats" // the model made the same call again and again
	EndRefused End = "refused" // the model declined
	EndWrong   End = "wrong"   // Accept refused all its answers
)

// Result is the outcome of a run.
type Result struct {
	Text    string // the final answer; without one, what the model said last
	Cut     bool   // the model reached a limit of its own before the end of Text
	End     End
	Failure string // why it is not done
	Tokens  Tokens
	Rounds  int        // answers of the model
	Calls   int        // that were made
	Pending []ToolCall // calls that the model asked for, but that were not made any more
}

// Summary returns what the run used, for a person.
func (r *Result) Summary() string {
	about := ""
	if r.Tokens.Estimated {
		about = "about "
	}
	return fmt.Sprintf("turns: %d, tool calls: %d, tokens read: %s%d, written: %s%d", r.Rounds, r.Calls, about,
		r.Tokens.Input, about, r.Tokens.Output)
}

// loop is a run under way.
type loop struct {
	Turns
	Result
	tools    []Tool
	messages []Message
	opening  int            // how many messages there are up to the prompt, included
	asked    int            // calls so far; makes ids for those without one
	steps    atomic.Int64   // calls of tools that exist
	reading  sync.WaitGroup // calls that run at the same time
	repeats  repeats

	// These belong to the message that the model is sending.
	text  strings.Builder // its answer so far
	grew  int             // bytes of the whole message
	over  context.CancelCauseFunc
	wrote bool // a piece of it was passed to Watch
	cut   bool // the answer is longer than the budget allows; further pieces are ignored
}

// errOver ends a request whose answer is longer than the budget allows.
var errOver = errors.New("the token budget is used up")

// Loop lets a model work on a prompt: it answers, its tool calls are made, and it gets their results, until it
// answers without a call. That text is the result. If a tool fails, or is not among t.Tools, the model gets that as
// the result of the call; Loop returns no error for it.
//
// The result is never nil. It has what the run used and the text so far. The error is that of the model, or the
// cause of ctx.
func Loop(ctx context.Context, t Turns) (*Result, error) {
	if t.MaxTurns <= 0 {
		t.MaxTurns = defaultTurns
	}
	t.MaxTurns = min(t.MaxTurns, MostTurns)
	if t.Watch == nil {
		t.Watch = Unwatched{}
	}
	l := &loop{Turns: t, tools: toolsOf(&t)}
	for _, e := range t.Earlier {
		role := RoleUser
		if e.Role == string(RoleAssistant) {
			role = RoleAssistant
		}
		l.messages = append(l.messages, Message{Role: role, Text: e.Text, Images: e.Images})
	}
	l.messages = append(l.messages, Message{Role: RoleUser, Text: t.Prompt, Images: t.Images})
	l.opening = len(l.messages)
	err := l.run(ctx)
	return &l.Result, err
}

// run makes one round after the other.
func (l *loop) run(ctx context.Context) error {
	for round := 1; round <= l.MaxTurns; round++ {
		if l.spent() {
			return nil
		}
		l.steered()
		l.Rounds = round
		l.Watch.Round(round, l.MaxTurns)
		reply, err := l.ask(ctx)
		if errors.Is(err, errOver) {
			l.ended(EndBudget, "the token budget of %d was used up while the model answered", l.Budget)
			return nil
		}
		if err != nil {
			return err
		}
		if l.Text = head(strings.ToValidUTF8(reply.Text, "\uFFFD"), maxFinalText); reply.Refused {
			l.ended(EndRefused, "the model declined: %s", head(l.Text, maxShown))
			return nil
		}
		over, err := l.answered(ctx, round, reply)
		if over || err != nil {
			return err
		}
	}
	l.ended(EndTurns, "the model did not finish within %s (max_turns)", protocol.Count(l.MaxTurns, "turn"))
	return nil
}

// answered does what a reply asks for. over reports whether it was the last reply.
func (l *loop) answered(ctx context.Context, round int, reply *Reply) (over bool, err error) {
	if len(reply.Calls) > 0 {
		if l.Budget > 0 && l.Tokens.Sum() >= l.Budget { // the model would not see their results
			l.Pending = reply.Calls
			return l.spent(), nil
		}
		err = l.callAll(ctx, round, reply)
		return l.repeats.rounds >= mostRepeats && l.ended(EndRepeats, "the model made the same call with the same "+
			"result %d times, one after the other: %s", mostRepeats, l.repeats.what), err
	}
	l.messages = append(l.messages, Message{Role: RoleAssistant, Text: head(l.Text, maxTurnText)})
	if round < l.MaxTurns && !l.overspent() && l.steered() {
		return false, nil
	}
	if l.Accept != nil {
		if wrong := l.Accept(l.Text); wrong != nil {
			l.messages = append(l.messages, Message{Role: RoleUser, Text: wrong.Error()})
			return round == l.MaxTurns && l.ended(EndWrong, "%v", wrong), nil
		}
	}
	l.Cut = reply.Cut
	return l.ended(EndDone, ""), nil
}

// ended notes how the run ended, and returns true.
func (l *loop) ended(how End, why string, args ...any) bool {
	l.End, l.Failure = how, fmt.Sprintf(why, args...)
	return true
}

// overspent reports whether the budget is used up.
func (l *loop) overspent() bool { return l.Budget > 0 && l.Tokens.Sum() >= l.Budget }

// spent ends a run whose budget is used up, and reports whether it did.
func (l *loop) spent() bool {
	return l.overspent() && l.ended(EndBudget, "the token budget of %d is used up: %d were spent", l.Budget,
		l.Tokens.Sum())
}

// steered adds the texts that have come in to the messages, and reports whether there were any.
func (l *loop) steered() (any bool) {
	if l.Steer == nil {
		return false
	}
	for _, s := range l.Steer() {
		l.messages = append(l.messages, Message{Role: RoleUser, Text: s.Text})
		any = true
		select {
		case s.Taken <- true:
		default: // nobody asked
		}
	}
	return any
}

// ask gets the model's next message. Its tokens count even if the message does not come to its end.
func (l *loop) ask(ctx context.Context) (*Reply, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	shorten(l.messages, l.opening, min(l.Meter.bytes(l.window()*roomShare/100), maxContext))
	within, over := context.WithCancelCause(ctx)
	defer over(nil)
	l.text.Reset()
	l.grew, l.over, l.wrote, l.cut = 0, over, false, false
	reply, err := l.Model.Complete(within, Request{
		System: l.System, Messages: l.messages, Tools: l.tools,
		Model: l.Name, Thinking: l.Thinking, To: l,
	})
	if l.cut { // even if the answer ended before it was stopped
		err = errOver
	}
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if l.text.Len() > 0 {
			l.Text = strings.ToValidUTF8(l.text.String(), "\uFFFD")
		}
		if l.grew > 0 {
			l.count(Tokens{}, l.grew)
		}
		return nil, err
	}
	l.count(reply.Tokens, sizeOf([]Message{{Text: reply.Text, Calls: reply.Calls}}))
	return reply, nil
}

// count adds the tokens of a request to those of the run. It estimates those that were not reported; answer is the
// size of the answer in bytes.
func (l *loop) count(used Tokens, answer int) {
	size := len(l.System) + sizeOf(l.messages)
	for _, t := range l.tools {
		size += t.size()
	}
	if used.Input == 0 {
		used.Estimated, used.Input = true, EstimateTokens(size)
	} else if !slices.ContainsFunc(l.messages, func(m Message) bool { return len(m.Images) > 0 }) {
		l.Meter.learn(size, len(l.messages)+1, used.Input)
	}
	if used.Output == 0 {
		used.Estimated, used.Output = true, EstimateTokens(answer)
	}
	l.Tokens = l.Tokens.add(used)
}

// EstimateTokens returns about how many tokens a text of this many bytes has.
func EstimateTokens(bytes int) int { return (bytes + bytesPerToken - 1) / bytesPerToken }

// Piece implements Listener.
func (l *loop) Piece(kind PieceKind, text string) {
	if l.cut {
		return
	}
	if kind == PieceAnswer {
		l.text.WriteString(text)
	}
	l.wrote = true
	l.Watch.Piece(kind, text)
}

// Grew implements Listener. It stops an answer that is certainly longer than the budget allows.
func (l *loop) Grew(bytes int) {
	if l.grew += bytes; l.Budget > 0 && l.Tokens.Sum()+l.grew/bytesPerToken > l.Budget {
		l.cut = true
		l.over(errOver)
	}
}

// Restart implements Listener.
func (l *loop) Restart() {
	if l.grew > 0 { // these bytes were paid for
		l.count(Tokens{}, l.grew)
	}
	l.text.Reset()
	if l.grew = 0; l.wrote {
		l.wrote = false
		l.Watch.Restart()
	}
}

// sizeOf returns how many bytes the texts and calls of messages have.
func sizeOf(messages []Message) (n int) {
	for i := range messages {
		n += len(messages[i].Text)
		for _, c := range messages[i].Calls {
			n += len(c.Name) + len(c.Arguments.Raw())
		}
	}
	return n
}

// shorten brings a conversation towards a size in bytes. First it replaces results of tools after the opening, then
// it shortens the other texts and drops the arguments of calls, always the oldest first. The prompt, which ends the
// opening, stays, and no message is dropped as a whole.
func shorten(messages []Message, opening, size int) {
	const note = "(left out to save room)"
	over := sizeOf(messages) - size
	for i := opening; i < len(messages) && over > 0; i++ {
		if m := &messages[i]; m.Role == RoleTool && len(m.Text) > len(note) {
			over -= len(m.Text) - len(note)
			m.Text = note
		}
	}
	for i := 0; i < len(messages) && over > 0; i++ {
		m := &messages[i]
		if i == opening-1 {
			continue
		}
		if short := head(m.Text, maxShown); len(short) < len(m.Text) {
			over -= len(m.Text) - len(short)
			m.Text = short
		}
		for j := range m.Calls {
			over -= len(m.Calls[j].Arguments.Raw()) - len("{}")
			m.Calls[j].Arguments = protocol.Object{}
		}
	}
}

// repeats finds a model that makes the same calls again and again.
type repeats struct {
	last   []string // the calls of the last round, each with its result
	rounds int      // rounds in a row with the same calls and results
	what   string   // the first of these calls
}

// see notes a round, and reports whether the model should be told.
func (r *repeats) see(round []string) bool {
	if !slices.Equal(r.last, round) {
		r.last, r.rounds = round, 0
	}
	r.rounds++
	what, _, _ := strings.Cut(round[0], "\x00")
	r.what = head(what, maxName)
	return r.rounds >= tellRepeats
}
