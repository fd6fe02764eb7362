package tools

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"a2e/host"
	"a2e/host/child/spill"
	"a2e/host/guard/redact"
	"a2e/host/schema"
	"a2e/protocol"
)

// Kind is where a tool comes from; `filter_kind` of tool/list/req matches it.
type Kind string

// The origins of protocol/README.md, section 7.
const (
	KindBuiltin Kind = "builtin"
	KindCommand Kind = "command"
	KindMCP     Kind = "mcp"
	KindToolkit Kind = "toolkit"
)

// Tool is one tool of a Set. The values that it refers to must not change once it is in the set.
type Tool struct {
	Def  protocol.ToolDefinition // as tool/list shows it
	Kind Kind
	// Detail is the result of DescribeTool. An empty InputSchema is replaced by one made from
	// Def.InputParameters; Def.Idempotent makes the tool idempotent, too.
	Detail host.ToolDetail
	// Timeout bounds one call; 0 = only the request bounds it.
	Timeout time.Duration
	// Denied says why the tool may not be called, as the end of a sentence about the tool ("is
	// withheld: …"); a denied tool is not listed. "" = it may be called.
	Denied string
	// Files returns which files of the workspace a call uses, and how; nil = none that matter to
	// other calls. The arguments are not checked yet.
	Files func(args protocol.Object) []File
	// Check checks the arguments; the error is a *protocol.Error. nil = they are checked against
	// Def.InputParameters, which have to be valid only in this case.
	Check func(args protocol.Object) error
	// Call runs the tool. An error means that it could not run: a *protocol.Error is
	// answered as it is, an error of ctx as the reason that stopped the call, any other as
	// tool_error. Call may be slow: unless the tool is quick, it never runs on the goroutine
	// that reads requests. args are valid until Call returns.
	Call func(ctx context.Context, args protocol.Object, emit host.Emitter) (*Outcome, error)

	quick bool // waits on nothing outside of the process: the reading goroutine may run it
	short bool // quick, and does little for any arguments: it needs no time limit
}

// Outcome is the result of a tool that ran.
type Outcome struct {
	// Data is encoded as the result's `data`; a jsontext.Value must be valid JSON and is taken as
	// it is. Data longer than the limit of output is cut, except a protocol.Appender, which has
	// to bound itself.
	Data      any
	Summary   string // one line for a person; "" = none
	Truncated bool   // the tool had more data than Data holds
	Failed    bool   // the tool itself reports failure: `success:false`
	Failure   string // with Failed: why
	ExitCode  *int   // of a child process; nil = no process ran
}

// defaultMaxOutput is the limit on a result's data if the config sets none, in bytes.
const defaultMaxOutput = 1 << 20

// File is a file or folder of the workspace that a call uses; see host.FileClaim.
type File struct {
	Path   string
	Access protocol.Access
}

// SetOptions are the settings that all tools of a Set share.
type SetOptions struct {
	Name           string           // the plugin's, for errors
	MaxOutputBytes int              // of one result's data; 0 = 1 MiB
	StateDir       string           // folder that keeps longer output whole; "" = it is not kept
	Secrets        *redact.Set      // removed from the output that is kept; nil = no secrets
	Now            func() time.Time // nil = time.Now
	// Await, if set, waits for tools that are still loading. It is called with "" before the tools
	// are listed, and with the tool's name before a call of a tool that the set does not have. If
	// the tool is still missing afterwards, the call is answered with the error of Await, or with
	// unknown_tool if that is nil.
	Await func(ctx context.Context, tool string) error
	// Held makes requests that add or remove tools wait for earlier calls of these tools.
	Held bool
	// Unknown returns which files a call uses whose tool is not in the set yet; nil = none.
	Unknown func(tool string) []File
}

// Set answers tool/list/req and tool/call/req for the tools in it: search, settings,
// checked arguments, limits of time and output, and counting of calls are the same for
// all plugins that have tools. It is safe for concurrent use.
type Set struct {
	name      string
	maxOutput int
	spill     *spill.Keeper
	now       func() time.Time
	await     func(ctx context.Context, tool string) error // may be nil
	held      bool
	unknown   func(tool string) []File // may be nil
	content   atomic.Pointer[registry] // never nil; see registry
	late      func()                   // makes the content before its first use; nil = Replace sets it
	listed    func()                   // called at each list of tools; may be nil
	services  *host.Services           // set by Start
}

