package tools

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"a2e/host"
	"a2e/protocol"
)

// defaultMaxOutput is the limit on a result's data where none is set.
const defaultMaxOutput = 1 << 20

// SetOptions say what the tools of a Set have in common.
type SetOptions struct {
	Name           string           // the plugin's, for errors
	MaxOutputBytes int              // of one result's data; 0 = 1 MiB
	StateDir       string           // where longer output is kept whole; "" = nowhere
	Now            func() time.Time // nil = time.Now
	// Await, if set, is called before the tools are listed, with "", and before a call of a
	// tool that is not there, with its name: for a plugin whose tools are still on their
	// way. Its error answers the call if the tool is not there after that either; nil = the
	// tool is unknown.
	Await func(ctx context.Context, tool string) error
}

// Set answers tool/list/req and tool/call/req for the tools in it: search, settings,
// checked arguments, limits of time and output, and counting of calls are the same for
// all plugins that have tools. It is safe for concurrent use.
type Set struct {
	name      string
	maxOutput int
	spill     *spiller
	now       func() time.Time
	await     func(ctx context.Context, tool string) error // may be nil
	content   atomic.Pointer[registry]                     // never nil
	services  *host.Services                               // set by Start
}

// Start gives the set what it asks of the host; its plugin calls it when it is started.
func (s *Set) Start(services *host.Services) { s.services = services }

// Services returns what Start was given; nil before.
func (s *Set) Services() *host.Services { return s.services }

// NewSet makes a set without tools.
func NewSet(o SetOptions) *Set {
	s := &Set{name: o.Name, maxOutput: firstPositive(o.MaxOutputBytes, defaultMaxOutput), spill: newSpiller(o.StateDir), now: o.Now, await: o.Await}
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

// Routes gives those of a plugin with these tools. A name that the set does not have may
// be another plugin's.
func (s *Set) Routes() []host.Route {
	return []host.Route{
		host.List(protocol.TypeToolListReq, s.list, MergeLists),
		host.Handle(protocol.TypeToolCallReq, s.call).About(s.about),
	}
}

// about says which files a call is about, so that calls that come at once keep their order.
func (s *Set) about(obj protocol.Object) host.Files {
	val, _ := obj.Get("tool_name")
	name, _ := val.Str()
	t := s.content.Load().tools[name]
	if t == nil || t.Files == nil {
		return host.Files{}
	}
	args, _ := obj.Child("arguments")
	return t.Files(args)
}

// current gives the content for a request that names a tool, or "" for a list, after
// what is on its way had time to come. why is the error for a tool that did not.
func (s *Set) current(ctx context.Context, tool string) (content *registry, why error) {
	content = s.content.Load()
	if s.await != nil && content.tools[tool] == nil {
		why = s.await(ctx, tool)
		content = s.content.Load()
	}
	return content, why
}

// registry is the content of a Set, which does not change.
type registry struct {
	tools  map[string]*entry // by name, the denied ones too
	listed []*entry          // those that may be called, by name
	names  []string          // of listed

	search sync.Once
	found  *searchIndex // over listed; made by search
}

// index gives the search index, which the first query makes.
func (r *registry) index() *searchIndex {
	r.search.Do(func() { r.found = newIndex(r.listed) })
	return r.found
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
