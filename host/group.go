package host

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"a2e/host/schema"
	"a2e/protocol"
)

const (
	// groupsAge is how old the list of tools may be from which the groups are made when a group is called.
	groupsAge = 5 * time.Second
	// maxGroup is how many tools a group has at most; further ones are left out.
	maxGroup = 256
)

// Groups has the names of components that serve the same purpose, in order, by the name of their group. A component
// is in one group at most.
type Groups map[string][]string

// Chooser is a plugin that chooses among components that serve the same purpose.
// Services.Chooser finds it.
type Chooser interface {
	// Choose returns the index of the component to call now. names is never empty. The caller calls done once, when
	// that call has ended.
	Choose(ctx context.Context, kind string, names []string) (at int, done func())
}

// groups has the tools that serve the same purpose: tools that declare the same task, and tools of a group in the
// config, for which the config declares the task. A call of the task is a call of any of its tools.
type groups struct {
	tasks   map[string]string // by the name of the tool, from the config
	current atomic.Pointer[Groups]

	listing chan struct{} // a lock: it has an entry while somebody lists the tools

	mu     sync.Mutex // guards the fields below
	asOf   time.Time  // of current; zero = the tools were not listed yet
	turns  int        // choices without a Chooser
	warned map[string]bool
}

func newGroups(config Groups) *groups {
	g := &groups{tasks: make(map[string]string), warned: make(map[string]bool), listing: make(chan struct{}, 1)}
	for task, names := range config {
		for _, name := range names {
			g.tasks[name] = task
		}
	}
	g.current.Store(&config)
	return g
}

// Groups returns the groups of components of a kind, tools or skills, as they are known now, or nil if there are
// none.
func (s *Services) Groups(ctx context.Context, kind string) Groups {
	if s == nil {
		return nil
	}
	switch kind {
	case KindTool:
		return s.host.toolGroups(ctx, 0)
	case KindSkill:
		var resp protocol.SkillDiscoverResponse
		if s.Call(WithKnown(ctx), protocol.TypeSkillDiscoverReq, &protocol.SkillDiscoverRequest{}, &resp, nil) != nil {
			return nil
		}
		all := make(Groups)
		for _, def := range resp.Skills {
			if task, _ := def.Metadata["task"].(string); task != "" && len(all[task]) < maxGroup {
				all[task] = append(all[task], def.Name)
			}
		}
		return all
	}
	return nil
}

// toolGroups returns the groups of tools, from a list that is not older than age. If ctx ends before there is one,
// it returns the groups of the last list.
func (h *Host) toolGroups(ctx context.Context, age time.Duration) Groups {
	g := h.groups
	fresh := func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		since := h.opts.Now().Sub(g.asOf)
		return !g.asOf.IsZero() && since >= 0 && since < age
	}
	if fresh() {
		return *g.current.Load()
	}
	HandOff(ctx)
	select {
	case g.listing <- struct{}{}:
	case <-ctx.Done(): // a plugin may take long to list its tools
		return *g.current.Load()
	}
	defer func() { <-g.listing }()
	if fresh() {
		return *g.current.Load()
	}
	var resp protocol.ToolListResponse
	err := h.nest(WithKnown(ctx), protocol.TypeToolListReq, &protocol.ToolListRequest{IncludeDeferred: true}, &resp,
		nil)
	if err != nil && ctx.Err() != nil {
		return *g.current.Load()
	}
	all := g.of(resp.Tools)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.asOf = h.opts.Now()
	for _, def := range resp.Tools {
		if _, taken := all[def.Name]; !taken {
			continue
		}
		delete(all, def.Name)
		if !g.warned[def.Name] {
			g.warned[def.Name] = true
			h.opts.Log.Warn().Str("group", def.Name).Msg("a tool has the name of the group, so a call of that name " +
				"goes to the tool; give the group, or the task that its tools declare, another name")
		}
	}
	g.current.Store(&all)
	return all
}

// of returns the groups of the tools in defs, and of the tools in the config, which may not be there yet.
func (g *groups) of(defs []protocol.ToolDefinition) Groups {
	tasks := maps.Clone(g.tasks)
	for _, def := range defs {
		if _, set := tasks[def.Name]; !set && protocol.IsTaskName(def.Task) {
			tasks[def.Name] = def.Task
		}
	}
	all := make(Groups)
	for _, name := range slices.Sorted(maps.Keys(tasks)) {
		if task := tasks[name]; len(all[task]) < maxGroup {
			all[task] = append(all[task], name)
		}
	}
	return all
}

// groupCalls serves a call of a tool or of a group, which is a call of any tool in it. A name that is unknown or
// denied may be a group whose tools were not listed yet: a child agent is denied all names that are not its own.
func (h *Host) groupCalls(_ *Services, _ Target, next Handler) Handler {
	return func(ctx context.Context, obj protocol.Object, emit Emitter) (any, error) {
		name := obj.Text("tool_name")
		if name == "" {
			if _, given := obj.Get("tool_name"); given { // it is there, but may not be a text
				if err := protocol.Decode(obj, nil, new(protocol.ToolCallRequest)); err != nil {
					return nil, err
				}
			}
			return nil, protocol.Violation(protocol.FieldError{
				Path: "/tool_name", Message: "is required: the name of a tool or of a group",
			})
		}
		var refusal error
		if h.groups.named(obj) == nil {
			answer, err := next(ctx, obj, emit)
			if err == nil || codeOf(err) != protocol.CodeUnknownTool && codeOf(err) != protocol.CodeToolDenied {
				return answer, err
			}
			refusal = err
		}
		known := h.toolGroups(ctx, groupsAge)
		switch names := known[name]; {
		case len(names) > 0:
			c := groupCall{Host: h, next: next, obj: obj, emit: emit, group: name}
			return c.serve(ctx, names)
		case refusal == nil:
			return next(ctx, obj, emit)
		}
		return nil, suggestGroups(refusal, name, known)
	}
}

