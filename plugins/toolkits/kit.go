package toolkits

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/jsonschema-go/jsonschema"

	"a2e/host"
	"a2e/host/config"
	"a2e/host/guard/wall"
	"a2e/host/schema"
	"a2e/plugins/tools"
	"a2e/protocol"
)

// The names of the toolkits.
const (
	kitFilesystem = "filesystem"
	kitHTTP       = "http"
	kitGit        = "git"
	kitOpenAPI    = "openapi"
	kitSQL        = "sql"
	kitWeb        = "web"
)

// version is the version of each toolkit and of its tools.
const version = "1.0.0"

// kind is one toolkit, independent of its configuration.
type kind struct {
	name, alias, description, category string
	tags                               []string
	tools                              []string // the names of those that it has before it is configured
	schema                             func() (*jsonschema.Schema, error)
	fromAgent                          func(p *Plugin, config protocol.Object) (*made, error) // config fits the schema
	fromConfig                         func(p *Plugin) (*made, error)                         // nil = not in the config
}

// kinds lists the toolkits by name.
func kinds() []kind {
	return []kind{
		kindOf(kind{
			name: kitFilesystem, alias: "Files", category: "files", tags: []string{"files", "read", "write"},
			tools: []string{
				"filesystem_edit_file", "filesystem_glob", "filesystem_grep", "filesystem_list_dir",
				"filesystem_read_file", "filesystem_write_file",
			},
			description: "A second set of file tools, for another folder than the workspace as a whole.",
		}, func(o *Options) *FilesystemOptions { return o.Filesystem }, (*Plugin).newFilesystem),
		kindOf(kind{
			name: kitGit, alias: "Git", category: "development", tags: []string{"git", "version control"},
			tools: []string{"git_add", "git_commit", "git_diff", "git_log", "git_show", "git_status"},
			description: "One git repository: status, diff, log, show, add, commit. Its hooks, pager, filters and " +
				"credential helpers do not run.",
		}, func(o *Options) *GitOptions { return o.Git }, (*Plugin).newGit),
		kindOf(kind{
			name: kitHTTP, alias: "HTTP API", category: "web", tags: []string{"http", "api", "web"},
			tools: []string{"api_delete", "api_get", "api_post", "api_put"},
			description: "Calls of one web API: GET, POST, PUT and DELETE below its base URL, with headers that " +
				"stay secret.",
		}, func(o *Options) *HTTPOptions { return o.HTTP }, (*Plugin).newHTTP),
		kindOf(kind{
			name: kitOpenAPI, alias: "OpenAPI", category: "web", tags: []string{"http", "api", "openapi", "web"},
			tools: []string{},
			description: "A web API, from its OpenAPI description (3.0, 3.1): each operation is a tool, with " +
				"headers that stay secret.",
		}, func(o *Options) *OpenAPIOptions { return o.OpenAPI }, (*Plugin).newOpenAPI),
		kindOf(kind{
			name: kitSQL, alias: "SQL", category: "database", tags: []string{"sql", "database", "sqlite", "postgresql"},
			tools:       []string{"sql_describe", "sql_query", "sql_tables"},
			description: "One SQLite or PostgreSQL database, read by queries with parameters.",
		}, func(o *Options) *SQLOptions { return o.SQL }, (*Plugin).newSQL),
		kindOf(kind{
			name: kitWeb, alias: "Web", category: "web", tags: []string{"web", "http", "markdown", "rss", "sitemap"},
			tools:       []string{"web_feed", "web_fetch", "web_sitemap"},
			description: "Web pages as Markdown in parts, sitemaps, RSS and Atom feeds, without a browser.",
		}, func(o *Options) *WebOptions { return o.Web }, (*Plugin).newWeb),
	}
}