// Start implements host.Starter: it stores the services of the host. A plugin with tools embeds its set.
func (s *Set) Start(_ context.Context, services *host.Services) error {
	s.services = services
	return nil
}

// Close does nothing: a set holds nothing open.
func (s *Set) Close(context.Context) error { return nil }

// Services returns the services that Start stored, or nil before Start.
func (s *Set) Services() *host.Services { return s.services }

// NewSet makes a set without tools.
func NewSet(o SetOptions) *Set {
	s := &Set{
		name: o.Name, maxOutput: cmp.Or(max(o.MaxOutputBytes, 0), defaultMaxOutput), now: o.Now, await: o.Await,
		held: o.Held, unknown: o.Unknown,
	}
	s.spill = spill.New(o.StateDir, o.Secrets)
	if s.now == nil {
		s.now = time.Now
	}
	s.content.Store(new(registry))
	return s
}

// Replace replaces the whole content of the set by all, for the requests from now on; running
// calls go on. If a tool is not valid, the error names it and nothing changes.
func (s *Set) Replace(all []Tool) error {
	r, err := newRegistry(all)
	if err != nil {
		return fmt.Errorf("plugin %q: %w", s.name, err)
	}
	s.content.Store(r)
	return nil
}

// Later makes the set call all for its content when a request first needs it. It panics then if a tool is
// not valid. The caller calls Later before the first request, and does not call Replace.
func (s *Set) Later(all func() []Tool) {
	s.late = sync.OnceFunc(func() {
		if err := s.Replace(all()); err != nil {
			panic(err)
		}
	})
}

// registry returns the current content.
func (s *Set) registry() *registry {
	if s.late != nil {
		s.late()
	}
	return s.content.Load()
}

// Routes returns the routes of a plugin with these tools. A tool name that the set does not have may
// be another plugin's.
func (s *Set) Routes() []host.Route {
	return []host.Route{
		host.List(protocol.TypeToolListReq, s.list, protocol.MergeTools),
		host.Handle(protocol.TypeToolCallReq, s.call).Claims(s.claims),
	}
}

// claims returns what a call claims: its tool, and the files that it uses.
func (s *Set) claims(call protocol.Object) []protocol.Claim {
	name := call.Text("tool_name")
	tool := protocol.Claim{Key: protocol.KeyTools + name + "/", Access: protocol.Follows}
	if s.held {
		tool.Access = protocol.Shared
	}
	claims := []protocol.Claim{tool}
	var files []File
	switch t := s.registry().tools[name]; {
	case t == nil && s.unknown != nil:
		files = s.unknown(name)
	case t != nil && t.Files != nil:
		args, _ := call.Child("arguments")
		files = t.Files(args)
	}
	for _, f := range files {
		claims = append(claims, host.FileClaim(f.Path, f.Access))
	}
	return claims
}

// current returns the content for a request that names a tool ("" = a list), after Await gave loading
// tools time to arrive. why is the error of Await, for a tool that did not arrive.
func (s *Set) current(ctx context.Context, tool string) (content *registry, why error) {
	content = s.registry()
	if s.await != nil && content.tools[tool] == nil {
		why = s.await(ctx, tool)
		content = s.registry()
	}
	return content, why
}

// registry is the content of a Set, which does not change.
type registry struct {
	tools  map[string]*registeredTool // by name, the denied ones too
	listed []*registeredTool          // those that may be called, by name
	names  []string                   // of listed
}

// registeredTool is a tool in the registry.
type registeredTool struct {
	Tool
	params params // set only without Check
}

// newRegistry makes the registry of some tools.
func newRegistry(all []Tool) (*registry, error) {
	r := &registry{tools: make(map[string]*registeredTool, len(all))}
	for i := range all {
		if err := r.add(&all[i]); err != nil {
			return nil, fmt.Errorf("tool %q: %w", all[i].Def.Name, err)
		}
	}
	slices.SortFunc(r.listed, func(a, b *registeredTool) int { return strings.Compare(a.Def.Name, b.Def.Name) })
	for _, e := range r.listed {
		r.names = append(r.names, e.Def.Name)
	}
	return r, nil
}

// add checks one tool and adds it.
func (r *registry) add(t *Tool) error {
	e := &registeredTool{Tool: *t}
	switch {
	case t.Def.Name == "":
		return errors.New("a tool needs a name")
	case r.tools[t.Def.Name] != nil:
		return errors.New("the name is taken by another tool of this plugin")
	case t.Call == nil && t.Denied == "":
		return errors.New("nothing runs it: Call is missing")
	}
	if t.Check == nil {
		params, err := newParams(t.Def.InputParameters)
		if err != nil {
			return err
		}
		e.params = params
	}
	r.tools[t.Def.Name] = e
	if t.Denied == "" {
		r.listed = append(r.listed, e)
	}
	return nil
}

