// Package toolkits is the capability `toolkits`: sets of tools that exist once the config or the agent has
// configured them.
//
//	toolkits.go  the plugin                    filesystem.go  file tools of another folder
//	kit.go       what a toolkit is; its list,  http.go        one web API
//	             and how it is configured      git.go         one repository; git_tools.go its tools
//	sql.go       a database: postgres.go,      openapi.go     a web API by its description:
//	             sqlite.go, sqlite_run.go                     openapi_spec.go, _operation.go, _call.go
//	web.go       pages, sitemaps, feeds
package toolkits

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"

	"a2e/host"
	"a2e/host/child"
	"a2e/host/config"
	"a2e/host/guard/redact"
	"a2e/host/sandbox"
	"a2e/plugins/tools"
	"a2e/protocol"
)

// Options are the plugin's options in the config.
type Options struct {
	Filesystem *FilesystemOptions `yaml:"filesystem" doc:"Configures the toolkit filesystem: a second set of file tools."`
	HTTP       *HTTPOptions       `yaml:"http" doc:"Configures the toolkit http: calls of one web API."`
	Git        *GitOptions        `yaml:"git" doc:"Configures the toolkit git: one repository."`
	OpenAPI    *OpenAPIOptions    `yaml:"openapi" doc:"Configures the toolkit openapi: the operations of a web API that has an OpenAPI description."`
	SQL        *SQLOptions        `yaml:"sql" doc:"Configures the toolkit sql: one SQLite or PostgreSQL database."`
	Web        *WebOptions        `yaml:"web" doc:"Configures the toolkit web: pages as Markdown, sitemaps and feeds."`
	// Locked keeps the agent from configuring anything.
	Locked bool `yaml:"locked" doc:"Whether only the config configures toolkits, not the agent."`
	// Folders are the folders beyond the workspace in which the agent may root a toolkit.
	Folders []string `yaml:"folders" doc:"Absolute folders, beyond the workspace, in which the agent may root the toolkits filesystem and git."`
	// AllowPrivate lets the toolkits web, http and openapi reach private addresses that the config does not name.
	AllowPrivate bool `yaml:"allow_private" doc:"Whether the agent may point the toolkits http and openapi at private, loopback and link-local addresses, and the toolkit web may go there."`
}

// FilesystemOptions configure the toolkit filesystem.
type FilesystemOptions struct {
	RootDir  string `yaml:"root_dir" json:"root_dir" required:"true" jsonschema:"The folder that the tools stay in: relative to the workspace, or absolute where the host's config allows it."`
	ReadOnly bool   `yaml:"read_only" json:"read_only,omitzero" jsonschema:"Leave out the tools that change files."`
}

// HTTPOptions configure the toolkit http.
type HTTPOptions struct {
	BaseURL string                   `yaml:"base_url" json:"base_url" required:"true" jsonschema:"Where the API is, such as https://api.example.com/v1. Requests stay below it."`
	Headers map[string]config.Secret `yaml:"headers" json:"headers,omitzero" jsonschema:"Headers of each request, such as Authorization. Their values are secret, except those of Accept, Accept-Language, Content-Type and User-Agent: no answer and no log shows them."`
}

// GitOptions configure the toolkit git.
type GitOptions struct {
	Repo        string `yaml:"repo" json:"repo" required:"true" jsonschema:"The folder of the repository's working tree: relative to the workspace, or absolute where the host's config allows it."`
	ReadOnly    bool   `yaml:"read_only" json:"read_only,omitzero" jsonschema:"Leave out git_add and git_commit."`
	AuthorName  string `yaml:"author_name" json:"author_name,omitzero" jsonschema:"Author of commits; without it the repository's own user.name."`
	AuthorEmail string `yaml:"author_email" json:"author_email,omitzero" jsonschema:"E-mail of the author; without it the repository's own user.email."`
}

