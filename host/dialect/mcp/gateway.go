package mcp

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/host"
	"a2e/host/dialect"
	"a2e/protocol"
)

// The client also gets the tools, prompts and resources of the MCP servers behind the host. Tools and prompts are
// called SERVER__NAME. A resource keeps its URI, unless the host or an earlier server has the same one: then its URI is
// mcp://SERVER/URI.
const serverScheme = "mcp://"

// serverRow is an entry of the lists mcp/resource/list and mcp/prompt/list. The members of type jsontext.Value are as
// the server wrote them.
type serverRow struct {
	ServerID    string         `json:"server_id"`
	Name        string         `json:"name"`
	Title       string         `json:"title"`
	Description string         `json:"description"`
	URI         string         `json:"uri"`
	Template    string         `json:"uri_template"`
	MIMEType    string         `json:"mime_type"`
	Size        jsontext.Value `json:"size"`
	Annotations jsontext.Value `json:"annotations"`
	Arguments   jsontext.Value `json:"arguments"`
	Icons       jsontext.Value `json:"icons"`
	Meta        jsontext.Value `json:"_meta"`
}

// described returns what the entry says about itself.
func (s *server) described(r *serverRow) described {
	about := described{
		Name: r.Name, Title: r.Title, Description: r.Description, MIMEType: r.MIMEType,
		Icons: s.icons(r.Icons), Meta: r.Meta,
	}
	if len(r.Annotations) > len("{}") {
		about.Annotations = r.Annotations
	}
	return about
}

// rowPage is one page of serverRows.
type rowPage struct {
	Resources []serverRow `json:"resources"`
	Prompts   []serverRow `json:"prompts"`
	Next      string      `json:"next_cursor"`
}

// rows returns a list of all servers behind the host. It is empty if no plugin serves it.
func (s *server) rows(ctx context.Context, list protocol.Type) (all []serverRow, err error) {
	for cursor, more := "", true; more; more = cursor != "" {
		var page rowPage
		err := host.ServicesOf(ctx).Call(ctx, list, map[string]string{"cursor": cursor}, &page, nil)
		switch {
		case dialect.IsMissing(err):
			return nil, nil
		case err != nil:
			return nil, err
		}
		all = append(append(all, page.Resources...), page.Prompts...)
		cursor = page.Next
	}
	return all, nil
}

// serverResources returns the resources and the templates of the servers, sorted by URI.
func (s *server) serverResources(ctx context.Context) (resources []*resource, templates []*template, err error) {
	rows, err := s.rows(ctx, protocol.TypeMCPResourceListReq)
	seen := make(map[string]bool, len(rows))
	for _, r := range rows {
		uri := r.URI + r.Template // each entry has one of the two
		row := r.ServerID + " " + uri
		if seen[row] { // the server listed it twice
			continue
		}
		seen[row] = true
		if s.isOwn(ctx, uri) || seen[uri] {
			uri = serverScheme + r.ServerID + "/" + uri
		}
		seen[uri] = true
		about := s.described(&r)
		if r.Template != "" {
			templates = append(templates, &template{described: about, URITemplate: uri})
		} else {
			resources = append(resources, &resource{described: about, URI: uri, Size: r.Size})
		}
	}
	sortBy(resources, func(r *resource) string { return r.URI })
	sortBy(templates, func(t *template) string { return t.URITemplate })
	return resources, templates, err
}

// isOwn reports whether the scheme of a URI belongs to the host itself.
func (s *server) isOwn(ctx context.Context, uri string) bool {
	scheme, _, _ := strings.Cut(uri, "://")
	return slices.Contains([]string{"file", "memory", "mcp"}, strings.ToLower(scheme)) ||
		slices.ContainsFunc(host.ServicesOf(ctx).Files(),
			func(f host.FileSource) bool { return strings.EqualFold(f.Scheme(), scheme) })
}

// splitURI splits mcp://SERVER/URI into its two parts; id is "" for any other URI.
func splitURI(uri string) (id, rest string) {
	if named, ok := strings.CutPrefix(uri, serverScheme); ok {
		if id, rest, ok = strings.Cut(named, "/"); ok {
			return id, rest
		}
	}
	return "", uri
}

