package toolkits

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/bmatcuk/doublestar/v4"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/guard/wall"
	"a2e/host/guard/webguard"
	"a2e/host/schema"
	"a2e/plugins/tools"
	"a2e/protocol"
)

// specTimeout bounds the fetch of a description.
const specTimeout = 10 * time.Second

// newOpenAPI makes the toolkit openapi without tools. made.load makes them from the description: for
// the config when tools are first needed, for the agent at once.
func (p *Plugin) newOpenAPI(o OpenAPIOptions, byConfig bool) (*made, error) {
	if o.Spec == "" {
		return nil, p.wrongSetting("spec", "is empty; it is the file or URL of an OpenAPI description", byConfig)
	}
	if len(o.Headers) > 0 && o.BaseURL == "" {
		return nil, p.wrongSetting("headers", "need base_url: the description alone must not say where they are sent",
			byConfig)
	}
	for key, patterns := range map[string][]string{"include": o.Include, "exclude": o.Exclude} {
		if len(patterns) > specMaxPatterns {
			return nil, p.wrongSetting(key, fmt.Sprintf("has %d patterns; %d are the most", len(patterns),
				specMaxPatterns), byConfig)
		}
		for _, pattern := range patterns {
			if !doublestar.ValidatePattern(pattern) {
				return nil, p.wrongSetting(key, fmt.Sprintf("%.100q is not a valid pattern", pattern), byConfig)
			}
		}
	}
	if byConfig {
		if o.BaseURL != "" { // errors in it are reported at the start
			if _, err := p.newAPI(kitOpenAPI, o.HTTPOptions(), true, true); err != nil {
				return nil, err
			}
		}
	}
	return &made{loading: make(chan struct{}, 1), load: func(ctx context.Context) (*made,
		error,
	) {
		return p.loadOpenAPI(ctx, o, byConfig)
	}}, nil
}

// HTTPOptions returns the base URL of the API and the headers of its requests.
func (o OpenAPIOptions) HTTPOptions() HTTPOptions {
	return HTTPOptions{BaseURL: o.BaseURL, Headers: o.Headers}
}

// loadOpenAPI reads the description and makes a tool for each of its operations.
func (p *Plugin) loadOpenAPI(ctx context.Context, o OpenAPIOptions, byConfig bool) (*made, error) {
	text, at, err := p.specText(ctx, o.Spec, byConfig)
	if err != nil {
		return nil, err
	}
	name, _, _ := strings.Cut(o.Spec, "?") // a query may hold a secret
	s, err := readSpec(name, text)
	if err != nil {
		return nil, p.specError(err, byConfig)
	}
	s.at, s.baseURL = at, o.BaseURL
	apis := make(map[string]*api)
	closes := func() {
		for _, a := range apis {
			a.web.Close()
		}
	}
	if o.BaseURL != "" { // without it there are no headers
		a, err := p.newAPI(kitOpenAPI, o.HTTPOptions(), byConfig, byConfig)
		if err != nil {
			return nil, err
		}
		apis[o.BaseURL], s.headers = a, a.headers
	}
	ops, err := s.operations(o.Include, o.Exclude)
	if err != nil {
		closes()
		return nil, p.specError(err, byConfig)
	}
	all := p.operationTools(s, ops, apis, byConfig)
	if len(all) == 0 {
		closes()
		return nil, p.specError(errors.Join(s.problems...), byConfig)
	}
	m := newMade(kitOpenAPI, all, closes)
	if m.note = s.note(); m.note != "" {
		p.env.Log.Warn().Str("toolkit", kitOpenAPI).Msg(m.note)
	}
	return m, nil
}

// operationTools makes the tools of operations, and adds an api for each server to apis. Only a server on the host
// from which the config has the description may be on a private address.
func (p *Plugin) operationTools(s *spec, ops []*operation, apis map[string]*api, byConfig bool) (all []tools.Tool) {
	for _, op := range ops {
		a := apis[op.server]
		if a == nil {
			u, err := url.Parse(op.server)
			private := byConfig && err == nil && s.at != nil && u.Host == s.at.Host
			if a, err = p.newAPI(kitOpenAPI, HTTPOptions{BaseURL: op.server}, byConfig, private); err != nil {
				s.leaveOut(s.wrong(op.pointer, "the server %.200q: %s", op.server, err))
				continue
			}
			apis[op.server] = a
		}
		all = append(all, a.operationTool(op))
	}
	return all
}

// specError returns the error for a mistake in a description.
func (p *Plugin) specError(err error, byConfig bool) error {
	if byConfig {
		return err
	}
	return protocol.Violation(protocol.FieldError{Path: "/config/spec", Message: err.Error()})
}

