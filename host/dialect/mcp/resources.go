package mcp

import (
	"context"
	"encoding/base64"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/host"
	"a2e/host/child/spill"
	"a2e/host/dialect"
	"a2e/protocol"
)

// Resources are the files of the workspace, the files of other plugins (skills: skill://NAME/FILE, which are not
// listed), the entries of the memory, and the resources of MCP servers behind the host.
const (
	fileScheme   = "file://"
	memoryScheme = "memory://"
)

// described has the members that entries of the lists of resources, templates and prompts have in common.
type described struct {
	Name        string         `json:"name"`
	Title       string         `json:"title,omitempty"`
	Description string         `json:"description,omitempty"`
	MIMEType    string         `json:"mimeType,omitempty"`
	Annotations jsontext.Value `json:"annotations,omitempty"`
	Icons       jsontext.Value `json:"icons,omitempty"`
	Meta        jsontext.Value `json:"_meta,omitempty"`
}

type resource struct {
	described
	URI  string         `json:"uri"`
	Size jsontext.Value `json:"size,omitempty"`
}

type template struct {
	described
	URITemplate string `json:"uriTemplate"`
}

// The lists that resources/list returns one after the other. Each has cursors of its own.
const (
	listServers  = "servers"
	listFiles    = "files"
	listMemories = "memories"
)

// listResources answers resources/list: first the resources of MCP servers, then the files, page by page, then the
// memories on a page of their own.
func (s *server) listResources(ctx context.Context, r *request, _ mcp.Params) (mcp.Result, error) {
	res := &listed{Resources: []*resource{}}
	cursor := r.cursor()
	if after, err := readCursor(listFiles, cursor); err == nil {
		return res, s.addFiles(ctx, res, after)
	}
	if _, err := readCursor(listMemories, cursor); err == nil {
		return res, s.addMemories(ctx, res)
	}
	all, _, err := s.serverResources(ctx)
	if err != nil {
		return nil, err
	}
	res.Resources, res.NextCursor, err = page(all, listServers, cursor, func(r *resource) string { return r.URI })
	if err != nil || res.NextCursor != "" {
		return res, err
	}
	return res, s.addFiles(ctx, res, "")
}

// addFiles adds the page of files that begins after a cursor. If there are no files, it adds the memories.
func (s *server) addFiles(ctx context.Context, res *listed, after string) error {
	files, more, err := s.files(ctx, after)
	if err != nil {
		return err
	}
	res.Resources = append(res.Resources, files...)
	switch {
	case more != "":
		res.NextCursor = writeCursor(listFiles, more)
	case len(files) > 0:
		res.NextCursor = writeCursor(listMemories, "")
	default:
		return s.addMemories(ctx, res)
	}
	return nil
}

func (s *server) addMemories(ctx context.Context, res *listed) error {
	memories, err := s.memories(ctx)
	res.Resources = append(res.Resources, memories...)
	return err
}

// listTemplates answers resources/templates/list.
func (s *server) listTemplates(ctx context.Context, r *request, _ mcp.Params) (mcp.Result, error) {
	own := []*template{
		{URITemplate: "file:///{+path}", described: described{
			Name: "file", Title: "File of the workspace",
			Description: "A text file; path is relative to the workspace.",
		}},
		{URITemplate: "memory://{tier}/{key}", described: described{
			Name: "memory", Title: "Memory", MIMEType: mimeJSON,
			Description: "An entry of the memory; tier is working, episodic or semantic, key the JSON of its key.",
		}},
	}
	_, behind, err := s.serverResources(ctx)
	if err != nil {
		return nil, err
	}
	all := append(own, behind...)
	sortBy(all, func(t *template) string { return t.URITemplate })
	res := new(listed)
	res.Templates, res.NextCursor, err = page(all, "templates", r.cursor(),
		func(t *template) string { return t.URITemplate })
	return res, err
}