// kindOf completes a toolkit with its schema and the functions that make it. in returns its options in the config,
// or nil; make makes it from options.
func kindOf[T any](k kind, in func(*Options) *T, make func(p *Plugin, opts T, byConfig bool) (*made, error)) kind {
	k.schema = func() (*jsonschema.Schema, error) {
		return jsonschema.For[T](&jsonschema.ForOptions{TypeSchemas: map[reflect.Type]*jsonschema.Schema{
			reflect.TypeFor[config.Secret](): {Type: "string"},
		}})
	}
	k.fromAgent = func(p *Plugin, o protocol.Object) (*made, error) {
		var opts T
		if err := o.Decode(&opts); err != nil {
			return nil, err
		}
		return make(p, opts, false)
	}
	k.fromConfig = func(p *Plugin) (*made, error) {
		if opts := in(&p.opts); opts != nil {
			return make(p, *opts, true)
		}
		return nil, nil
	}
	return k
}

// made is a toolkit that is configured.
type made struct {
	tools []tools.Tool
	note  string // what is missing in it; "" = nothing
	close func() // after the last call; nil = nothing to do

	renew func(context.Context) error // called before each call, see follow; nil = nothing to do

	load    func(context.Context) (*made, error) // makes its replacement with the tools; nil = the tools are loaded
	loading chan struct{}                        // holds a token while somebody loads
	tried   time.Time                            // time of the last load; guarded by loading (problem: also by mu)
	problem error

	calls   sync.RWMutex         // held for reading by each call; retire locks it and never unlocks it
	retired atomic.Bool          // no further call begins
	next    atomic.Pointer[made] // its replacement; nil = it was not replaced, or the toolkit was removed
}

// newMade makes a configured toolkit. It tracks the calls of the tools, so that close runs after the last call.
func newMade(kit string, all []tools.Tool, close func()) *made {
	m := &made{tools: all, close: close}
	for i := range all {
		t := &all[i]
		t.Kind, t.Def.Toolkit, t.Def.Version = tools.KindToolkit, &kit, version
		t.Def.Tags = append(slices.Clone(t.Def.Tags), kit)
		call := t.Call
		t.Call = func(ctx context.Context, args protocol.Object, emit host.Emitter) (*tools.Outcome, error) {
			if m.renew != nil {
				if err := m.renew(ctx); err != nil {
					return nil, err
				}
			}
			if !m.enter() {
				return m.heir(kit, t.Def.Name)(ctx, args, emit)
			}
			defer m.calls.RUnlock()
			return call(ctx, args, emit)
		}
	}
	return m
}

// follow makes the toolkit m, called name, again when its folder was removed and made again: m has the old folder
// open. again makes the new toolkit.
func (p *Plugin) follow(name, folder string, m *made, again func() (*made, error)) (*made, error) {
	at, err := wall.OpenFolder(wall.AsDir(folder))
	if err != nil {
		m.retire()
		return nil, err
	}
	closes := m.close
	m.close = func() {
		closes()
		_ = at.Close() // it was only opened to watch it
	}
	m.renew = func(ctx context.Context) error {
		if !at.Remade() {
			return nil
		}
		host.HandOff(ctx)
		p.mu.Lock()
		defer p.mu.Unlock()
		i := slices.IndexFunc(p.kits, func(k *kit) bool { return k.name == name && k.made == m })
		if i < 0 || p.ended { // another call has done it, or the toolkit has a new configuration
			return nil
		}
		next, err := again()
		if err != nil {
			return protocol.Errorf(protocol.CodeToolError,
				"the folder of the toolkit %q was deleted and made again, and does not fit any more: %w", name, err)
		}
		p.kits[i].replace(next, p.kits[i].byAgent)
		p.refreshLocked()
		return nil
	}
	return m, nil
}

// trusted reports whether a folder that was made again may be opened without the checks for the agent: the
// config names it, and it lies outside the folders of the agent. In those, it may be a link by now.
func (p *Plugin) trusted(folder string, byConfig bool) bool {
	_, _, reached := p.within(folder)
	return byConfig && !reached
}

