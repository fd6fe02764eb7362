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

// Tool is one tool of a Set. What it refers to must not change afterwards.
type Tool struct {
	Def  protocol.ToolDefinition // what tool/list says of it
	Kind Kind
	// Detail is what DescribeTool says of it. An empty InputSchema is made from
	// Def.InputParameters; Def.Idempotent counts as well.
	Detail host.ToolDetail
	// Timeout bounds one call; 0 = only the request does.
	Timeout time.Duration
	// Denied says why the tool may not be called, as the end of a sentence about it ("is
	// withheld: …"), and then it is not listed; "" = it may be.
	Denied string
	// Files says which files of the workspace a call uses, and how; nil = none that matter to
	// others. The arguments were not checked.
	Files func(args protocol.Object) []File
	// Check reports whether arguments fit; the error is a *protocol.Error. nil holds them
	// against Def.InputParameters, which only then have to make sense.
	Check func(args protocol.Object) error
	// Call runs the tool. An error means that it could not run: a *protocol.Error is
	// answered as it is, one of ctx as what stopped the call, any other as tool_error. It
	// may take its time: it never runs on the goroutine that reads. args are valid until it
	// returns.
	Call func(ctx context.Context, args protocol.Object, emit host.Emitter) (*Outcome, error)

	quick bool // waits on nothing outside of the process: the reading goroutine may run it
	short bool // quick, and does little whatever it is given: no limit of time matters to it
}

// Outcome is what a tool that ran gives back.
type Outcome struct {
	// Data is encoded as the result's `data`: a jsontext.Value, valid JSON, as it is. What
	// is longer than the limit of output is cut, except for a protocol.Appender, which has
	// to know its own bounds.
	Data      any
	Summary   string // one line for a person; "" = none
	Truncated bool   // there was more
	Failed    bool   // the tool itself reports failure: `success:false`
	Failure   string // with Failed: why
	ExitCode  *int   // of a child process; nil = there was none
}

// defaultMaxOutput is the limit on a result's data where none is set.
const defaultMaxOutput = 1 << 20

// File is a file or folder of the workspace that a call uses; see host.FileClaim.
type File struct {
	Path   string
	Access protocol.Access
}

// SetOptions say what the tools of a Set have in common.
type SetOptions struct {
	Name           string           // the plugin's, for errors
	MaxOutputBytes int              // of one result's data; 0 = 1 MiB
	StateDir       string           // where longer output is kept whole; "" = nowhere
	Secrets        *redact.Set      // that what is kept there does not have; nil = there are none
	Now            func() time.Time // nil = time.Now
	// Await, if set, is called before the tools are listed, with "", and before a call of a
	// tool that is not there, with its name: for a plugin whose tools are still on their
	// way. Its error answers the call if the tool is not there after that either; nil = the
	// tool is unknown.
	Await func(ctx context.Context, tool string) error
	// Held has requests that bring tools, or take them away, wait for earlier calls of them.
	Held bool
	// Unknown says which files a call of a tool uses that is not there yet; nil = none.
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
	late      func()                   // makes the content before its first use; nil = Replace does
	listed    func()                   // hears of each list of tools; may be nil
	services  *host.Services           // set by Start
}

// Start takes what the set asks of the host; its plugin calls it when it is started, or embeds
// the set.
func (s *Set) Start(_ context.Context, services *host.Services) error {
	s.services = services
	return nil
}

// Close does nothing: a set holds nothing open.
func (s *Set) Close(context.Context) error { return nil }

// Services returns what Start was given; nil before.
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

// Replace makes all the whole content of the set, for the requests from now on; calls
// that run go on. The error names the tool that does not fit, and then nothing changes.
func (s *Set) Replace(all []Tool) error {
	r, err := newRegistry(all)
	if err != nil {
		return fmt.Errorf("plugin %q: %w", s.name, err)
	}
	s.content.Store(r)
	return nil
}

// Later has all make the content of the set when a request first needs it. The tools have to fit.
// The caller sets this before the set has a first request, and calls no Replace.
func (s *Set) Later(all func() []Tool) {
	s.late = sync.OnceFunc(func() {
		if err := s.Replace(all()); err != nil {
			panic(err)
		}
	})
}

// registry returns the content of now.
func (s *Set) registry() *registry {
	if s.late != nil {
		s.late()
	}
	return s.content.Load()
}