// readResource answers resources/read.
func (s *server) readResource(ctx context.Context, r *request, params mcp.Params) (mcp.Result, error) {
	uri := params.(*mcp.ReadResourceParams).URI
	res, err := s.contents(ctx, uri)
	if err != nil {
		failed := resourceError(uri, err)
		if failed.Code == codeResourceNotFound && r.meta != nil { // modern versions have no special code for this
			failed.Code = codeInvalidParams
		}
		return nil, failed
	}
	return res, nil
}

// readResult is the result of resources/read. The type of the go-sdk leaves out an empty text, and clients refuse a
// content without text.
type readResult struct {
	mcp.ResultBase
	cacheable
	Contents []jsontext.Value `json:"contents"`
	Meta     jsontext.Value   `json:"_meta,omitempty"`
}

// resourceText has either a text or the base64 of bytes.
type resourceText struct {
	URI      string  `json:"uri"`
	MIMEType string  `json:"mimeType"`
	Text     *string `json:"text,omitzero"`
	Blob     *string `json:"blob,omitzero"`
}

func (s *server) contents(ctx context.Context, uri string) (*readResult, error) {
	var part *resourceText
	var err error
	switch {
	case strings.HasPrefix(uri, fileScheme):
		var name string
		if name, err = s.pathOf(uri); err == nil {
			part, err = s.readFile(ctx, name)
		}
	case strings.HasPrefix(uri, memoryScheme):
		part, err = s.readMemory(ctx, uri)
	case strings.HasPrefix(uri, serverScheme) || !s.isOwn(ctx, uri):
		return s.readServer(ctx, uri)
	case strings.HasPrefix(uri, spill.Scheme+"://"):
		part, err = s.readSpilled(ctx, uri)
	default:
		part, err = s.readFile(ctx, uri)
	}
	if err != nil {
		return nil, err
	}
	part.URI = uri
	raw, err := protocol.AppendJSON(nil, part)
	return &readResult{Contents: []jsontext.Value{raw}}, err
}

// readSpilled reads output that was too long for an answer. It may be text or bytes.
func (s *server) readSpilled(ctx context.Context, uri string) (*resourceText, error) {
	missing := rpcErrorf(codeResourceNotFound, "there is no such spilled output in this session, or it is gone")
	rest := strings.TrimPrefix(uri, spill.Scheme+"://")
	authority, name, _ := strings.Cut(rest, "/")
	files := host.ServicesOf(ctx).Files()
	at := slices.IndexFunc(files, func(f host.FileSource) bool { return f.Scheme() == spill.Scheme })
	if at < 0 {
		return nil, missing
	}
	root, err := files[at].OpenFiles(ctx, authority)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	info, err := root.Lstat(name)
	switch {
	case err != nil || !info.Mode().IsRegular():
		return nil, missing
	case info.Size() > maxFileRead:
		return nil, protocol.Errorf(protocol.CodeToolError,
			"the output has %d bytes, too many for a resource; read_file gives a text in parts", info.Size())
	}
	content, err := root.ReadFile(name)
	if err != nil {
		return nil, missing
	}
	part := &resourceText{MIMEType: http.DetectContentType(content)}
	if utf8.Valid(content) {
		part.Text, part.MIMEType = new(string(content)), mimeOf(name)
		return part, nil
	}
	part.Blob = new(base64.StdEncoding.EncodeToString(content))
	return part, nil
}

// resourceError adds the URI to an error. If a file tool cannot read a file, the client gets the code of a resource
// that does not exist; the text says why.
func resourceError(uri string, err error) *rpcError {
	if theirs, ok := passed(err).(*rpcError); ok && theirs.Data != nil {
		return theirs
	}
	rpc := toRPC(passed(err))
	if own, ok := errors.AsType[*protocol.Error](err); ok {
		switch own.Code {
		case protocol.CodeToolError, protocol.CodeToolDenied, protocol.CodeUnknownTool, protocol.CodeCapabilityMissing:
			rpc.Code = codeResourceNotFound
		}
	}
	if rpc.Code == codeResourceNotFound {
		rpc.Data = protocol.AppendString([]byte(`{"uri":`), shortened(uri))
		rpc.Data = append(rpc.Data, '}')
	}
	return rpc
}