// readServer reads a resource of a server behind the host.
func (s *server) readServer(ctx context.Context, uri string) (*readResult, error) {
	id, at := splitURI(uri)
	var resp struct {
		Contents []protocol.Object `json:"contents"`
		Meta     jsontext.Value    `json:"_meta"`
	}
	err := host.ServicesOf(ctx).Call(ctx, protocol.TypeMCPResourceReadReq, &protocol.MCPResourceReadRequest{
		URI:      at,
		ServerID: id,
	}, &resp, nil)
	switch {
	case dialect.IsMissing(err):
		return nil, rpcErrorf(codeResourceNotFound, "no resource has this URI; the URIs here begin with %s/ and %s",
			fileScheme, memoryScheme)
	case err != nil:
		return nil, err
	}
	res := &readResult{Contents: []jsontext.Value{}, Meta: resp.Meta}
	for _, c := range resp.Contents {
		res.Contents = append(res.Contents, partOf(c, at, uri))
	}
	return res, nil
}

// partOf returns a part of a resource as MCP writes it. The part with the URI at gets uri, by which the client asked
// for it.
func partOf(c protocol.Object, at, uri string) jsontext.Value {
	if own := c.Text("uri"); own != at && own != "" {
		uri = own
	}
	out := withLast([]byte("{}"), "uri", protocol.AppendString(nil, uri))
	skip := "blob"
	if c.Text("type") == "blob" {
		skip = "text"
	}
	for key, val := range c.All() {
		switch name := string(key); name {
		case "uri", "type", skip:
		case "mime_type":
			out = withLast(out, "mimeType", val)
		default:
			out = withLast(out, name, val)
		}
	}
	return out
}

// prompt is an entry of prompts/list.
type prompt struct {
	described
	Arguments jsontext.Value `json:"arguments,omitempty"`
}

// serverPrompts returns the prompts of the servers.
func (s *server) serverPrompts(ctx context.Context) ([]*prompt, error) {
	rows, err := s.rows(ctx, protocol.TypeMCPPromptListReq)
	all := make([]*prompt, len(rows))
	for i := range rows {
		all[i] = &prompt{described: s.described(&rows[i])}
		all[i].Name = protocol.MCPName(rows[i].ServerID, rows[i].Name)
		if len(rows[i].Arguments) > len("[]") {
			all[i].Arguments = rows[i].Arguments
		}
	}
	return all, err
}

// promptResult is the result of prompts/get. The type of the go-sdk would drop unknown members of blocks that are
// passed on.
type promptResult struct {
	mcp.ResultBase
	kind
	Description string           `json:"description,omitempty"`
	Messages    []jsontext.Value `json:"messages"`
	Meta        jsontext.Value   `json:"_meta,omitempty"`
}

// getServerPrompt returns a prompt of a server behind the host.
func (s *server) getServerPrompt(ctx context.Context, name string, args map[string]string) (*promptResult, error) {
	rows, err := s.rows(ctx, protocol.TypeMCPPromptListReq)
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(rows, func(r serverRow) bool { return protocol.MCPName(r.ServerID, r.Name) == name })
	if at < 0 {
		return nil, rpcErrorf(codeInvalidParams, "unknown prompt %.64q; prompts/list names those there are", name)
	}
	req := map[string]any{"name": rows[at].Name, "server_id": rows[at].ServerID, "arguments": args}
	if args == nil {
		delete(req, "arguments")
	}
	res := &promptResult{Messages: []jsontext.Value{}}
	if err := host.ServicesOf(ctx).Call(ctx, protocol.TypeMCPPromptGetReq, req, res, nil); err != nil {
		return nil, passed(err)
	}
	return res, nil
}

// rawResult is the result of a server behind the host, unchanged.
type rawResult struct {
	mcp.ResultBase
	raw jsontext.Value
}

// MarshalJSON implements json.Marshaler.
func (r *rawResult) MarshalJSON() ([]byte, error) { return r.raw, nil }

// forward answers a request through the gateway that owns the server of the request.
func (s *server) forward(ctx context.Context, r *request, _ mcp.Params) (mcp.Result, error) {
	out, err := s.forwarded(ctx, r)
	return &rawResult{raw: out.result}, err
}

