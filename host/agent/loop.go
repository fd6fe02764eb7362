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
	MostTurns     = 1000     // that a loop may have
	maxTurnText   = 64 << 10 // bytes of what the model says beside its calls
	maxContext    = 8 << 20  // bytes of a conversation without its images, however large the window
	maxFinalText  = 8 << 20  // bytes of the final answer
	maxShown      = 2 << 10  // bytes of a text that is shortened
	bytesPerToken = 4        // for an estimate
	tellRepeats   = 3        // rounds with the same calls and results until the model is told
	mostRepeats   = 10       // until it is stopped
)

// Turns is one run of the loop.
type Turns struct {
	System  string
	Earlier []host.Said // the conversation before
	Prompt  string
	Images  []host.Image              // that belong to it
	Tools   []protocol.ToolDefinition // the only ones that may be called
	// whose tools they are, and how many calls it may make; nil = no particular one's
	Agent    *fleet.Agent
	MaxTurns int    // answers of the model; 0 = 10, at most MostTurns
	Budget   int    // tokens; 0 = any number
	Window   int    // tokens that the model can read; 0 = not known
	Meter    *Meter // of the model; nil = tokens are estimated by the usual ratio
	Model    Model
	Name     string // of another model of the same endpoint; "" = its own
	Thinking string // how much it shall think; "" = as its options say
	Services *host.Services
	Box      host.ToolBox            // tools that take the place of the host's; nil = none
	Own      []Own                   // tools of the run itself, behind the others
	Steer    func() []host.Steering  // takes the texts that have come in since the last time; nil = none do
	Watch    host.Watcher            // told what goes on; nil = nobody
	Accept   func(text string) error // looks at the final answer: an error is told to the model; nil = any will do

	// Permit is asked before a call that may change something; nil = all are made.
	Permit func(context.Context, host.ModelCall) error
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
	EndWrong   End = "wrong"   // Accept took none of its answers
)

// Result is what came of a run.
type Result struct {
	Text    string // the final answer; without one, what the model said last
	Cut     bool   // the model came to a limit of its own before the end of Text
	End     End
	Failure string // why it is not done
	Tokens  Tokens
	Rounds  int        // answers of the model
	Calls   int        // that were made
	Pending []ToolCall // that the model asked for and that were not made any more
}

// Summary tells a person what the run took.
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
	opening  int            // how many messages there are up to the prompt, with it
	asked    int            // calls so far: gives ids to those without
	steps    atomic.Int64   // calls of tools that are there
	reading  sync.WaitGroup // calls that run at the same time
	repeats  repeats

	// Of the message that the model sends.
	text  strings.Builder // its answer so far
	grew  int             // bytes of all of it
	over  context.CancelCauseFunc
	wrote bool // a piece of it was told
	cut   bool // it is more than the budget has left: no further piece counts
}

// errOver ends a request whose answer is more than the budget has left.
var errOver = errors.New("the token budget is used up")

// Loop lets a model work on a prompt: it answers, its tool calls are made, and it gets their
// results, until it answers without a call. That text is the result. A tool that fails, or
// that is not among t.Tools, is an answer to the model and no error.
//
// There is a result in any case, with what the run took and the text so far. The error is
// that of the model, or the cause of ctx.
func Loop(ctx context.Context, t Turns) (*Result, error) {
	if t.MaxTurns <= 0 {
		t.MaxTurns = defaultTurns
	}
	t.MaxTurns = min(t.MaxTurns, MostTurns)
	if t.Watch == nil {
		t.Watch = host.Unwatched{}
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

// run goes from round to round.
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

// answered does what a reply asks for. over tells that it was the last one.
func (l *loop) answered(ctx context.Context, round int, reply *Reply) (over bool, err error) {
	if len(reply.Calls) > 0 {
		if l.Budget > 0 && l.Tokens.Sum() >= l.Budget { // nobody would see their results
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

// ended notes how the run ended.
func (l *loop) ended(how End, why string, args ...any) bool {
	l.End, l.Failure = how, fmt.Sprintf(why, args...)
	return true
}

// overspent reports whether nothing is left of the budget.
func (l *loop) overspent() bool { return l.Budget > 0 && l.Tokens.Sum() >= l.Budget }

// spent ends a run that has nothing left to spend.
func (l *loop) spent() bool {
	return l.overspent() && l.ended(EndBudget, "the token budget of %d is used up: %d were spent", l.Budget,
		l.Tokens.Sum())
}

// steered takes the texts that have come in; it reports whether there were any.
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

// ask gets the model's next message. What it costs counts, also where it does not come to
// its end.
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
	if l.cut { // also where its end came before the cut
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

// count adds the tokens of a request to the others; those that were not reported are
// estimated, those of the answer by its bytes.
func (l *loop) count(used Tokens, answer int) {
	size := len(l.System) + sizeOf(l.messages)
	for _, t := range l.tools {
		size += t.size()
	}
	if used.Input == 0 {
		used.Estimated, used.Input = true, estimate(size)
	} else if !slices.ContainsFunc(l.messages, func(m Message) bool { return len(m.Images) > 0 }) {
		l.Meter.learn(size, len(l.messages)+1, used.Input)
	}
	if used.Output == 0 {
		used.Estimated, used.Output = true, estimate(answer)
	}
	l.Tokens = l.Tokens.add(used)
}

// estimate returns about how many tokens a text of so many bytes is.
func estimate(bytes int) int { return (bytes + bytesPerToken - 1) / bytesPerToken }

// Piece implements Listener.
func (l *loop) Piece(kind host.PieceKind, text string) {
	if l.cut {
		return
	}
	if kind == host.PieceAnswer {
		l.text.WriteString(text)
	}
	l.wrote = true
	l.Watch.Piece(kind, text)
}

// Grew implements Listener: an answer that certainly is more than the budget has left is cut.
func (l *loop) Grew(bytes int) {
	if l.grew += bytes; l.Budget > 0 && l.Tokens.Sum()+l.grew/bytesPerToken > l.Budget {
		l.cut = true
		l.over(errOver)
	}
}

// Restart implements Listener.
func (l *loop) Restart() {
	if l.grew > 0 { // it was paid for
		l.count(Tokens{}, l.grew)
	}
	l.text.Reset()
	if l.grew = 0; l.wrote {
		l.wrote = false
		l.Watch.Restart()
	}
}

// sizeOf counts the bytes of messages.
func sizeOf(messages []Message) (n int) {
	for i := range messages {
		n += len(messages[i].Text)
		for _, c := range messages[i].Calls {
			n += len(c.Name) + len(c.Arguments.Raw())
		}
	}
	return n
}

// shorten brings a conversation towards a size: results of tools give way first, the oldest
// before others, then of what was said before the prompt and by the model since all but the
// begin. The prompt, which ends the opening, stays, and no message goes as a whole.
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

// repeats finds a model that does the same again and again.
type repeats struct {
	last   []string // the calls of the last round, each with its result
	rounds int      // with the same ones, one after the other
	what   string   // the first of them
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