// Routes returns those of a plugin with these tools. A name that the set does not have may
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

// current returns the content for a request that names a tool, or "" for a list, after
// what is on its way had time to come. why is the error for a tool that did not.
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
	tools  map[string]*entry // by name, the denied ones too
	listed []*entry          // those that may be called, by name
	names  []string          // of listed
}

// entry is a tool in the registry.
type entry struct {
	Tool
	params params // with no Check
}

// newRegistry makes the registry of some tools.
func newRegistry(all []Tool) (*registry, error) {
	r := &registry{tools: make(map[string]*entry, len(all))}
	for i := range all {
		if err := r.add(&all[i]); err != nil {
			return nil, fmt.Errorf("tool %q: %w", all[i].Def.Name, err)
		}
	}
	slices.SortFunc(r.listed, func(a, b *entry) int { return strings.Compare(a.Def.Name, b.Def.Name) })
	for _, e := range r.listed {
		r.names = append(r.names, e.Def.Name)
	}
	return r, nil
}

// add takes one tool in.
func (r *registry) add(t *Tool) error {
	e := &entry{Tool: *t}
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

// fit checks arguments and gives them as the tool reads them.
func (t *entry) fit(args protocol.Object) (protocol.Object, error) {
	if t.Check != nil {
		return args, t.Check(args)
	}
	return t.params.check(args)
}

// Tools lists what Call takes, by name, the deferred ones too.
func (p *Plugin) Tools() []protocol.ToolDefinition {
	listed := p.set.registry().listed
	defs := make([]protocol.ToolDefinition, len(listed))
	for i, t := range listed {
		defs[i] = t.Def
	}
	return defs
}

// ShortTool implements host.ShortCaller.
func (p *Plugin) ShortTool(name string) bool {
	t := p.set.registry().tools[name]
	return t != nil && t.short && t.Timeout == 0
}

// ReadOnly reports whether a tool changes nothing, whatever its arguments are.
func (p *Plugin) ReadOnly(name string) bool {
	t := p.set.registry().tools[name]
	return t != nil && t.Detail.ReadOnly
}

// Call runs one tool as tool/call/req does, for another part of the host. The error
// is a *protocol.Error, or that of ctx when that ended first; a tool that ran and
// failed is no error.
func (p *Plugin) Call(ctx context.Context, name string, args protocol.Object) (*protocol.ToolResult, error) {
	resp, err := p.set.call(ctx, &protocol.ToolCallRequest{ToolName: name, Arguments: args}, host.Mute{})
	if err != nil {
		return nil, err
	}
	res, _, err := resp.ToolResult()
	return res, err
}

// list answers tool/list/req, by name: the host applies the query.
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

// kindNative is what the public Python SDK's pages call the built-in tools.
const kindNative = "native"

// wanted reports whether a tool passes the filters of a request.
func (t *entry) wanted(req *protocol.ToolListRequest) bool {
	kind := req.FilterKind
	if strings.EqualFold(kind, kindNative) {
		kind = string(KindBuiltin)
	}
	return (kind == "" || strings.EqualFold(kind, string(t.Kind))) && wanted(&t.Def, req)
}

// wanted looks at what a definition tells, so not at the kind.
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

// Narrow leaves in the whole list of another program's tools what a request asks for; the host ranks what is
// left by the query. changed reports whether resp is another.
func Narrow(resp *protocol.ToolListResponse, req *protocol.ToolListRequest) (changed bool) {
	n := len(resp.Tools)
	resp.Tools = slices.DeleteFunc(resp.Tools, func(def protocol.ToolDefinition) bool { return !wanted(&def, req) })
	return len(resp.Tools) < n
}

// DescribeTool implements host.ToolDescriber.
func (p *Plugin) DescribeTool(name string) (host.ToolDetail, bool) { return p.set.DescribeTool(name) }

// ToolState implements host.ToolKeeper.
func (p *Plugin) ToolState(ctx context.Context) any { return p.set.ToolState(ctx) }

// ToolState returns what tells two contents of the set apart.
func (s *Set) ToolState(ctx context.Context) any {
	content, _ := s.current(ctx, "")
	return content
}

// DescribeTool tells of a tool that may be called; false = there is none of that name.
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