// OpenAPIOptions configure the toolkit openapi.
type OpenAPIOptions struct {
	Spec    string                   `yaml:"spec" json:"spec" jsonschema:"The OpenAPI description (3.0 or 3.1, JSON or YAML): a file of the workspace; a URL only where the host's config names it." required:"true" doc:"File (relative to the workspace, or absolute) or URL of the OpenAPI description, 3.0 or 3.1, JSON or YAML. It is read when tools are first asked for."`
	BaseURL string                   `yaml:"base_url" json:"base_url,omitzero" jsonschema:"Where the API is, such as https://api.example.com/v1; without it the first of the description's servers." doc:"Where the API is; without it the first of the description's servers. Requests stay below it."`
	Headers map[string]config.Secret `yaml:"headers" json:"headers,omitzero" jsonschema:"Headers of each request, such as Authorization; base_url has to be there then. Their values are secret, except those of Accept, Accept-Language, Content-Type and User-Agent: no answer and no log shows them." doc:"Headers of each request, such as Authorization; base_url has to be there then. No answer and no log shows their values."`
	Include []string                 `yaml:"include" json:"include,omitzero" jsonschema:"Operations that become tools: names or globs of their operationId, such as list*, or of METHOD and path, such as GET /pets/**. All, unless it is given." doc:"Operations that become tools: globs of their operationId (list*), or of METHOD and path (GET /pets/**). All, unless it is given."`
	Exclude []string                 `yaml:"exclude" json:"exclude,omitzero" jsonschema:"Operations that do not, named in the same way." doc:"Operations that do not, named in the same way."`
}

// SQLOptions configure the toolkit sql.
type SQLOptions struct {
	DSN      config.Secret `yaml:"dsn" json:"dsn" jsonschema:"An SQLite file of the workspace, such as data/app.db; a PostgreSQL server, such as postgres://user:password@db.example.com/shop, only where the host's config names it." required:"true" doc:"An SQLite file, such as data/app.db (relative to the workspace) or sqlite:/srv/app.db, or a PostgreSQL server, such as postgres://user:${PASSWORD}@db.example.com/shop. No answer and no log shows it."`
	ReadOnly *bool         `yaml:"read_only" json:"-" doc:"Leave out sql_execute, the tool that changes the database; true unless it is set."`
}

// WebOptions configure the toolkit web.
type WebOptions struct {
	Hosts []string `yaml:"hosts" json:"hosts" jsonschema:"Hosts whose pages are fetched, as names or globs such as *.example.com; [\"*\"] or none is all of them. Redirects to others are not followed."`
}

// Plugin is one toolkits plugin.
type Plugin struct {
	*tools.Set
	name string
	opts Options
	env  host.Env

	mu    sync.Mutex
	kits  []*kit // in the order of kinds; guarded by mu
	ended bool   // guarded by mu
}

// kit is one toolkit and how it is configured.
type kit struct {
	kind
	made    *made          // nil = not configured
	byAgent *host.Session  // the session whose agent configured it; nil = the config did
	retired sync.WaitGroup // earlier configurations that are being closed
}

// New makes the plugin called name. The error says which option does not fit.
func New(name string, opts Options, env host.Env) (*Plugin, error) {
	env = env.WithDefaults()
	p := &Plugin{name: name, opts: opts, env: env}
	p.Set = tools.NewSet(tools.SetOptions{
		Name: name, MaxOutputBytes: env.MaxOutputBytes,
		StateDir: env.StateDir, Secrets: env.Secrets, Now: env.Now, Await: p.await, Held: true, Unknown: filesToCome,
	})
	for _, k := range kinds() {
		p.kits = append(p.kits, &kit{kind: k})
	}
	err := p.configured()
	if err == nil {
		err = p.Replace(p.toolsLocked())
	}
	if err != nil {
		return nil, errors.Join(err, p.Close(context.Background()))
	}
	return p, nil
}

// configured makes the toolkits that the config configures; the error names the option.
func (p *Plugin) configured() error {
	for _, k := range p.kits {
		m, err := k.fromConfig(p)
		if err != nil {
			if known, ok := errors.AsType[*protocol.Error](err); ok {
				err = errors.New(known.Message)
			}
			return config.At(err, k.name)
		}
		k.made = m
	}
	return nil
}

// Info implements host.Plugin.
func (p *Plugin) Info() host.PluginInfo {
	return host.PluginInfo{
		Name: p.name, Capability: protocol.CapToolkits,
		Also: []protocol.Capability{protocol.CapTools},
	}
}

