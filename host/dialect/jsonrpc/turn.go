package jsonrpc

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/google/uuid"

	"a2e/host"
	"a2e/host/dialect"
	"a2e/protocol"
	"a2e/protocol/fleet"
	"a2e/protocol/jsonrpc"
)

// pending is a message on its way to the worker.
type pending struct {
	id     string
	text   string
	images []image
	at     string
	steers bool            // it was to steer the worker
	ready  <-chan struct{} // closed when the sender was answered
}

// turn is a message that a worker works on.
type turn struct {
	id    string
	stop  context.CancelCauseFunc
	steer chan host.Steering
	done  chan struct{} // closed when the worker has ended

	// The two fields below are guarded by Front.mu.
	over    bool            // the worker has ended
	stopped <-chan struct{} // closed when the client was told that it is stopped; nil = it is not

	taking sync.Mutex // held while a text is given to the worker, and until it is in the history
}

func errInterrupted() *protocol.Error {
	return protocol.Errorf(protocol.CodeCancelled, "interrupted by session.interrupt")
}

// startLocked has a worker begin with a message.
func (f *Front) startLocked(s *session, m *pending) *turn {
	ctx, stop := context.WithCancelCause(f.working)
	t := &turn{id: uuid.NewString(), stop: stop, steer: make(chan host.Steering), done: make(chan struct{})}
	s.turn = t
	f.work.Go(func() {
		defer stop(nil)
		f.run(ctx, s, t, m)
	})
	return t
}

// run is a turn from its message to its end, after which the next one begins.
func (f *Front) run(ctx context.Context, s *session, t *turn, m *pending) {
	<-m.ready
	f.mu.Lock()
	if s.Title == "" {
		s.Title = titleOf(m.text)
	}
	f.mu.Unlock()
	f.tellStatus(s)
	brief := f.brief(ctx, s, m)
	f.note(s, message{ID: m.id, Role: roleUser, Text: m.text, Images: m.images})
	result, err := f.do(ctx, s, t, brief)
	close(t.done)
	t.taking.Lock()
	f.mu.Lock()
	t.over = true // a client that sends when it is told of the end need not say enqueue
	stopped := t.stopped
	f.mu.Unlock()
	t.taking.Unlock()
	if stopped != nil {
		<-stopped
	}
	f.tellEnd(ctx, s, t, result, err)
	f.mu.Lock()
	s.turn = nil
	var lost int
	if f.cut {
		lost, s.queue = len(s.queue), nil
	} else if len(s.queue) > 0 {
		next := s.queue[0]
		s.queue = slices.Delete(s.queue, 0, 1)
		f.startLocked(s, next)
	}
	idle := s.turn == nil
	f.mu.Unlock()
	if lost > 0 {
		f.event(jsonrpc.SessionError, map[string]any{"session_id": s.ID, "turn_id": nil, "code": "shutdown", "message": fmt.Sprintf("the host ends; %d waiting messages were not given to the worker", lost)})
	}
	if idle {
		f.tellStatus(s)
	}
}

// do has the worker work.
func (f *Front) do(ctx context.Context, s *session, t *turn, brief string) (result *fleet.Result, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = protocol.Errorf(protocol.CodeRuntimeError, "the worker's plugin panicked")
			f.logger().Error().Str("panic", fmt.Sprint(v)).Msg("a worker's plugin panicked")
		}
	}()
	pool, err := f.pool()
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	worker := cmp.Or(s.Model, f.model)
	f.mu.Unlock()
	chunks := 0
	task := host.WorkerTask{Worker: worker, Steer: t.steer}
	task.Type, task.ProtocolVersion, task.Brief = fleet.TypeDispatch, fleet.Version, brief
	task.Task = fleet.Task{TaskID: t.id, Priority: fleet.PriorityNormal, ReplySchema: fleet.ReplyProse}
	var out gate
	defer out.close() // nothing is streamed after the end
	task.Output = func(stream, line string) {
		out.pass(func() {
			f.event(jsonrpc.StreamChunk, map[string]any{"session_id": s.ID, "turn_id": t.id, "stream": stream, "text": line + "\n", "seq": chunks})
			chunks++
		})
	}
	result, err = pool.RunTask(dialect.Merge(f.enter(s), ctx), task)
	if result == nil && err == nil {
		err = protocol.Errorf(protocol.CodeRuntimeError, "the worker's plugin gave no result")
	}
	return result, err
}

