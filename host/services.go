package host

import (
	"context"
	"strings"

	"a2e/protocol"
)

// Services is what a plugin may ask of its host and, through it, of the other plugins. The host passes it to Start.
// It is safe for concurrent use. A nil *Services belongs to no host: it finds nothing, counts nothing, and refuses
// requests.
//
// A context says on whose behalf something is asked: pass the context of the request, or one made by InSession.
type Services struct {
	host      *Host
	weigher   Weigher     // nil = none
	overrider Overrider   // nil = nobody keeps any overrides
	short     ShortCaller // nil = the time of all calls may be bounded
}

// newServices makes the Services of h. It looks up the plugins once that are asked for each tool of a list.
func newServices(h *Host) *Services {
	s := &Services{host: h}
	s.weigher, s.overrider, s.short = First[Weigher](s), First[Overrider](s), First[ShortCaller](s)
	return s
}

// ServicesOf returns the services of the host that a context belongs to: the context of a request or of a session,
// or one that the host passed to a plugin or dialect. It returns nil for any other context.
func ServicesOf(ctx context.Context) *Services {
	if h, ok := ctx.Value(hostKey{}).(*Host); ok {
		return h.services
	}
	return nil
}

// Call sends a request to the host's plugins, as the agent whose request or session ctx belongs to would: routing,
// priorities, defaults, time limit and counting are the same. It takes no slot of max_parallel and waits in no
// order. req is encoded as the body of the message, and the answer is decoded into resp; a *protocol.Object or
// *jsontext.Value gets it as it is. Events go to emit; nil = nobody. The error is a *protocol.Error; if ctx ended
// first, it is made from the cause.
//
// Which capabilities the agent asked for in its handshake does not matter here: the config says what a plugin may
// use.
func (s *Services) Call(ctx context.Context, t protocol.Type, req, resp any, emit Emitter) error {
	if s == nil {
		return protocol.Errorf(protocol.CodeRuntimeError, "%s needs a host", t)
	}
	return s.host.nest(ctx, t, req, resp, emit)
}

// Ask sends a request to the agent, on behalf of the request or session that ctx belongs to, or else of the current
// session. It decodes the answer into resp (a *protocol.Object gets the whole message). It waits until ctx ends. An
// answer of type `error` is returned as the error.
func (s *Services) Ask(ctx context.Context, t protocol.Type, req, resp any) error {
	if s == nil {
		return protocol.Errorf(protocol.CodeRuntimeError, "%s needs a session to ask in", t)
	}
	return s.host.ask(ctx, t, req, resp)
}

// Push sends a message that belongs to no request to the agent of the handshake's session, such as a notification
// of an MCP server, and to the dialects that are a PushTaker. It waits while 256 KiB of pushes are not yet written.
// The error is ErrStreamClosed if there is no such session, or if it lacks the capability that messages of this
// type belong to.
func (s *Services) Push(t protocol.Type, body any) error {
	if s == nil {
		return ErrStreamClosed
	}
	return s.host.push(t, body)
}

// CountCall passes the outcome of a call to the plugin that counts calls, if there is one. Plugins call it once for
// each call of a component, with the context of the request.
func (s *Services) CountCall(ctx context.Context, r CallOutcome) {
	if s == nil || s.host.callCounter == nil {
		return
	}
	if _, plain := ctx.(*call); !plain { // a request's own context has none of these keys
		if WantsOriginals(ctx) { // a request that only looks at a component does not use it
			return
		}
		if c, ok := ctx.Value(countedKey{}).(*countedCall); ok && r.Kind == KindTool && r.Component == c.tool {
			c.done.Store(true)
		}
	}
	if c := callFrom(ctx); c != nil && r.Correlation == "" {
		r.Correlation, _ = c.reqID().Str()
	}
	s.host.callCounter.CountCall(r)
}

// Weigher returns the plugin that knows how well components did, or nil if there is none.
func (s *Services) Weigher() Weigher {
	if s == nil {
		return nil
	}
	return s.weigher
}

// Chooser returns the plugin that learns which component is the best, or nil if there is none.
func (s *Services) Chooser() Chooser {
	if s == nil {
		return nil
	}
	return s.host.chooser
}

// Override returns what replaces what a component says about itself, or nil if nothing does. It is quick. Plugins
// need not call it for lists and for the time limits of tools: the host applies these overrides.
func (s *Services) Override(kind, component string) *Override {
	if !s.KeepsOverrides() {
		return nil
	}
	return s.overrider.Overrides(kind)[component]
}

// KeepsOverrides reports whether there is a plugin that keeps overrides.
func (s *Services) KeepsOverrides() bool { return s != nil && s.overrider != nil }

// Overrides returns the overrides of the components of a kind, by name. It may be called only if KeepsOverrides.
func (s *Services) Overrides(kind string) map[string]*Override { return s.overrider.Overrides(kind) }

// ShortTool reports whether a ShortCaller has a tool of this name.
func (s *Services) ShortTool(name string) bool { return s.short != nil && s.short.ShortTool(name) }

// Tasks returns the tasks that the config declares for tools, by the names of the tools.
func (s *Services) Tasks() map[string]string { return s.host.groups.tasks }