// forwarded does the work of forward, for requests that do not go through the go-sdk.
func (s *server) forwarded(ctx context.Context, r *request) (out encoded, err error) {
	if cursor := string(member(r.params, "cursor")); r.method == methodTasks &&
		!slices.Contains([]string{"", "null", `""`}, cursor) {
		_, err := readCursor("tasks", "") // the list has one page, so no cursor is valid
		return out, err
	}
	err = rpcErrorf(codeMethodNotFound, "no MCP server behind the host takes %s", r.method)
	for _, g := range host.Each[dialect.MCPGateway](host.ServicesOf(ctx)) {
		var raw jsontext.Value
		if raw, err = g.ForwardMCP(ctx, r.method, r.params, s.emitter(r, r.method)); err == nil {
			err = raw.Compact(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
			return encoded{result: raw}, err
		}
		if !host.IsNotOwner(err) {
			break
		}
	}
	return out, passed(err)
}

// passed restores the error that a server behind the host answered with: its code and its data. It returns any other
// error unchanged.
func passed(err error) error {
	own, is := errors.AsType[*protocol.Error](err)
	if !is || own.Detail["server_id"] == nil {
		return err
	}
	code, ok := own.Detail["code"].(int64)
	if !ok || code == 0 {
		return err
	}
	data, _ := own.Detail["data"].(jsontext.Value)
	return &rpcError{Code: code, Message: shortened(own.Message), Data: []byte(data)}
}

// subscribe answers resources/subscribe.
func (s *server) subscribe(ctx context.Context, _ *request, params mcp.Params) (mcp.Result, error) {
	uri := params.(*mcp.SubscribeParams).URI
	if err := s.follow(ctx, uri); err != nil {
		return nil, err
	}
	return &rawResult{raw: noResult()}, nil
}

// follow subscribes to a resource of a server behind the host.
func (s *server) follow(ctx context.Context, uri string) error {
	id, at := splitURI(uri)
	var resp protocol.MCPResourceSubscribeResponse
	err := host.ServicesOf(ctx).Call(ctx, protocol.TypeMCPResourceSubscribeReq,
		&protocol.MCPResourceSubscribeRequest{URI: at, ServerID: id}, &resp, nil)
	switch {
	case dialect.IsMissing(err):
		return rpcErrorf(codeMethodNotFound, "there is no MCP server behind the host, whose resources alone can be "+
			"subscribed to")
	case err != nil:
		return resourceError(uri, err)
	}
	s.subs.Store(uri, id)
	return nil
}

// unsubscribe answers resources/unsubscribe.
func (s *server) unsubscribe(ctx context.Context, r *request, params mcp.Params) (mcp.Result, error) {
	s.subs.Delete(params.(*mcp.UnsubscribeParams).URI)
	return s.forward(ctx, r, params)
}

// unfollow ends the subscription to a resource, unless another listener has one.
func (s *server) unfollow(ctx context.Context, uri string) {
	others := 0
	s.listeners.Range(func(key, _ any) bool {
		if slices.Contains(key.(*listener).want.ResourceSubscriptions, uri) {
			others++
		}
		return true
	})
	if others > 1 { // the listener that ends is among them
		return
	}
	s.subs.Delete(uri)
	for _, g := range host.Each[dialect.MCPGateway](host.ServicesOf(ctx)) {
		_, _ = g.ForwardMCP(ctx, methodUnsubscribe, uriParams(uri),
			host.Mute{}) // if this fails, the server sends news that nobody asked for
	}
}

// hasServers reports whether there may be MCP servers behind the host.
func (s *server) hasServers() bool {
	return len(host.Each[dialect.MCPGateway](host.ServicesOf(s.ctx))) > 0
}

// hasTasks reports whether a client may run tools as tasks. Only tools of MCP servers run so.
func (s *server) hasTasks() bool { return s.hasServers() && !s.opts.NoTasks }

// updated tells the client about a change of a resource that it subscribed to, or of a part of that resource.
func (s *server) updated(push *protocol.MCPServerPush) {
	uri := push.Params.Text("uri")
	s.subs.Range(func(key, of any) bool {
		prefix := ""
		if of != "" {
			prefix = serverScheme + push.ServerID + "/"
		}
		sub := key.(string)
		if full := prefix + uri; full == sub || strings.HasPrefix(full, strings.TrimSuffix(sub, "/")+"/") {
			s.notify(notifyUpdated, withURI(push.Params, full), func(want mcp.NotificationSubscriptions) bool {
				return slices.Contains(want.ResourceSubscriptions, sub)
			})
			return false
		}
		return true
	})
}

// withURI returns params with another URI.
func withURI(params protocol.Object, uri string) jsontext.Value {
	return withMembers(uriParams(uri), params, "uri")
}
