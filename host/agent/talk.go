package agent

import (
	"context"

	"github.com/go-json-experiment/json/jsontext"
)

// Talk is the conversation that a task continues. A worker with a model gets it as messages; any other worker finds
// it in its brief, as text.
type Talk struct {
	Earlier []Said  // before the brief, the oldest first
	Images  []Image // they belong to the brief
	// how much the model should think: off, minimal, low, medium, high or xhigh; "" = as the config says
	Thinking string
	Model    string  // another model of the worker's endpoint; "" = the worker's own
	Watch    Watcher // follows what a model does; nil = nobody does

	// Permit is called before a model's call of a tool that may change something. An error prevents that call, and
	// the model gets the error; nil = every call is made.
	Permit func(ctx context.Context, call ModelCall) error
}

// Said is one message of a conversation.
type Said struct {
	Role   string // user or assistant
	Text   string
	Images []Image
}

// ContextUse is how much of a model's window a conversation takes, in tokens. It is estimated from the lengths of
// the texts, and from what the model's endpoint reported of earlier requests.
type ContextUse struct {
	Pinned       int // the system prompt
	Conversation int // all that was said, with the images
	Tools        int // their definitions
	Overhead     int // what each message takes beside its text
	Window       int // 0 = not known
	Limit        int // from here on the older part is summarised
	Target       int // the most that then remains of the conversation
}

// Total returns how many tokens a request takes.
func (u ContextUse) Total() int { return u.Pinned + u.Conversation + u.Tools + u.Overhead }

// Over reports whether the conversation should be summarised, and would be shorter then.
func (u ContextUse) Over() bool { return u.Total() > u.Limit && u.Conversation > u.Target }

// Summariser is a WorkerPool whose models summarise the conversations that others keep.
type Summariser interface {
	// ContextUse estimates how much of the window of a worker's model a conversation takes; "" = the default
	// worker. false = that worker has no model.
	ContextUse(ctx context.Context, worker string, said []Said) (use ContextUse, ok bool)
	// Summarise lets that model summarise all but the newest messages. text replaces the first `of` messages.
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
	PieceThought PieceKind = "thought" // only if the endpoint sends thoughts
)

// Watcher follows what a model at work does. Its methods are called in order, by one goroutine at a time, and not
// after the task has ended. They must not wait for long, because the model's answer is being read.
type Watcher interface {
	// Round is called before each request to the model. round counts from 1; of is how many there are at most.
	Round(round, of int)
	// Piece is called for each piece of the model's message, as it comes. If a request is tried again after its
	// first piece, the message begins again and is empty: Restart is called before.
	Piece(kind PieceKind, text string)
	Restart()
	// ToolStarted is called before a call of a tool, ToolEnded after it.
	ToolStarted(round int, call ModelCall)
	ToolEnded(round int, call ModelCall, result ModelResult)
	// Calls is called once all calls of a round were made.
	Calls(round int, calls []ModelCall, results []ModelResult)
}

// Unwatched is a Watcher that ignores everything. Embed it to watch only a part.
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
	WireName  string         // its name at the endpoint, which allows fewer characters
	Arguments jsontext.Value // an object; {} if it cannot be read as one
}

// ModelResult is the outcome of a ModelCall.
type ModelResult struct {
	OK     bool
	Result jsontext.Value // the result of the tool; null = nothing
	Error  string         // why it is not OK
	Cut    string         // says that Result is only a part, and how to get the rest; "" = it is whole
}
