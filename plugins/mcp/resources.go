package mcp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/yosida95/uritemplate/v3"

	"a2e/host"
	"a2e/protocol"
)

// The bounds of the templates that URIs are matched with, in bytes: the cost of one character of a URI
// grows with the length of the templates.
const (
	maxTemplate  = 512
	maxTemplates = 16 << 10 // of one server
	maxTemplated = 2 << 10  // of a URI
)

// codeNotFound is MCP's own code for a resource that is not there.
const codeNotFound = -32002

// boundTemplate is a template of a server; match is nil for one that cannot be used.
type boundTemplate struct {
	listed
	uri   string // the template
	match *regexp.Regexp
}

// takeResources takes the entries of the server's lists as its resources and templates.
func (s *server) takeResources(found, templates []jsontext.Value) {
	good := s.take("resources", resourceShape(), found)
	bound := make([]*boundTemplate, 0, len(templates))
	size := 0
	for _, t := range s.take("templates", templateShape(), templates) {
		b := &boundTemplate{listed: t, uri: t.Text("uriTemplate")}
		if n := len(b.uri); n <= maxTemplate && size+n <= maxTemplates {
			size += n
			b.match = matcher(b.uri)
		}
		bound = append(bound, b)
	}
	s.mu.Lock()
	s.resources, s.templates = good, bound
	s.mu.Unlock()
}

// matcher returns the expression that matches the URIs of a template, or nil if the template is not valid.
// The Match of the package uritemplate takes minutes with some templates.
func matcher(template string) (re *regexp.Regexp) {
	defer func() {
		if recover() != nil {
			re = nil
		}
	}()
	t, err := uritemplate.New(template)
	if err != nil {
		return nil
	}
	return t.Regexp()
}

// resources answers mcp/resource/list/req: the resources and templates of the servers,
// page by page.
func (p *Plugin) resources(ctx context.Context, req *protocol.MCPResourceListRequest,
	_ host.Emitter,
) (*protocol.MCPResourceListResponse, error) {
	rows, next, err := p.page(ctx, req.Cursor, "resources", req.ServerID, (*server).resourceEntries)
	return &protocol.MCPResourceListResponse{Resources: rows, NextCursor: next}, err
}

// MergeResources adds the resources of a plugin of lower priority, for host.List.
func MergeResources(dst, src *protocol.MCPResourceListResponse) {
	dst.Resources = append(dst.Resources, src.Resources...)
	dst.NextCursor = joinCursors(dst.NextCursor, src.NextCursor)
}

// resourceEntries returns the readable resources of a server and then its templates.
func (s *server) resourceEntries() []listRow {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]listRow, 0, len(s.resources)+len(s.templates))
	for _, r := range s.resources {
		uri := r.Text("uri")
		if !s.readable(uri) {
			continue
		}
		row := s.describe(r)
		row["uri"] = uri
		if size := r.raw("size"); size != nil && string(size) != "0" {
			row["size"] = size
		}
		out = append(out, listRow{uri, row})
	}
	for _, t := range s.templates {
		row := s.describe(t.listed)
		row["uri"], row["uri_template"] = "", t.uri
		out = append(out, listRow{"\x00" + t.uri, row})
	}
	return out
}

// describe returns the row of an entry of the list, without its URI.
func (s *server) describe(l listed) map[string]any {
	row := l.row(s.opts.ID)
	row["mime_type"], row["annotations"] = l.Text("mimeType"), map[string]any{}
	if said := l.raw("annotations"); said != nil {
		row["annotations"] = said
	}
	return row
}

// readable reports whether the config lets a URI be read.
func (s *server) readable(uri string) bool {
	return len(s.opts.Resources) == 0 || matches(s.opts.Resources, uri)
}

// offers reports whether the server lists a URI, or has a template for it.
func (s *server) offers(uri string) (listed, templated bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.resources {
		if r.Text("uri") == uri {
			return true, false
		}
	}
	for _, t := range s.templates {
		if t.match != nil && len(uri) <= maxTemplated && t.match.MatchString(uri) {
			return false, true
		}
	}
	return false, false
}