// loadAfter is the time after a failed load in which the toolkit is not loaded again.
const loadAfter = 10 * time.Second

// await loads the toolkits of the config that have no tools yet; see tools.SetOptions.Await.
func (p *Plugin) await(ctx context.Context, tool string) error {
	if tool == "" && host.WantsKnown(ctx) {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var problems []error
	for _, k := range p.kits {
		if k.made != nil && k.made.load != nil && (tool == "" || strings.HasPrefix(tool, k.name+"_")) {
			problems = append(problems, p.loadLocked(ctx, k))
		}
	}
	return errors.Join(problems...)
}

// loadLocked loads a toolkit. It releases the lock meanwhile.
func (p *Plugin) loadLocked(ctx context.Context, k *kit) error {
	m := k.made
	host.HandOff(ctx)
	p.mu.Unlock()
	var loaded *made
	var err error
	select {
	case m.loading <- struct{}{}:
		defer func() { <-m.loading }()
		if err = m.problem; !m.retired.Load() && (err == nil || p.env.Now().Sub(m.tried) >= loadAfter) {
			loaded, err = m.load(ctx)
			m.tried = p.env.Now()
		}
	case <-ctx.Done():
		err = ctx.Err()
	}
	p.mu.Lock()
	switch {
	case ctx.Err() != nil || err == nil && loaded == nil: // the next request loads it, or another one has loaded it
		return ctx.Err()
	case err != nil:
		if m.problem == nil || m.problem.Error() != err.Error() {
			p.env.Log.Warn().Err(err).Str("toolkit", k.name).Msg("the toolkit has no tools")
		}
		m.problem = err
		return host.NotOwner(protocol.Errorf(protocol.CodeToolError, "the toolkit %q has no tools: %w", k.name, err))
	case k.made != m || p.ended:
		loaded.retire()
		return nil
	}
	k.replace(loaded, k.byAgent)
	p.refreshLocked()
	return nil
}

// heir returns the function that serves a call of a tool that began while the toolkit was being
// replaced: the tool of the replacement, or one that answers with unknown_tool.
func (m *made) heir(kit, name string) func(context.Context, protocol.Object, host.Emitter) (*tools.Outcome, error) {
	if next := m.next.Load(); next != nil {
		if i := slices.IndexFunc(next.tools, func(t tools.Tool) bool { return t.Def.Name == name }); i >= 0 {
			return next.tools[i].Call
		}
	}
	return func(context.Context, protocol.Object, host.Emitter) (*tools.Outcome, error) {
		return nil, protocol.Errorf(protocol.CodeUnknownTool, "the toolkit %q was reconfigured while the call came "+
			"in, and has no tool %q any more; list the tools again", kit, name)
	}
}

// enter begins a call, which ends with calls.RUnlock; false = the toolkit is retired. It does not
// wait for the lock, since retire never unlocks it.
func (m *made) enter() bool { return !m.retired.Load() && m.calls.TryRLock() }

// passOn passes calls from now on to the toolkit's replacement; nil = the toolkit has
// none.
func (m *made) passOn(next *made) {
	m.next.Store(next)
	m.retired.Store(true)
}

// retire lets no further call begin, waits for the running ones and closes the toolkit.
func (m *made) retire() {
	m.retired.Store(true)
	m.calls.Lock()
	if m.close != nil {
		m.close()
	}
}

// fits checks a configuration against the toolkit's schema. The error names members and
// what they must be, but never their values, which may be secret.
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
			wrong[i] = protocol.FieldError{Path: "/config/" + name, Message: wrong[i].Message + ". " +
				property.Description}
		}
	}
	if wrong != nil {
		return protocol.Violation(wrong...)
	}
	return nil
}

