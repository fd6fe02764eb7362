package toolkits

import (
	"context"
	"slices"
	"strings"
	"sync"

	"github.com/google/jsonschema-go/jsonschema"

	"a2e/host"
	"a2e/host/schema"
	"a2e/plugins/tools"
	"a2e/protocol"
)

// The toolkits there are.
const (
	kitFilesystem = "filesystem"
	kitHTTP       = "http"
	kitGit        = "git"
)

// version is that of each toolkit and of its tools.
const version = "1.0.0"

// kind is one toolkit as it comes.
type kind struct {
	name, alias, description, category string
	tags, tools                        []string
	schema                             func() (*jsonschema.Schema, error)
	make                               func(p *Plugin, config protocol.Object) (*made, error)
}

// kinds lists the toolkits by name.
func kinds() []kind {
	return []kind{
		{
			name: kitFilesystem, alias: "Files", category: "files", tags: []string{"files", "read", "write"},
			description: "A second set of file tools, for another folder than the workspace as a whole.",
			tools:       filesystemTools(), schema: schemaOf[FilesystemOptions], make: fromAgent((*Plugin).newFilesystem),
		},
		{
			name: kitGit, alias: "Git", category: "development", tags: []string{"git", "version control"},
			description: "One git repository: status, diff, log, show, add, commit. Its hooks, pager, filters and credential helpers do not run.",
			tools:       gitTools(), schema: schemaOf[GitOptions], make: fromAgent((*Plugin).newGit),
		},
		{
			name: kitHTTP, alias: "HTTP API", category: "web", tags: []string{"http", "api", "web"},
			description: "Calls of one web API: GET, POST, PUT and DELETE below its base URL, with headers that stay secret.",
			tools:       httpTools(), schema: schemaOf[httpConfig], make: func(p *Plugin, o protocol.Object) (*made, error) {
				var c httpConfig
				if err := o.Decode(&c); err != nil {
					return nil, err
				}
				return p.newHTTP(c.options(), false)
			},
		},
	}
}

// fromAgent makes a toolkit from what the agent sent, which fits its schema.
func fromAgent[T any](make func(*Plugin, T, bool) (*made, error)) func(*Plugin, protocol.Object) (*made, error) {
	return func(p *Plugin, o protocol.Object) (*made, error) {
		var opts T
		if err := o.Decode(&opts); err != nil {
			return nil, err
		}
		return make(p, opts, false)
	}
}

// schemaOf gives the JSON Schema of a toolkit's configuration.
func schemaOf[T any]() (*jsonschema.Schema, error) { return jsonschema.For[T](nil) }

// made is a toolkit that is configured.
type made struct {
	tools []tools.Tool
	close func() // after the last call; nil = nothing to do

	mu      sync.Mutex
	calls   int   // under way; guarded by mu
	retired bool  // no call begins any more; guarded by mu
	next    *made // what took its place; nil = nothing has, or the toolkit was taken away; guarded by mu
	idle    chan struct{}
}

// newMade counts the calls of the tools, so that what they need is closed after them.
func newMade(kit string, all []tools.Tool, close func()) *made {
	m := &made{tools: all, close: close, idle: make(chan struct{})}
	for i := range all {
		t := &all[i]
		t.Kind, t.Def.Toolkit, t.Def.Version = tools.KindToolkit, &kit, version
		t.Def.Tags = append(slices.Clone(t.Def.Tags), kit)
		call := t.Call
		t.Call = func(ctx context.Context, args protocol.Object, emit host.Emitter) (*tools.Outcome, error) {
			if !m.enter() {
				return m.heir(kit, t.Def.Name)(ctx, args, emit)
			}
			defer m.leave()
			return call(ctx, args, emit)
		}
	}
	return m
}

// heir gives what serves a tool after the toolkit was configured anew: a call that came in
// meanwhile.
func (m *made) heir(kit, name string) func(context.Context, protocol.Object, host.Emitter) (*tools.Outcome, error) {
	m.mu.Lock()
	next := m.next
	m.mu.Unlock()
	if next != nil {
		if i := slices.IndexFunc(next.tools, func(t tools.Tool) bool { return t.Def.Name == name }); i >= 0 {
			return next.tools[i].Call
		}
	}
	return func(context.Context, protocol.Object, host.Emitter) (*tools.Outcome, error) {
		return nil, protocol.Errorf(protocol.CodeUnknownTool, "the toolkit %q was configured anew while the call came in, and has no tool %q any more; list the tools again", kit, name)
	}
}

func (m *made) enter() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.retired {
		return false
	}
	m.calls++
	return true
}

func (m *made) leave() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.calls--; m.retired && m.calls == 0 {
		close(m.idle)
	}
}

// passOn has the calls that come from now on served by what takes the toolkit's place; nil =
// nothing does.
func (m *made) passOn(next *made) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.next, m.retired = next, true
}

// retire lets no further call begin, waits for those under way and closes.
func (m *made) retire() {
	m.mu.Lock()
	m.retired = true
	busy := m.calls > 0
	m.mu.Unlock()
	if busy {
		<-m.idle
	}
	if m.close != nil {
		m.close()
	}
}

// fits holds a configuration against the toolkit's schema. The error names members and
// what they must be, never what was sent: that may be secret.
func (k *kind) fits(config protocol.Object) error {
	made, err := k.schema()
	if err != nil {
		return protocol.Errorf(protocol.CodeRuntimeError, "the schema of toolkit %q: %w", k.name, err)
	}
	ready, err := schema.Compile(made, 1000)
	if err != nil {
		return protocol.Errorf(protocol.CodeRuntimeError, "the schema of toolkit %q: %w", k.name, err)
	}
	wrong := ready.Check(config.Raw(), "/config")
	for i := range wrong {
		name := strings.SplitN(wrong[i].Path, "/", 4)[2]
		if property := made.Properties[name]; property != nil {
			wrong[i] = protocol.FieldError{Path: "/config/" + name, Message: wrong[i].Message + ". " + property.Description}
		}
	}
	if wrong != nil {
		return protocol.Violation(wrong...)
	}
	return nil
}
