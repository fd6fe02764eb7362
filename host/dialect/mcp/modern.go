package mcp

import (
	"cmp"
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/host"
	"a2e/host/dialect"
	"a2e/protocol"
)

// modernVersion is the first version of MCP without initialize. Each request names its version, client and
// capabilities, the server asks the client in its answers (see round), and only a client that listens gets
// notifications of changes (see listener).
const modernVersion = "2026-07-28"

// metaVersion is the member of _meta in which a request names its version.
const metaVersion = mcp.MetaKeyProtocolVersion

// modernMeta has the members of _meta in each request of such a version.
type modernMeta struct {
	Version string `json:"io.modelcontextprotocol/protocolVersion"`
	Client  struct {
		Name string `json:"name"`
	} `json:"io.modelcontextprotocol/clientInfo"`
	Offers capabilities `json:"io.modelcontextprotocol/clientCapabilities"`
	Level  string       `json:"io.modelcontextprotocol/logLevel"`
	Token  string       `json:"a2e/auth_token"`
}

// readMeta reads the modernMeta of a request; nil = its version begins with initialize.
func readMeta(params jsontext.Value) *modernMeta {
	raw := member(params, "_meta")
	if version := textOf(member(raw, metaVersion)); version < modernVersion {
		return nil
	}
	m := new(modernMeta)
	_ = json.Unmarshal(raw, m) // the go-sdk refuses members that do not fit
	return m
}

// admit begins the session with the first request of a client that does not send initialize.
func (s *server) admit(ctx context.Context, r *request) error {
	if r.meta == nil {
		return nil
	}
	host.HandOff(ctx) // begin may take a while
	s.opening.Lock()
	defer s.opening.Unlock()
	if s.session != nil {
		return nil
	}
	h := hello{Version: r.meta.Version, Client: r.meta.Client, Offers: r.meta.Offers}
	h.Meta.Token = r.meta.Token
	return s.begin(ctx, h)
}

// levelOf returns the lowest level of log messages that the client wants for a request; 0 = it wants none.
func (s *server) levelOf(r *request) int64 {
	if r.meta != nil {
		return levelNumber(r.meta.Level)
	}
	return s.level.Load()
}

// kind is the member that modern versions have in each result.
type kind struct {
	ResultType string `json:"resultType,omitempty"`
}

// complete marks the result as final, unless it has a type already, such as that of a question.
func (k *kind) complete() { k.ResultType = cmp.Or(k.ResultType, "complete") }

// cacheable has the members of modern versions in results that a client might keep. They tell the client not to keep
// the result, because lists and files change.
type cacheable struct {
	kind
	TTL   *int   `json:"ttlMs,omitempty"`
	Scope string `json:"cacheScope,omitempty"`
}

func (c *cacheable) complete() {
	c.kind.complete()
	c.TTL, c.Scope = new(int), "private"
}

// complete marks a result that is passed on as final, unless it has a type already.
func (r *rawResult) complete() {
	if member(r.raw, "resultType") == nil {
		r.raw = withMember(r.raw, `"resultType":"complete"`)
	}
}

// withMember returns a JSON object with one more member, text, at the beginning. For a value that is not an object it
// returns an object with this member alone.
func withMember(obj jsontext.Value, text string) jsontext.Value {
	if o, err := protocol.ParseObject(obj); err == nil && o.Len() > 0 {
		return append(jsontext.Value("{"+text+","), o.Raw()[1:]...)
	}
	return jsontext.Value("{" + text + "}")
}

// A modern client is asked in the answer to its request. It sends the request again with its answers to the questions:
//
//	tools/call ─► handler asks ─► {inputRequests, requestState}   the handler waits
//	tools/call {inputResponses, requestState} ─► handler goes on ─► result, or it asks again
//
// maxRounds is how many handlers may wait in this way.
const maxRounds = 100

// round is a handler that may ask the client, together with all requests that it serves one after the other.
type round struct {
	state  string // the requestState by which the client names the round
	method string
	ctx    context.Context
	stop   context.CancelCauseFunc
	done   <-chan outcome
	news   dialect.Bell // rings when there may be questions

	mu   sync.Mutex // guards the fields below
	of   *request   // the request that is served now, or was served last
	open []*question
}

// roundKey is the context key of the round of a handler.
type roundKey struct{}

// retry has the members of a request's params that continue a round.
type retry struct {
	State string                    `json:"requestState"`
	Said  map[string]jsontext.Value `json:"inputResponses"`
}

// asksBack reports whether the answer to a method may be a question.
func asksBack(method string) bool {
	return slices.Contains([]string{methodCallTool, methodGetPrompt, methodReadResource}, method)
}

// handling is a handler bound to the request that it serves.
type handling func(context.Context) (mcp.Result, error)