// tellEnd tells how a turn ended.
func (f *Front) tellEnd(ctx context.Context, s *session, t *turn, r *fleet.Result, err error) {
	cause := context.Cause(ctx)
	if r != nil && r.Summary != "" {
		f.note(s, message{ID: uuid.NewString(), Role: roleAssistant, Text: r.Summary, Tokens: r.TokensSpent})
	}
	told := map[string]any{"session_id": s.ID, "turn_id": t.id}
	switch {
	case cause != nil && (err != nil || r.Status != fleet.StatusDone):
		told["message"] = jsonrpc.From(cause).Message
		f.event(jsonrpc.SessionInterrupted, told)
	case err != nil:
		e := jsonrpc.From(err)
		told["message"], told["code"] = e.Message, codeOf(e)
		f.event(jsonrpc.SessionError, told)
	case r.Status == fleet.StatusBlocked:
		told["message"], told["code"] = "the worker is blocked", "blocked"
		if r.BlockedReason != nil {
			told["message"] = *r.BlockedReason
		}
		f.event(jsonrpc.SessionError, told)
	case r.Status == fleet.StatusError:
		told["message"], told["code"] = cmp.Or(r.Error, r.Summary, "the worker failed"), "worker_error"
		f.event(jsonrpc.SessionError, told)
	default:
		told["status"], told["summary"], told["next_steps"] = r.Status, r.Summary, r.NextSteps
		told["tokens_spent"], told["tokens_estimated"] = r.TokensSpent, r.TokensEstimated
		told["artifacts"], told["remaining"] = r.Artifacts, orNull(r.Remaining)
		f.event(jsonrpc.SessionCompleted, told)
	}
}

// pool returns the plugin with the workers.
func (f *Front) pool() (host.WorkerPool, error) {
	pool := host.ServicesOf(f.ctx).Workers()
	if pool == nil || len(pool.Workers()) == 0 {
		return nil, jsonrpc.Errorf(jsonrpc.CodeInternal, "no worker is configured here; add one to the multi_agent plugin's workers").With("code", "no_worker")
	}
	return pool, nil
}

// brief makes what the worker is told: the end of the history, and the message.
func (f *Front) brief(ctx context.Context, s *session, m *pending) string {
	var b strings.Builder
	within, cancel := context.WithTimeout(ctx, f.opts.StoreWait)
	defer cancel()
	earlier, total, err := f.history.messages(within, s.ID, contextMessages, -contextMessages)
	if err != nil && ctx.Err() == nil {
		f.logger().Warn().Err(err).Msg("the history cannot be read; the worker does not see it")
	}
	from, bytes := len(earlier), 0
	for ; from > 0; from-- {
		e := &earlier[from-1]
		if most := f.opts.MaxContext / 4; len(e.Text) > most { // one must not push out all others
			e.Text = strings.ToValidUTF8(e.Text[:most], "") + "… (cut)"
		}
		if bytes += len(e.Text); bytes > f.opts.MaxContext {
			break
		}
	}
	if from < len(earlier) {
		b.WriteString("The conversation so far, the oldest message first")
		if left := total - len(earlier) + from; left > 0 {
			fmt.Fprintf(&b, " (%d earlier ones are left out)", left)
		}
		b.WriteString(":\n\n")
		for _, e := range earlier[from:] {
			fmt.Fprintf(&b, "[%s]\n%s\n\n", e.Role, e.Text)
		}
		b.WriteString("[user, now]\n")
	}
	b.WriteString(m.text)
	if len(m.images) > 0 {
		b.WriteString("\n\nImages, as files in the workspace:\n")
		for _, i := range m.images {
			fmt.Fprintf(&b, "- %s (%s, %d bytes)\n", i.Path, i.MIME, i.Bytes)
		}
	}
	return b.String()
}

// contextMessages is how many earlier messages a worker is told at most.
const contextMessages = 50