// Instructions returns the instructions of a skill without overrides; false = no plugin has such a skill with
// instructions that an Override can replace.
func (s *Services) Instructions(skill string) (text string, ok bool) {
	for _, i := range Each[Instructor](s) {
		if text, ok := i.Instructions(skill); ok {
			return text, true
		}
	}
	return "", false
}

// Tool returns the details of a tool beyond its definition; false = no plugin knows the tool.
func (s *Services) Tool(name string) (ToolDetail, bool) {
	for _, d := range Each[ToolDescriber](s) {
		if detail, ok := d.DescribeTool(name); ok {
			return detail, true
		}
	}
	return ToolDetail{}, false
}

// ToolState returns a state which stays equal, by slices.Equal, as long as tool/list says the same; nil = that is
// not known. Like the list, it waits for tools that are on their way.
func (s *Services) ToolState(ctx context.Context) (state []any) {
	if s.KeepsOverrides() && len(s.Overrides(KindTool)) > 0 {
		return nil
	}
	for _, r := range s.host.router.at(protocol.TypeToolListReq).routes {
		if _, ok := As[ToolKeeper](r.plugin); !ok {
			return nil
		}
	}
	for _, p := range s.Plugins() {
		if l, ok := As[ToolKeeper](p); ok {
			state = append(state, l.ToolState(ctx))
		} else if _, describes := As[ToolDescriber](p); describes {
			return nil
		}
	}
	return state
}

// Changes returns the file that a call of a tool changes, relative to the workspace, with slashes. It returns "" if
// the call changes no file, if nobody knows which one, or if the file is outside of the workspace.
func (s *Services) Changes(tool string, args protocol.Object) string {
	if s == nil {
		return ""
	}
	call, err := protocol.ParseObject(append(append(append(protocol.AppendString([]byte(`{"tool_name":`), tool),
		`,"arguments":`...), args.Raw()...), '}'))
	if err != nil {
		return ""
	}
	for _, c := range s.host.router.at(protocol.TypeToolCallReq).claimsOfRoutes(call) {
		if at, file := strings.CutPrefix(c.Key, protocol.KeyWorkspace); file && c.Access == protocol.Exclusive {
			return strings.TrimSuffix(at, "/")
		}
	}
	return ""
}

// Checkpoint keeps the state of the workspace before a plugin changes it without a request that says so, or for a
// tool of its own (see ToolDescriber). before says what comes next. If no checkpoints are kept, it does nothing. A
// checkpoint that fails is an error only if the config requires checkpoints; otherwise it is logged.
func (s *Services) Checkpoint(ctx context.Context, before string) error {
	if !s.KeepsCheckpoints() {
		return nil
	}
	HandOff(ctx)
	_, err := s.host.opts.Checkpoints.Take(ctx, before)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case s.host.opts.NeedCheckpoints:
		return protocol.Errorf(protocol.CodeRuntimeError, "the request was refused, since no checkpoint could be "+
			"made before it (checkpoints.required): %w", err)
	}
	s.host.opts.Log.Warn().Err(err).Str("before", before).Msg("no checkpoint was made; the next changes cannot be " +
		"undone")
	return nil
}

// KeepsCheckpoints reports whether Checkpoint does anything.
func (s *Services) KeepsCheckpoints() bool { return s != nil && s.host.opts.Checkpoints != nil }

// Files returns the plugins with files of their own.
func (s *Services) Files() []FileSource { return Each[FileSource](s) }

// Plugins returns all plugins by priority, as they were passed to the host; see As.
func (s *Services) Plugins() []Plugin {
	if s == nil {
		return nil
	}
	return s.host.opts.Plugins
}

// knownKey is the context key that WithKnown sets.
type knownKey struct{}

// WithKnown returns a context for requests that want what is known now: they do not wait for a list that is on its
// way, such as that of a server which is being connected.
func WithKnown(ctx context.Context) context.Context {
	return context.WithValue(ctx, knownKey{}, true)
}

// WantsKnown reports whether a context comes from WithKnown.
func WantsKnown(ctx context.Context) bool { return ctx.Value(knownKey{}) != nil }

// Ready waits until every plugin knows what it serves, or ctx has ended.
func (s *Services) Ready(ctx context.Context) {
	for _, r := range Each[Readier](s) {
		r.Ready(ctx)
	}
}

// As returns p as a T, or the first plugin that p wraps which is a T; false = there is none.
func As[T any](p Plugin) (T, bool) {
	for {
		if t, ok := p.(T); ok {
			return t, true
		}
		w, ok := p.(interface{ Unwrap() Plugin })
		if !ok {
			var none T
			return none, false
		}
		p = w.Unwrap()
	}
}

// First returns the first plugin, by priority, that is a T, or the zero T if there is none. The plugin may not have
// started yet, or may be closed.
func First[T any](s *Services) (found T) {
	for _, p := range s.Plugins() {
		if t, ok := As[T](p); ok {
			return t
		}
	}
	return found
}

// Each returns every plugin, by priority, that is a T.
func Each[T any](s *Services) (all []T) {
	for _, p := range s.Plugins() {
		if t, ok := As[T](p); ok {
			all = append(all, t)
		}
	}
	return all
}
