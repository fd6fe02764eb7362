// Package a2a serves the Agent2Agent protocol (A2A) over HTTP, in the spellings of its versions 1.0 and 0.3. Each
// message becomes a TASK_DISPATCH of the fleet protocol, which a host takes on a pipe. The host's TASK_RESULT is the
// answer.
//
//	POST /jsonrpc ─ rpc.go ─ message.go ─ tasks.go ─ TASK_DISPATCH ─► link.go ─► host
//	answer, stream ◄─ spelling.go ◄─ task.go ◄────── TASK_RESULT ◄──────────────┘
//
//	a2a.go       options, the agent and its end   card.go      the agent card
//	rpc.go       JSON-RPC, its errors             methods.go   what each method does; streams
//	message.go   what a message asks for
//	tasks.go     all known tasks                  task.go      one task and its events
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

// Options say how an Agent serves.
type Options struct {
	// Serve runs a host that speaks only the fleet protocol, until its input ends. When ctx ends, the host must end
	// quickly.
	Serve func(ctx context.Context, in io.Reader, out io.Writer) error
	// Admit returns the agent that the token of a request is for; "" = no particular agent, ok false = the token is not
	// valid. A task is shown only to the agent that it belongs to. nil = every request is admitted.
	Admit func(token string) (agent string, ok bool)

	Version  string        // of this program
	Secured  bool          // requests need a bearer token
	Patience time.Duration // how long a message waits for the end of its task; 0 = 25 s
	MaxBytes int           // of a message; 0 = 16 MiB
	ReplyURL string        // URL to which results that came too late are posted as SendMessage; "" = not posted
	ReplyKey string        // the bearer token for ReplyURL
	Log      zerolog.Logger
}

// defaultPatience is shorter than the 30 s after which simple orchestrators give up.
const defaultPatience = 25 * time.Second

// Agent is the endpoint. It is an http.Handler for the paths in protocol/a2a.
type Agent struct {
	opts  Options
	link  *link
	tasks tasks
	goes  sync.WaitGroup // replies
	ctx   context.Context
	stop  context.CancelFunc
}

// New makes the endpoint and starts its host.
func New(opts Options) *Agent {
	opts.Patience = cmp.Or(opts.Patience, defaultPatience)
	opts.MaxBytes = cmp.Or(opts.MaxBytes, 16<<20)
	a := &Agent{opts: opts, tasks: newTasks()}
	a.ctx, a.stop = context.WithCancel(context.Background())
	a.link = newLink(opts.Serve, opts.Log)
	return a
}

// Close ends the input of the host, which may then finish its tasks, and waits for the end of the host and the replies.
// When ctx ends, the host must end quickly, and replies are cancelled.
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