// Routes implements host.Plugin.
func (p *Plugin) Routes() []host.Route {
	return append(p.Set.Routes(),
		host.List(protocol.TypeToolkitListReq, p.list, protocol.MergeToolkits),
		host.Handle(protocol.TypeToolkitConfigureReq, p.configure).Claims(p.claims),
	)
}

// claims returns the claims of a request that replaces the tools of a toolkit.
func (p *Plugin) claims(configure protocol.Object) []protocol.Claim {
	return []protocol.Claim{
		{Key: protocol.KeyTools + toolPrefix(configure.Text("toolkit_name")), Access: protocol.Exclusive},
		{Key: protocol.KeyWorkspace, Access: protocol.Follows},
		{Key: "toolkits/", Access: protocol.Exclusive},
	}
}

// toolPrefix returns the prefix of the names of a toolkit's tools.
func toolPrefix(kit string) string {
	if kit == kitHTTP {
		return "api_"
	}
	return kit + "_"
}

// filesToCome returns which files a call uses whose tool an earlier request may still add: the whole
// workspace, since only the toolkit of the tool is known.
func filesToCome(tool string) []tools.File {
	for _, kit := range []string{kitFilesystem, kitGit, kitSQL} {
		if strings.HasPrefix(tool, toolPrefix(kit)) {
			return []tools.File{{Path: ".", Access: protocol.Exclusive}}
		}
	}
	return nil
}

// EndSession implements host.SessionEnder: it removes the toolkits that the session's agent configured, secrets
// included, and makes those of the config again.
func (p *Plugin) EndSession(_ context.Context, s *host.Session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	changed := false
	for _, k := range p.kits {
		if k.byAgent == nil || k.byAgent != s || p.ended {
			continue
		}
		old, err := k.fromConfig(p)
		if err != nil {
			p.env.Log.Warn().Err(err).Str("toolkit", k.name).Msg("the toolkit of the config cannot be made again")
		}
		k.replace(old, nil)
		changed = true
	}
	if changed {
		p.refreshLocked()
	}
}

// Close implements host.Plugin. The host ends all calls before it calls Close.
func (p *Plugin) Close(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	for _, k := range p.kits {
		k.replace(nil, nil)
		k.retired.Wait()
	}
	return nil
}

// replace replaces the toolkit by m (nil = none) and closes the old one once its calls have ended.
func (k *kit) replace(m *made, by *host.Session) {
	if old := k.made; old != nil {
		old.passOn(m)
		k.retired.Go(old.retire)
	}
	k.made, k.byAgent = m, by
}

// refreshLocked replaces the offered tools by those of the toolkits that are configured now.
func (p *Plugin) refreshLocked() {
	if err := p.Replace(p.toolsLocked()); err != nil {
		p.env.Log.Error().Err(err).Msg("the tools of the toolkits do not fit together")
	}
}

// toolsLocked returns the tools of the toolkits that are configured.
func (p *Plugin) toolsLocked() []tools.Tool {
	var all []tools.Tool
	for _, k := range p.kits {
		if k.made != nil {
			all = append(all, k.made.tools...)
		}
	}
	return all
}