// specText returns the text of a description, and the URL that it was fetched from; nil = a file.
func (p *Plugin) specText(ctx context.Context, name string, byConfig bool) ([]byte, *url.URL, error) {
	if strings.HasPrefix(name, "http://") || strings.HasPrefix(name, "https://") {
		if !byConfig {
			return nil, nil, protocol.Errorf(protocol.CodeToolDenied, "the URL of a description is named by the "+
				"host's config only; the agent may name a file of the workspace")
		}
		return fetchSpec(ctx, name)
	}
	var f *os.File
	var err error
	if byConfig {
		if !filepath.IsAbs(name) {
			name = filepath.Join(p.env.Workspace, name)
		}
		if f, err = os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0); err != nil {
			err = errors.New(fileReason(err))
		}
	} else {
		f, _, err = p.openFile(name)
	}
	var told *protocol.Error
	switch {
	case errors.As(err, &told):
		return nil, nil, err
	case err != nil:
		return nil, nil, p.wrongSetting("spec", err.Error(), byConfig)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || info.Size() > specMaxBytes || byConfig &&
		p.isOwn(wall.Real(name), info) {
		return nil, nil, p.wrongSetting("spec", fmt.Sprintf("is not a file, has more than %d bytes, or belongs to "+
			"the host", specMaxBytes), byConfig)
	}
	text, err := io.ReadAll(io.LimitReader(f, specMaxBytes))
	return text, nil, err
}

// fetchSpec fetches a description. The config names the address, so it may be private. Redirects to another host
// are not followed.
func fetchSpec(ctx context.Context, name string) ([]byte, *url.URL, error) {
	ctx, cancel := context.WithTimeout(ctx, specTimeout) // lists of tools wait for it
	defer cancel()
	var u *url.URL
	web := tools.NewWeb(webguard.Options{AllowPrivate: true}, 0,
		func(to *url.URL) bool { return to.Scheme == u.Scheme && to.Host == u.Host })
	defer web.Close()
	u, err := web.Parse(name)
	if err != nil {
		return nil, nil, err
	}
	header := http.Header{"Accept": {"application/json, application/yaml, */*;q=0.5"}, "User-Agent": {"a2e (toolkit " +
		"openapi)"}}
	text, at, truncated, err := web.Get(ctx, u, header, specMaxBytes)
	if truncated {
		err = fmt.Errorf("the description has more than %d bytes", specMaxBytes)
	}
	return text, at, err
}

// operationTool makes the tool of one operation.
func (a *api) operationTool(op *operation) tools.Tool {
	detail := host.ToolDetail{OpenWorld: true, InputSchema: op.schema, Title: op.title}
	switch op.method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		detail.ReadOnly, detail.Idempotent = true, true
	case http.MethodPut, http.MethodDelete:
		detail.Destructive, detail.Idempotent = true, true
	}
	def := protocol.ToolDefinition{
		Name: op.tool, Description: op.description, InputParameters: op.parameters, Idempotent: detail.Idempotent,
		Tags:             append([]string{"api", strings.ToLower(op.method)}, op.tags...),
		OutputParameters: tools.Members[operationAnswer](),
	}
	return tools.Tool{
		Def: def, Detail: detail,
		Check: tools.CheckBy(func() (*schema.Schema, error) { return schema.Compile(op.schema, 2*specMaxParts) }),
		Call: func(ctx context.Context, args protocol.Object, _ host.Emitter) (*tools.Outcome, error) {
			return a.operate(ctx, op, args)
		},
	}
}

// operationAnswer is the data of the tool of an operation.
type operationAnswer struct {
	Status      int    `json:"status" need:"HTTP status. From 400 up the call counts as failed."`
	ContentType string `json:"content_type" need:"Content-Type as the server sent it."`
	Content     any    `json:"content" need:"JSON as it is, else the text; cut at the host's output limit."`
}

// operate sends the request of an operation.
func (a *api) operate(ctx context.Context, op *operation, args protocol.Object) (*tools.Outcome, error) {
	req, err := op.request(ctx, a, args)
	if err != nil {
		return nil, err
	}
	out, answer, err := a.send(ctx, req)
	if err != nil {
		return nil, err
	}
	data := &operationAnswer{answer.Status, answer.ContentType, answer.Content}
	media, _, _ := strings.Cut(answer.ContentType, ";")
	if content := jsontext.Value(answer.Content); isJSON(media) && content.IsValid() && content.Compact() == nil {
		data.Content = content
	}
	out.Data = data
	return out, nil
}

// isJSON reports whether a media type is JSON.
func isJSON(media string) bool {
	media = strings.ToLower(strings.TrimSpace(media))
	return media == "application/json" || strings.HasSuffix(media, "+json")
}
