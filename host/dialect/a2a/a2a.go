// Package a2a serves the Agent2Agent protocol (A2A) over HTTP, in the spellings of its versions 1.0 and 0.3.
// Each message becomes a TASK_DISPATCH of the fleet protocol, which a host takes on a pipe, and its
// TASK_RESULT is the answer.
//
//	POST /jsonrpc ─ rpc.go ─ message.go ─ tasks.go ─ TASK_DISPATCH ─► link.go ─► host
//	answer, stream ◄─ spelling.go ◄─ task.go ◄────── TASK_RESULT ◄──────────────┘
//
//	a2a.go       options, the agent and its end   card.go      what it says of itself
//	rpc.go       JSON-RPC, its errors             methods.go   what each method does; streams
//	message.go   what a message asks for
//	tasks.go     the tasks that are known         task.go      one task and its events
//	spelling.go  how each version writes it       reply.go     results that are posted later
//	link.go      the host on its pipe
package a2a

import (
	"cmp"
	"context"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/rs/zerolog"

	wire "a2e/protocol/a2a"
)

// Options is what an Agent gets from outside.
type Options struct {
	// Serve runs a host that speaks the fleet protocol, and nothing else, until its input ends. ctx ends when
	// it is to end in haste.
	Serve func(ctx context.Context, in io.Reader, out io.Writer) error
	// Admit returns whom the token of a request is for, "" = nobody in particular; false = it is not valid. Tasks are
	// shown to whom they are of. nil = anybody is admitted.
	Admit func(token string) (agent string, ok bool)

	Version  string        // of this program
	Secured  bool          // requests need a bearer token
	Patience time.Duration // how long a message waits for the end of its task; 0 = 25 s
	MaxBytes int           // of a message; 0 = 16 MiB
	ReplyURL string        // where results that came too late are posted, as SendMessage; "" = nowhere
	ReplyKey string        // the bearer token for that
	Log      zerolog.Logger
}

// defaultPatience is shorter than the 30 s after which simple orchestrators give up.
const defaultPatience = 25 * time.Second

// Agent is the endpoint. It is an http.Handler of the paths in protocol/a2a.
type Agent struct {
	opts  Options
	link  *link
	tasks tasks
	goes  sync.WaitGroup // replies
	ctx   context.Context
	stop  context.CancelFunc
}

// New makes the endpoint, and starts its host.
func New(opts Options) *Agent {
	opts.Patience = cmp.Or(opts.Patience, defaultPatience)
	opts.MaxBytes = cmp.Or(opts.MaxBytes, 16<<20)
	a := &Agent{opts: opts, tasks: newTasks()}
	a.ctx, a.stop = context.WithCancel(context.Background())
	a.link = newLink(opts.Serve, opts.Log)
	return a
}

// Close ends the input of the host, which gives its tasks some time to end, and waits for its end. Once ctx has
// ended, the host ends in haste.
func (a *Agent) Close(ctx context.Context) {
	a.tasks.close()
	a.link.close(ctx)
	ended := make(chan struct{})
	go func() {
		a.goes.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
	}
	a.stop()
	<-ended
	replies.CloseIdleConnections()
}

// ServeHTTP implements http.Handler.
func (a *Agent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == wire.PathCard {
		a.serveCard(w, r)
		return
	}
	a.serveRPC(w, r)
}