// start runs a handler on a goroutine of its own. The channel receives its outcome.
func (s *server) start(ctx context.Context, method string, handle handling) <-chan outcome {
	done := make(chan outcome, 1)
	go func() {
		// the outcome if handle ends the goroutine
		out := outcome{err: protocol.Errorf(protocol.CodeRuntimeError, "the plugin broke off %s", method)}
		defer func() {
			if v := recover(); v != nil {
				s.opts.Log.Error().Str("method", method).Str("panic", fmt.Sprint(v)).
					Bytes("stack", debug.Stack()).Msg("a handler panicked")
				out = outcome{err: protocol.Errorf(protocol.CodeRuntimeError,
					"the host failed while it handled %s; its log has the details", method)}
			}
			done <- out
		}()
		result, err := handle(ctx)
		out = outcome{result, err}
	}()
	return done
}

// wait waits for a handler, at most for grace after its context has ended. Then it counts the handler as abandoned.
func (s *server) wait(ctx context.Context, done <-chan outcome) outcome {
	select {
	case out := <-done:
		return out
	case <-ctx.Done():
	}
	select {
	case out := <-done:
		return out
	case <-time.After(grace):
	}
	s.abandoned.Add(1)
	go func() { // ends with the handler
		<-done
		s.abandoned.Add(-1)
	}()
	return outcome{err: context.Cause(ctx)}
}

// inRounds serves a request whose handler may ask the client.
func (s *server) inRounds(ctx context.Context, r *request, handle handling) (mcp.Result, error) {
	if n := s.abandoned.Load(); n >= maxAbandoned {
		return nil, protocol.Errorf(protocol.CodeOverloaded, "%s still run after their timeout or cancel; wait until "+
			"some end, or restart the host", protocol.Count(n, "request"))
	}
	var again retry
	if err := json.Unmarshal(r.params, &again); err != nil {
		return nil, rpcErrorf(codeInvalidParams,
			"inputResponses should be an object of answers, requestState the text that came with the questions")
	}
	var rd *round
	if again.State != "" {
		if rd = s.resume(r, again); rd == nil {
			return nil, rpcErrorf(codeInvalidParams, "requestState does not belong to a waiting request; send the "+
				"request again without it")
		}
	} else {
		rd = s.newRound(r)
		rd.done = s.start(context.WithValue(rd.ctx, roundKey{}, rd), r.method, handle)
	}
	for {
		if res := s.ask(rd); res != nil {
			return res, nil
		}
		select {
		case <-rd.news:
			continue
		case out := <-rd.done:
			rd.stop(nil)
			return out.result, out.err
		case <-rd.ctx.Done():
		case <-ctx.Done():
			rd.stop(context.Cause(ctx))
		}
		out := s.wait(rd.ctx, rd.done)
		return out.result, out.err
	}
}

func (s *server) newRound(r *request) *round {
	rd := &round{state: uuid.NewString(), method: r.method, of: r, news: dialect.NewBell()}
	var cancel context.CancelFunc
	rd.ctx, cancel = context.WithTimeoutCause(s.session.ctx, s.opts.CallTimeout+grace, errLate)
	rd.ctx, rd.stop = context.WithCancelCause(rd.ctx)
	context.AfterFunc(rd.ctx, func() {
		cancel()
		s.unpark(rd)
	})
	return rd
}

// unpark removes a round from those that wait for the client; false = it did not wait.
func (s *server) unpark(rd *round) bool {
	waits := s.rounds.CompareAndDelete(rd.state, rd)
	if waits {
		s.parked.Add(-1)
	}
	return waits
}

// resume returns the round that a request continues, and passes the client's answers to it; nil = no such round waits.
func (s *server) resume(r *request, again retry) *round {
	found, _ := s.rounds.Load(again.State)
	rd, _ := found.(*round)
	if rd == nil || rd.method != r.method || !s.unpark(rd) {
		return nil
	}
	rd.mu.Lock()
	defer rd.mu.Unlock()
	rd.of.next.Store(r)
	rd.of = r
	rd.open = slices.DeleteFunc(rd.open, func(q *question) bool {
		said, ok := again.Said[q.id]
		if ok {
			q.answer <- reply{result: said}
		}
		return ok
	})
	return rd
}

// inputRequired is a result that asks the client.
type inputRequired struct {
	mcp.ResultBase
	kind
	Requests map[string]inputRequest `json:"inputRequests"`
	State    string                  `json:"requestState"`
}

type inputRequest struct {
	Method string         `json:"method"`
	Params jsontext.Value `json:"params"`
}