const (
	maxMemories   = 200 // entries of each tier that are listed, the newest
	maxMemoryName = 80  // bytes
)

// memories returns the newest entries of each tier. It returns none if no plugin serves the memory.
func (s *server) memories(ctx context.Context) (all []*resource, err error) {
	for _, tier := range []protocol.MemoryTier{protocol.TierWorking, protocol.TierEpisodic, protocol.TierSemantic} {
		entries, err := s.retrieve(ctx, &protocol.MemoryRetrieveRequest{
			MemorySelection: protocol.MemorySelection{Tier: tier}, Limit: maxMemories,
		})
		if dialect.IsMissing(err) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			all = append(all, &resource{URI: memoryURI(e.Tier, e.Key), described: described{
				Name: memoryName(e.Key), MIMEType: memoryMIME(&e),
				Description: strings.Join(append([]string{string(e.Tier) + " memory"}, e.Tags...), ", "),
			}})
		}
	}
	return all, nil
}

func (s *server) retrieve(ctx context.Context, req *protocol.MemoryRetrieveRequest) ([]protocol.MemoryEntry, error) {
	var init protocol.MemoryInitResponse
	if err := host.ServicesOf(ctx).Call(ctx, protocol.TypeMemoryInitReq,
		&protocol.MemoryInitRequest{Namespace: "default"}, &init, nil); err != nil {
		return nil, err
	}
	req.MemoryID = init.MemoryID
	var resp protocol.MemoryRetrieveResponse
	err := host.ServicesOf(ctx).Call(ctx, protocol.TypeMemoryRetrieveReq, req, &resp, nil)
	return resp.Entries, err
}

func memoryURI(tier protocol.MemoryTier, key protocol.Object) string {
	return memoryScheme + string(tier) + "/" + url.PathEscape(string(key.Raw()))
}

// memoryName returns the name of an entry: the text of a key that has one text only, else the key as JSON.
func memoryName(key protocol.Object) string {
	name := string(key.Raw())
	if key.Len() == 1 {
		if text, ok := key.Value(0).Str(); ok {
			name = text
		}
	}
	return protocol.Clip(name, maxMemoryName)
}

func memoryMIME(e *protocol.MemoryEntry) string {
	if e.Content.Kind() == '"' {
		return mimeText
	}
	return mimeJSON
}

// readMemory returns one entry of the memory.
func (s *server) readMemory(ctx context.Context, uri string) (*resourceText, error) {
	tier, escaped, _ := strings.Cut(strings.TrimPrefix(uri, memoryScheme), "/")
	text, err := url.PathUnescape(escaped)
	if err != nil {
		return nil, rpcErrorf(codeResourceNotFound, "the key in the URI is not escaped as it should be")
	}
	key, err := protocol.ParseObject([]byte(text))
	if err != nil {
		return nil, rpcErrorf(codeResourceNotFound,
			`the URI should be memory://TIER/KEY, where KEY is the entry's key as JSON, such as {"name":"x"}, percent-encoded`)
	}
	switch t := protocol.MemoryTier(tier); t {
	case protocol.TierWorking, protocol.TierEpisodic, protocol.TierSemantic:
		entries, err := s.retrieve(ctx, &protocol.MemoryRetrieveRequest{
			MemorySelection: protocol.MemorySelection{Tier: t, Keys: []protocol.Object{key}}, Limit: 1,
		})
		if err != nil {
			return nil, err
		}
		if len(entries) == 0 {
			return nil, rpcErrorf(codeResourceNotFound, "the %s memory has no entry of this key", tier)
		}
		text := string(entries[0].Content)
		if entries[0].Content.Kind() == '"' {
			text = textOf(entries[0].Content)
		}
		return &resourceText{MIMEType: memoryMIME(&entries[0]), Text: &text}, nil
	}
	return nil, rpcErrorf(codeResourceNotFound, "the tiers of the memory are working, episodic and semantic")
}