// fit checks arguments and returns them as the tool reads them.
func (t *registeredTool) fit(args protocol.Object) (protocol.Object, error) {
	if t.Check != nil {
		return args, t.Check(args)
	}
	return t.params.check(args)
}

// Tools returns the tools that Call runs, sorted by name, the deferred ones too.
func (p *Plugin) Tools() []protocol.ToolDefinition {
	listed := p.registry().listed
	defs := make([]protocol.ToolDefinition, len(listed))
	for i, t := range listed {
		defs[i] = t.Def
	}
	return defs
}

// ShortTool implements host.ShortCaller.
func (p *Plugin) ShortTool(name string) bool {
	t := p.registry().tools[name]
	return t != nil && t.short && t.Timeout == 0
}

// ReadOnly reports whether a tool changes nothing, whatever its arguments are.
func (p *Plugin) ReadOnly(name string) bool {
	t := p.registry().tools[name]
	return t != nil && t.Detail.ReadOnly
}

// Call runs one tool as tool/call/req does, for another part of the host. The error
// is a *protocol.Error, or that of ctx if it ended first. A tool that ran and
// failed is not an error.
func (p *Plugin) Call(ctx context.Context, name string, args protocol.Object) (*protocol.ToolResult, error) {
	resp, err := p.call(ctx, &protocol.ToolCallRequest{ToolName: name, Arguments: args}, host.Mute{})
	if err != nil {
		return nil, err
	}
	res, _, err := resp.ToolResult()
	return res, err
}

// list answers tool/list/req, sorted by name; the host applies the query.
func (s *Set) list(ctx context.Context, req *protocol.ToolListRequest, _ host.Emitter) (*protocol.ToolListResponse,
	error,
) {
	resp := &protocol.ToolListResponse{Tools: []protocol.ToolDefinition{}}
	content, _ := s.current(ctx, "")
	if s.listed != nil {
		s.listed()
	}
	for _, t := range content.listed {
		if t.wanted(req) {
			resp.Tools = append(resp.Tools, t.Def)
		}
	}
	return resp, nil
}

// kindNative is the public Python SDK's name for the built-in tools.
const kindNative = "native"

// wanted reports whether a tool passes the filters of a request.
func (t *registeredTool) wanted(req *protocol.ToolListRequest) bool {
	kind := req.FilterKind
	if strings.EqualFold(kind, kindNative) {
		kind = string(KindBuiltin)
	}
	return (kind == "" || strings.EqualFold(kind, string(t.Kind))) && wanted(&t.Def, req)
}

// wanted applies the filters that need only the definition: deferred tools and tags, not the kind.
func wanted(def *protocol.ToolDefinition, req *protocol.ToolListRequest) bool {
	if def.DeferLoading && !req.IncludeDeferred {
		return false
	}
	for _, tag := range req.FilterTags {
		if !slices.ContainsFunc(def.Tags, func(own string) bool { return strings.EqualFold(own, tag) }) {
			return false
		}
	}
	return true
}

// Narrow removes from the list of another program's tools those that a request filters out; the host ranks
// the rest by the query. changed reports whether it removed any.
func Narrow(resp *protocol.ToolListResponse, req *protocol.ToolListRequest) (changed bool) {
	n := len(resp.Tools)
	resp.Tools = slices.DeleteFunc(resp.Tools, func(def protocol.ToolDefinition) bool { return !wanted(&def, req) })
	return len(resp.Tools) < n
}

// ToolState implements host.ToolKeeper: it returns a value that differs after the content of the set is replaced.
func (s *Set) ToolState(ctx context.Context) any {
	content, _ := s.current(ctx, "")
	return content
}

// DescribeTool implements host.ToolDescriber: it returns the detail of a tool that may be called; false = no such tool
// has this name.
func (s *Set) DescribeTool(name string) (host.ToolDetail, bool) {
	t := s.registry().tools[name]
	if t == nil || t.Denied != "" {
		return host.ToolDetail{}, false
	}
	d := t.Detail
	d.Idempotent = d.Idempotent || t.Def.Idempotent
	if len(d.InputSchema) == 0 {
		d.InputSchema = schema.Object(t.Def.InputParameters, true)
	}
	return d, true
}
