package toolkits

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"

	"a2e/host"
	"a2e/host/child"
	"a2e/host/redact"
	"a2e/host/sandbox"
	"a2e/protocol"
)

// Needs implements host.Needer: what the toolkits of the config work on.
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
		add(kitHTTP, "base_url", func() (string, error) { return p.address(*o) }, func(ctx context.Context) (string, error) { return p.tryAPI(ctx, kitHTTP, *o) })
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
		add(kitSQL, "dsn", func() (string, error) { return p.lookSQL(*o) }, func(ctx context.Context) (string, error) { return p.trySQL(ctx, *o) })
	}
	return all
}

// address returns where an API is.
func (p *Plugin) address(o HTTPOptions) (string, error) {
	a, err := p.newAPI(kitHTTP, o, true, true)
	if err != nil {
		return "", err
	}
	defer a.web.Close()
	return a.base.Scheme + "://" + a.base.Host, nil
}

// tryAPI asks for the base URL: whatever the answer says, there is one.
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
	return fmt.Sprintf("its description has %d operations", len(m.tools)), nil
}

func (p *Plugin) tryOpenAPI(ctx context.Context, o OpenAPIOptions) (string, error) {
	found, err := p.lookOpenAPI(ctx, o)
	if err != nil || o.BaseURL == "" {
		return found, err
	}
	answer, err := p.tryAPI(ctx, kitOpenAPI, o.HTTPOptions())
	return found + "; " + answer, err
}

// openSQL makes the engine of the config's database, which opens nothing yet.
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