// Needs implements host.Needer: it returns the folders, addresses and files that the toolkits of the config need.
func (p *Plugin) Needs() (all []host.Need) {
	add := func(kit, option string, look func() (string, error), live func(context.Context) (string, error)) {
		all = append(all, host.Need{Of: "toolkit " + kit, Option: kit + "." + option, Look: look, Live: live})
	}
	if o := p.opts.Filesystem; o != nil {
		add(kitFilesystem, "root_dir", func() (string, error) {
			dir := child.Absolute(p.env.Workspace, o.RootDir)
			if o.ReadOnly {
				return dir, nil
			}
			return dir, host.TryWriting(dir)
		}, nil)
	}
	if o := p.opts.HTTP; o != nil {
		add(kitHTTP, "base_url", func() (string, error) { return p.address(*o) },
			func(ctx context.Context) (string, error) { return p.tryAPI(ctx, kitHTTP, *o) })
	}
	if o := p.opts.Git; o != nil {
		add(kitGit, "repo", func() (string, error) {
			return sandbox.LookPath("git", sandbox.SafePath(os.Getenv("PATH"), p.env.Workspace), p.env.Workspace)
		}, nil)
	}
	if o := p.opts.OpenAPI; o != nil {
		look := func() (string, error) { return p.lookOpenAPI(context.Background(), *o) }
		if strings.Contains(o.Spec, "://") {
			look = func() (string, error) { return "its description is at a URL", nil }
		}
		add(kitOpenAPI, "spec", look, func(ctx context.Context) (string, error) { return p.tryOpenAPI(ctx, *o) })
	}
	if o := p.opts.SQL; o != nil {
		add(kitSQL, "dsn", func() (string, error) { return p.lookSQL(*o) }, func(ctx context.Context) (string,
			error,
		) {
			return p.trySQL(ctx, *o)
		})
	}
	return all
}

// address returns scheme and host of an API.
func (p *Plugin) address(o HTTPOptions) (string, error) {
	a, err := p.newAPI(kitHTTP, o, true, true)
	if err != nil {
		return "", err
	}
	defer a.web.Close()
	return a.base.Scheme + "://" + a.base.Host, nil
}

// tryAPI requests the base URL. Any answer shows that the API exists; HTTP 401 and 403 are a minor *host.Lack.
func (p *Plugin) tryAPI(ctx context.Context, kit string, o HTTPOptions) (string, error) {
	a, err := p.newAPI(kit, o, true, true)
	if err != nil {
		return "", err
	}
	defer a.web.Close()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.base.String(), nil)
	if err != nil {
		return "", err
	}
	_, answer, err := a.send(ctx, req)
	switch {
	case err != nil:
		return "", errors.New(strings.TrimPrefix(a.secrets.Text(err.Error()), string(protocol.CodeToolError)+": "))
	case answer.Status == http.StatusUnauthorized || answer.Status == http.StatusForbidden:
		return "", &host.Lack{Err: fmt.Errorf("it answers HTTP %d: are its headers right?", answer.Status), Minor: true}
	}
	return fmt.Sprintf("it answers HTTP %d", answer.Status), nil
}

// lookOpenAPI reads the description and counts its operations.
func (p *Plugin) lookOpenAPI(ctx context.Context, o OpenAPIOptions) (string, error) {
	m, err := p.loadOpenAPI(ctx, o, true)
	if err != nil {
		return "", err
	}
	m.close()
	return strings.TrimSuffix(fmt.Sprintf("its description has %s; %s", protocol.Count(len(m.tools), "operation"),
		m.note), "; "), nil
}

func (p *Plugin) tryOpenAPI(ctx context.Context, o OpenAPIOptions) (string, error) {
	found, err := p.lookOpenAPI(ctx, o)
	if err != nil || o.BaseURL == "" {
		return found, err
	}
	answer, err := p.tryAPI(ctx, kitOpenAPI, o.HTTPOptions())
	return found + "; " + answer, err
}

// openSQL makes the engine of the config's database. It does not open the database yet.
func (p *Plugin) openSQL(o SQLOptions) (*database, error) {
	d := &database{secrets: redact.New(nil), maxOut: p.env.MaxOutputBytes}
	return d, p.openEngine(d, o.DSN.Reveal(), o.readOnly(), true)
}

func (p *Plugin) lookSQL(o SQLOptions) (string, error) {
	d, err := p.openSQL(o)
	if err != nil {
		return "", err
	}
	defer d.close()
	if file, ok := d.engine.(*sqliteFile); ok {
		_, _, err := file.locate()
		return "its file is there", err
	}
	return d.name, nil
}

func (p *Plugin) trySQL(ctx context.Context, o SQLOptions) (string, error) {
	d, err := p.openSQL(o)
	if err != nil {
		return "", err
	}
	defer d.close()
	if _, err := d.run(ctx, statement{text: "SELECT 1", rows: 1, bytes: sqlMaxValue}); err != nil {
		return "", errors.New(d.secrets.Text(err.Error()))
	}
	return d.name + " answers", nil
}