// ask returns the questions of a round as a result, and lets the round wait for the client; nil = there are no
// questions.
func (s *server) ask(rd *round) mcp.Result {
	rd.mu.Lock()
	defer rd.mu.Unlock()
	if len(rd.open) == 0 {
		return nil
	}
	res := &inputRequired{
		kind: kind{"input_required"}, Requests: make(map[string]inputRequest, len(rd.open)),
		State: rd.state,
	}
	for _, q := range rd.open {
		res.Requests[q.id] = inputRequest{q.method, q.params}
	}
	s.parked.Add(1)
	s.rounds.Store(rd.state, rd)
	if rd.ctx.Err() != nil {
		s.unpark(rd)
	}
	return res
}

// questionIn asks the client in the answer to the request that the round serves.
func (s *server) questionIn(ctx context.Context, rd *round, method string, params []byte) (jsontext.Value, error) {
	if s.parked.Load() >= maxRounds {
		return nil, protocol.Errorf(protocol.CodeOverloaded, "%d requests wait for what the client says", maxRounds)
	}
	q := &question{id: uuid.NewString(), method: method, params: params, answer: make(chan reply, 1)}
	rd.mu.Lock()
	rd.open = append(rd.open, q)
	rd.mu.Unlock()
	rd.news.Ring()
	select {
	case r := <-q.answer:
		return r.result, nil
	case <-ctx.Done():
	case <-rd.ctx.Done():
	}
	rd.mu.Lock()
	rd.open = slices.DeleteFunc(rd.open, func(other *question) bool { return other == q })
	rd.mu.Unlock()
	if ctx.Err() == nil {
		return nil, context.Cause(rd.ctx)
	}
	return nil, context.Cause(ctx)
}

// listener is a request subscriptions/listen under way: it says which notifications a modern client wants.
type listener struct {
	id   jsontext.Value // of the request
	want mcp.NotificationSubscriptions
}

// listen serves subscriptions/listen. It answers when the request is cancelled or the client is gone, or at once if the
// client listens to nothing.
func (s *server) listen(ctx context.Context, r *request, params mcp.Params) (mcp.Result, error) {
	asked := params.(*mcp.SubscriptionsListenParams).Notifications
	if asked == nil {
		return nil, rpcErrorf(codeInvalidParams, `"notifications" is required; it says what to listen to`)
	}
	if s.listening.Add(1) > maxListeners {
		defer s.listening.Add(-1)
		return nil, protocol.Errorf(protocol.CodeOverloaded,
			"%d subscriptions are open, which is the most there may be; end one first", maxListeners)
	}
	defer s.listening.Add(-1)
	l := &listener{id: r.id, want: *asked}
	l.want.ResourceSubscriptions = nil
	l.want.ResourcesListChanged = asked.ResourcesListChanged && s.hasServers()
	for _, uri := range asked.ResourceSubscriptions {
		if s.follow(ctx, uri) == nil { // the acknowledgement names only resources that could be subscribed to
			l.want.ResourceSubscriptions = append(l.want.ResourceSubscriptions, uri)
		}
	}
	want, err := json.Marshal(l.want)
	if err != nil {
		return nil, err
	}
	s.listeners.Store(l, l)
	defer s.listeners.Delete(l)
	s.tell(r, notice(notifyListening, l.stamp(append(append(jsontext.Value(`{"notifications":`), want...), '}'))))
	host.ReleaseSlot(ctx)
	if want := l.want; want.ToolsListChanged || want.PromptsListChanged || want.ResourcesListChanged ||
		want.ResourceSubscriptions != nil {
		<-ctx.Done()
	}
	for _, uri := range l.want.ResourceSubscriptions {
		s.unfollow(context.WithoutCancel(ctx), uri)
	}
	return &rawResult{raw: l.stamp(jsontext.Value("{}"))}, nil
}

// stamp adds the id of the listener's request to the _meta of params or of a result.
func (l *listener) stamp(params jsontext.Value) jsontext.Value {
	return withMember(params, `"_meta":{"`+mcp.MetaKeySubscriptionID+`":`+string(l.id)+`}`)
}

// notify sends a notification to the client. A modern client gets it once for each listener that wants it.
func (s *server) notify(method string, params jsontext.Value, wanted func(mcp.NotificationSubscriptions) bool) {
	if !s.isModern.Load() {
		s.out.Send(notice(method, params))
		return
	}
	s.listeners.Range(func(key, _ any) bool {
		if l := key.(*listener); wanted(l.want) {
			s.out.Send(notice(method, l.stamp(params)))
		}
		return true
	})
}

// notifyChanged tells the client that a list has changed.
func (s *server) notifyChanged(method string) {
	s.notify(method, nil, func(want mcp.NotificationSubscriptions) bool {
		switch method {
		case notifyToolsChanged:
			return want.ToolsListChanged
		case notifyPromptsChanged:
			return want.PromptsListChanged
		}
		return want.ResourcesListChanged
	})
}

// uriParams returns the params of resources/updated and resources/unsubscribe.
func uriParams(uri string) jsontext.Value {
	return append(protocol.AppendString([]byte(`{"uri":`), uri), '}')
}