// serverOf returns the server of a URI: the server with the id, or if the id is "" the first one that lists
// the URI, or else the first one that has a template for it.
func (p *Plugin) serverOf(ctx context.Context, uri, id string) (*server, error) {
	if uri == "" {
		return nil, protocol.Violation(protocol.FieldError{Path: "/uri", Message: "is empty; should be the URI of a " +
			"resource"})
	}
	if id != "" {
		s, err := p.find(id)
		if err == nil && !s.readable(uri) {
			err = protocol.Errorf(protocol.CodeMCPResourceNotFound, "the config does not let %q of the MCP server "+
				"%q be read", protocol.Clip(uri, maxProblem), id)
		}
		if err != nil {
			return nil, err
		}
		return s, s.usable()
	}
	all := p.all()
	var s *server
	p.await(ctx, all, kindAll, func() bool { s = whoOffers(all, uri); return s != nil })
	if s != nil {
		return s, nil
	}
	return nil, host.NotOwner(protocol.Errorf(protocol.CodeMCPResourceNotFound,
		"no MCP server lists %q or has a template for it; mcp/resource/list/req lists them, and server_id "+
			"asks one server anyway", protocol.Clip(uri, maxProblem)))
}

// whoOffers returns the first server that lists a URI, or else the first that has a template for it, or nil
// if there is none. The config must let the URI be read.
func whoOffers(all []*server, uri string) *server {
	var second *server
	for _, s := range all {
		listed, templated := s.offers(uri)
		switch {
		case !s.readable(uri):
		case listed:
			return s
		case templated && second == nil:
			second = s
		}
	}
	return second
}

// usable returns the error of a server that is disabled, or nil if it is not.
func (s *server) usable() error {
	if s.link == nil {
		return protocol.Errorf(protocol.CodeMCPServerUnavailable, "the MCP server %q is disabled in the config",
			s.opts.ID).With("server_id", s.opts.ID)
	}
	return nil
}

// read answers mcp/resource/read/req.
func (p *Plugin) read(ctx context.Context, req *protocol.MCPResourceReadRequest,
	_ host.Emitter,
) (*protocol.MCPResourceReadResponse, error) {
	s, err := p.serverOf(ctx, req.URI, req.ServerID)
	if err != nil {
		return nil, err
	}
	var raw jsontext.Value
	err = s.asked(ctx, func(ctx context.Context, cs *sdk.ClientSession) (err error) {
		raw, err = s.request(ctx, cs, "resources/read", map[string]any{"uri": req.URI})
		return err
	})
	if code, ok := answeredCode(err); ok && (code == codeNotFound || saysUnknown(err)) {
		err = withCode(err, protocol.CodeMCPResourceNotFound)
	}
	if err != nil {
		return nil, err
	}
	return s.contents(req.URI, raw)
}

// contents reads a result of resources/read. A part that cannot be read is left out; if no part can be
// read, that is an error.
func (s *server) contents(uri string, raw jsontext.Value) (*protocol.MCPResourceReadResponse, error) {
	resp := &protocol.MCPResourceReadResponse{ServerID: s.opts.ID, Contents: []map[string]any{}}
	res, err := protocol.ParseObject(raw)
	list, _ := res.Get("contents")
	items, bad := listItems(list)
	if err == nil && bad != nil {
		err = errors.New("its result has no list of contents")
	}
	if meta, _ := res.Get("_meta"); meta != nil {
		resp.Meta = jsontext.Value(passedMeta(meta))
	}
	for _, item := range items {
		row, why := part(uri, item)
		if why != nil {
			err = fmt.Errorf("a part of it %w", why)
			s.p.env.Log.Warn().Err(err).Str("mcp_server", s.opts.ID).Str("uri", protocol.Clip(uri, maxProblem)).
				Msg("a part of a resource of the MCP server is left out")
			continue
		}
		resp.Contents = append(resp.Contents, row)
	}
	if err != nil && len(resp.Contents) == 0 {
		return nil, protocol.Errorf(protocol.CodeMCPProtocolError,
			"the resource of the MCP server %q cannot be read: %w", s.opts.ID, err)
	}
	return resp, nil
}

// part returns the row of one part of a resource. The error is the end of a sentence about the part.
func part(uri string, raw []byte) (map[string]any, error) {
	shape := partShape()
	shape.required = nil // a part without a uri has that of the request
	obj, err := shape.fit(raw)
	if err == nil {
		err = hasContent(obj)
	}
	if err != nil {
		return nil, err
	}
	row := map[string]any{}
	for key, val := range obj.All() {
		row[string(key)] = jsontext.Value(val)
	}
	delete(row, "mimeType")
	if _, said := row["uri"]; !said {
		row["uri"] = uri
	}
	kind, mime := "text", "text/plain"
	if _, blob := row["blob"]; blob {
		kind, mime, row["text"] = "blob", "application/octet-stream", ""
	} else {
		row["blob"] = ""
	}
	row["type"], row["mime_type"] = kind, cmp.Or(obj.Text("mimeType"), mime)
	return row, nil
}

