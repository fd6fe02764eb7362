package host

import (
	"context"

	"github.com/go-json-experiment/json/jsontext"
)

// Talk is what a task has of the conversation that it goes on with. A worker with a model
// gets it as messages; any other one finds it in its brief, as text.
type Talk struct {
	Earlier []Said  // before the brief, the oldest first
	Images  []Image // that belong to the brief
	// how much the model should think: off, minimal, low, medium, high or xhigh; "" = as the config says
	Thinking string
	Model    string  // another model of the worker's endpoint; "" = the worker's own
	Watch    Watcher // told what a model does; nil = nobody

	// Permit is asked before a model's call of a tool that may change something. An error keeps the call from being
	// made and is what the model is told; nil = every call is made.
	Permit func(ctx context.Context, call ModelCall) error
}

// Said is one message of a conversation.
type Said struct {
	Role   string // user or assistant
	Text   string
	Images []Image
}

// ContextUse is what a conversation takes of a model's window, in tokens: estimated from the lengths of the texts, and
// from what the model's endpoint reported of earlier requests.
type ContextUse struct {
	Pinned       int // the system prompt
	Conversation int // all that was said, with the images
	Tools        int // their definitions
	Overhead     int // what each message takes beside its text
	Window       int // 0 = not known
	Limit        int // from here on the older part is summarised
	Target       int // what remains of the conversation then, at most
}

// Total is all that a request takes.
func (u ContextUse) Total() int { return u.Pinned + u.Conversation + u.Tools + u.Overhead }

// Over reports whether the conversation should be summarised, and would be shorter then.
func (u ContextUse) Over() bool { return u.Total() > u.Limit && u.Conversation > u.Target }

// Summariser is a WorkerPool whose models sum up the conversations that others keep. Services.Summariser finds it.
type Summariser interface {
	// ContextUse estimates what a conversation takes of the window of a worker's model, "" = of the default one's.
	// false = that worker is no model.
	ContextUse(ctx context.Context, worker string, said []Said) (use ContextUse, ok bool)
	// Summarise has that model sum up all but the newest messages: text stands for the first of them.
	Summarise(ctx context.Context, worker string, said []Said) (text Said, of int, err error)
}

// Image is a picture that goes to a model.
type Image struct {
	Name string // as a person knows it, such as the path of its file
	MIME string // image/png, image/jpeg, image/webp or image/gif
	Data []byte
}

// PieceKind says what a piece of a model's message is.
type PieceKind string

// The values of PieceKind.
const (
	PieceAnswer  PieceKind = "answer"
	PieceThought PieceKind = "thought" // where the endpoint tells it
)

// Watcher is told what a model at work does, in order and by one goroutine at a time. It
// must not wait for long: the model's answer is read meanwhile. After the task has ended it
// is told nothing.
type Watcher interface {
	// Round is told before each request to the model, counted from 1, of at most of.
	Round(round, of int)
	// Piece is told each piece of the model's message, as it comes. A request that is tried
	// again after its first piece begins again with an empty message: Restart is told before.
	Piece(kind PieceKind, text string)
	Restart()
	// ToolStarted is told before a call of a tool, ToolEnded after it.
	ToolStarted(round int, call ModelCall)
	ToolEnded(round int, call ModelCall, result ModelResult)
	// Calls is told once all calls of a round were made.
	Calls(round int, calls []ModelCall, results []ModelResult)
}

// Unwatched is a Watcher that does not look, to be embedded by those who look at a part.
type Unwatched struct{}

// Round implements Watcher.
func (Unwatched) Round(int, int) {}

// Piece implements Watcher.
func (Unwatched) Piece(PieceKind, string) {}

// Restart implements Watcher.
func (Unwatched) Restart() {}

// ToolStarted implements Watcher.
func (Unwatched) ToolStarted(int, ModelCall) {}

// ToolEnded implements Watcher.
func (Unwatched) ToolEnded(int, ModelCall, ModelResult) {}

// Calls implements Watcher.
func (Unwatched) Calls(int, []ModelCall, []ModelResult) {}

// ModelCall is a model's wish to call a tool.
type ModelCall struct {
	ID        string
	Name      string         // of the tool
	WireName  string         // as the endpoint has it, which takes fewer characters
	Arguments jsontext.Value // an object; what cannot be read as one is {}
}

// ModelResult is what became of a ModelCall.
type ModelResult struct {
	OK     bool
	Result jsontext.Value // what the tool gave; null = nothing
	Error  string         // why it is not OK
	Cut    string         // that Result is only a part, and how to get the rest; "" = it is whole
}