// groupCall is a call of a group.
type groupCall struct {
	*Host
	next  Handler
	obj   protocol.Object
	emit  Emitter
	group string
}

// suggestGroups adds the names of groups to the refusal of a name that is neither a group nor a tool.
func suggestGroups(refusal error, name string, known Groups) error {
	var said *protocol.Error
	if len(known) == 0 || !errors.As(refusal, &said) || said.Code != protocol.CodeUnknownTool {
		return refusal
	}
	own := *said
	own.Detail = maps.Clone(own.Detail)
	names := slices.Sorted(maps.Keys(known))
	if near := schema.DidYouMean(name, names); near != "" {
		own.Message += "; among the groups, " + near
	}
	return own.With("groups", names[:min(len(names), maxNamed)])
}

// serve calls the tools of the group one after the other, until one runs. A tool does not run if it does not exist,
// is denied, or the arguments do not fit. The answer or error is that of the tool that ran, and names the group.
func (c *groupCall) serve(ctx context.Context, names []string) (any, error) {
	left := slices.Clone(names)
	var refusal *protocol.Error
	for len(left) > 0 {
		answer, at, err := c.callOne(ctx, left)
		if err == nil {
			return chosen{answer, c.group}, nil
		}
		var said *protocol.Error
		if !errors.As(err, &said) || said == nil { // the host knows why it was stopped
			return nil, err
		}
		own := *said
		own.Detail = maps.Clone(own.Detail)
		own.With("group", c.group).With("tool", left[at])
		if !refuses(err) {
			return nil, &own
		}
		if refusal == nil || saysMore(own.Code) > saysMore(refusal.Code) {
			refusal = &own
		}
		left = slices.Delete(left, at, at+1)
	}
	if refusal.Code == protocol.CodeUnknownTool {
		refusal.Message = fmt.Sprintf("none of the tools of the group %.64q is there: %s", c.group,
			strings.Join(names[:min(len(names), maxNamed)], ", "))
	}
	return nil, refusal
}

// callOne chooses a tool and calls it. If the tool fails and its plugin did not count the call, callOne counts it,
// so that a tool that never answers does not look like one that was never tried.
func (c *groupCall) callOne(ctx context.Context, names []string) (answer any, at int, err error) {
	at, done := c.choose(ctx, names)
	defer done()
	if name, own := names[at], callFrom(ctx); own != nil && nestedFrom(ctx) == nil {
		own.chosen.Store(&name)
	}
	call, err := c.obj.With("tool_name", protocol.AppendString(nil, names[at]))
	if err != nil {
		return nil, at, err
	}
	counted := &countedCall{tool: names[at]}
	begun := c.opts.Now()
	answer, err = c.next(context.WithValue(ctx, countedKey{}, counted), call, c.emit)
	if err != nil && !CutShort(ctx) && !counted.done.Load() && !refuses(err) {
		c.services.CountCall(ctx, CallOutcome{
			Kind: KindTool, Component: names[at], Correlation: c.obj.Text("correlation_id"),
			Duration: c.opts.Now().Sub(begun),
		})
	}
	return answer, at, err
}

// saysMore ranks the refusals of the tools of a group. Arguments that do not fit one tool help more than a tool
// that is denied, and that helps more than a tool that does not exist.
func saysMore(code protocol.ErrorCode) int {
	switch code {
	case protocol.CodeSchemaViolation:
		return 2
	case protocol.CodeToolDenied:
		return 1
	}
	return 0
}

// refuses reports whether a tool refused a call, before it ran.
func refuses(err error) bool {
	switch codeOf(err) {
	case protocol.CodeUnknownTool, protocol.CodeToolDenied, protocol.CodeSchemaViolation,
		protocol.CodeCapabilityMissing:
		return true
	}
	return false
}

// choose returns the index of the tool to call now: the choice of the Chooser, or each in turn if there is none.
// The caller calls done when that call has ended.
func (h *Host) choose(ctx context.Context, names []string) (at int, done func()) {
	if h.chooser != nil {
		return h.chooser.Choose(ctx, KindTool, names)
	}
	h.groups.mu.Lock()
	defer h.groups.mu.Unlock()
	h.groups.turns++
	return h.groups.turns % len(names), func() {}
}

// countedKey is the context key of the call of a tool that was chosen.
type countedKey struct{}

// countedCall notes whether the call of a chosen tool was counted.
type countedCall struct {
	tool string
	done atomic.Bool
}

// chosen is the answer of a tool that was chosen from a group.
type chosen struct {
	answer any
	group  string
}

// AppendJSON implements protocol.Appender.
func (c chosen) AppendJSON(dst []byte) ([]byte, error) {
	raw, err := protocol.AppendJSON(nil, c.answer)
	if err != nil {
		return dst, err
	}
	obj, err := protocol.ParseObject(raw)
	if err == nil {
		obj, err = obj.With("group", protocol.AppendString(nil, c.group))
	}
	return append(dst, obj.Raw()...), err
}

// named returns the tools of the group that a call names, as they are known now.
func (g *groups) named(obj protocol.Object) []string {
	if g == nil {
		return nil
	}
	return (*g.current.Load())[obj.Text("tool_name")]
}