// maxSubscriptions bounds the resources of one server that somebody listens to.
const maxSubscriptions = 1_000

// subscribe answers mcp/resource/subscribe/req: from then on the agent gets changes of the resource as
// mcp/server/push with the req_id of the request, until the session ends.
func (p *Plugin) subscribe(ctx context.Context, req *protocol.MCPResourceSubscribeRequest,
	_ host.Emitter,
) (*protocol.MCPResourceSubscribeResponse, error) {
	s, err := p.serverOf(ctx, req.URI, req.ServerID)
	if err != nil {
		return nil, err
	}
	feed := host.OpenStream(ctx)
	err = s.listen(req.URI, feed)
	if err == nil {
		err = s.subscribeUpstream(ctx, req.URI)
	}
	if err != nil {
		s.forget(func(uri string, f *host.Stream) bool { return f == feed })
		feed.Close()
		return nil, err
	}
	return &protocol.MCPResourceSubscribeResponse{OK: true}, nil
}

// listen adds a listener of a resource and closes an older one of the same session.
func (s *server) listen(uri string, feed *host.Stream) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	there, known := s.subs[uri]
	if !known && len(s.subs) >= maxSubscriptions {
		return protocol.Errorf(protocol.CodeOverloaded, "%d resources of the MCP server %q are subscribed to, and "+
			"no more are possible", maxSubscriptions, s.opts.ID)
	}
	s.stale = slices.DeleteFunc(s.stale, func(old string) bool { return old == uri })
	kept := make([]*host.Stream, 0, len(there)+1)
	for _, f := range there {
		if f.Session() == feed.Session() {
			f.Close()
			continue
		}
		kept = append(kept, f)
	}
	s.subs[uri] = append(kept, feed)
	return nil
}

// subscribeUpstream subscribes to a resource at the server.
func (s *server) subscribeUpstream(ctx context.Context, uri string) error {
	return s.link.Call(ctx, func(ctx context.Context, cs *sdk.ClientSession) error {
		if r := s.capabilities().Resources; r == nil || !r.Subscribe {
			return protocol.Errorf(protocol.CodeMCPCapabilityMissing, "the MCP server %q has no subscriptions",
				s.opts.ID)
		}
		return cs.Subscribe(ctx, &sdk.SubscribeParams{URI: uri})
	})
}

// feeds returns the listeners of a resource, or if it has none those of the resources that it is a part of.
func (s *server) feeds(uri string) []*host.Stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	if exact := s.subs[uri]; len(exact) > 0 {
		return slices.Clone(exact)
	}
	var out []*host.Stream
	for of, feeds := range s.subs {
		if strings.HasPrefix(uri, strings.TrimSuffix(of, "/")+"/") {
			out = append(out, feeds...)
		}
	}
	return out
}

// endSession ends the subscriptions of a session.
func (s *server) endSession(sess *host.Session) {
	s.forget(func(_ string, f *host.Stream) bool { return f.Session() == sess })
	s.forgetCaller(sess)
}

// forget removes the listeners that which picks, and has run unsubscribe from resources without listeners.
func (s *server) forget(which func(uri string, f *host.Stream) bool) {
	s.mu.Lock()
	gone := false
	for uri, feeds := range s.subs {
		kept := slices.DeleteFunc(slices.Clone(feeds), func(f *host.Stream) bool { return which(uri, f) })
		s.subs[uri] = kept
		if len(kept) == 0 {
			delete(s.subs, uri)
			s.stale = append(s.stale, uri)
			gone = true
		}
	}
	s.mu.Unlock()
	if gone {
		s.signal()
	}
}

// unsubscribeStale unsubscribes from the resources that nobody listens to any more.
func (s *server) unsubscribeStale(ctx context.Context) {
	s.mu.Lock()
	uris := s.stale
	s.stale = nil
	s.mu.Unlock()
	for _, uri := range uris {
		err := s.link.Call(ctx, func(ctx context.Context, cs *sdk.ClientSession) error {
			return cs.Unsubscribe(ctx, &sdk.UnsubscribeParams{URI: uri})
		})
		s.mu.Lock()
		_, again := s.subs[uri]
		s.mu.Unlock()
		if again { // somebody subscribed meanwhile
			err = s.subscribeUpstream(ctx, uri)
		}
		if err != nil { // the server then sends changes that nobody asked for
			s.p.env.Log.Debug().Err(err).Str("mcp_server", s.opts.ID).Msg("a subscription could not be ended")
		}
	}
}