// list answers toolkit/list/req. filter_kind is a toolkit's name or category.
func (p *Plugin) list(_ context.Context, req *protocol.ToolkitListRequest,
	_ host.Emitter,
) (*protocol.ToolkitListResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	resp := &protocol.ToolkitListResponse{Toolkits: []protocol.ToolkitDefinition{}}
	for _, k := range p.kits {
		if !k.wanted(req) {
			continue
		}
		def, err := k.definition()
		if err != nil {
			return nil, err
		}
		resp.Toolkits = append(resp.Toolkits, def)
	}
	return resp, nil
}

// wanted reports whether a toolkit passes the filters of a request.
func (k *kit) wanted(req *protocol.ToolkitListRequest) bool {
	if req.FilterKind != "" && !strings.EqualFold(req.FilterKind, k.name) && !strings.EqualFold(req.FilterKind,
		k.category) {
		return false
	}
	return !slices.ContainsFunc(req.FilterTags, func(tag string) bool {
		return !slices.ContainsFunc(k.tags, func(own string) bool { return strings.EqualFold(own, tag) })
	})
}

// definition returns the definition of the toolkit. If it is not configured, the definition names the tools that
// it would have.
func (k *kit) definition() (protocol.ToolkitDefinition, error) {
	schema, err := k.schema()
	if err != nil {
		return protocol.ToolkitDefinition{}, err
	}
	raw, err := json.Marshal(schema)
	if err != nil {
		return protocol.ToolkitDefinition{}, err
	}
	def := protocol.ToolkitDefinition{
		Name: k.name, Alias: k.alias, Description: k.description, Category: k.category,
		Tags: k.tags, Tools: k.tools, Configured: k.made != nil, Version: version,
	}
	if k.made != nil {
		def.Tools, def.Problem = names(k.made), k.made.note
		if k.made.problem != nil {
			def.Problem = k.made.problem.Error()
		}
	}
	return def, json.Unmarshal(raw, &def.Schema)
}

// configure answers toolkit/configure/req. The earlier configuration stays until the new one
// is ready. An empty config removes the toolkit's tools.
func (p *Plugin) configure(ctx context.Context, req *protocol.ToolkitConfigureRequest,
	_ host.Emitter,
) (*protocol.ToolkitConfigureResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.IndexFunc(p.kits, func(k *kit) bool { return k.name == req.ToolkitName })
	if i < 0 {
		return nil, p.unknown(req.ToolkitName)
	}
	if p.opts.Locked {
		return nil, protocol.Errorf(protocol.CodeToolDenied, "toolkits are configured by the host's config alone "+
			"(locked)")
	}
	host.HandOff(ctx)
	k := p.kits[i]
	resp := &protocol.ToolkitConfigureResponse{ToolkitName: k.name, Status: "ok"}
	if req.Config.Len() == 0 {
		k.replace(nil, host.SessionFrom(ctx))
		p.refreshLocked()
		resp.Message = new("the toolkit is not configured any more; its tools are gone")
		return resp, nil
	}
	if err := k.fits(req.Config); err != nil {
		return nil, err
	}
	m, err := k.fromAgent(p, req.Config)
	if err == nil && m.load != nil {
		m, err = m.load(ctx)
	}
	if err == nil && ctx.Err() != nil { // a session that has ended leaves nothing behind
		m.retire()
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	k.replace(m, host.SessionFrom(ctx))
	p.refreshLocked()
	resp.Message = new(strings.TrimSuffix(strings.Join(names(m), ", ")+"; "+m.note, "; "))
	return resp, nil
}

// names returns the names of the tools of a toolkit.
func names(m *made) []string {
	all := make([]string, len(m.tools))
	for i := range m.tools {
		all[i] = m.tools[i].Def.Name
	}
	return all
}

// unknown returns the error for a toolkit that this plugin does not have.
func (p *Plugin) unknown(name string) error {
	var known []string
	for _, k := range p.kits {
		known = append(known, k.name)
	}
	e := protocol.Violation(protocol.FieldError{Path: "/toolkit_name", Message: "there is no such toolkit"})
	return host.NotKnown(e, name, known)
}
