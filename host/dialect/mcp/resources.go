package mcp

import (
	"context"
	"errors"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/protocol"
)

// Resources are the files of the workspace, what other plugins have files of (skills:
// skill://NAME/FILE, which are not listed), the entries of the memory, and the resources of
// MCP servers behind the host.
const (
	fileScheme   = "file://"
	memoryScheme = "memory://"
)

// described is what the entries of the lists of resources and templates have in common.
type described struct {
	Name        string         `json:"name"`
	Title       string         `json:"title,omitempty"`
	Description string         `json:"description,omitempty"`
	MIMEType    string         `json:"mimeType,omitempty"`
	Annotations jsontext.Value `json:"annotations,omitempty"`
}

type resource struct {
	described
	URI  string `json:"uri"`
	Size int64  `json:"size,omitempty"`
}

type template struct {
	described
	URITemplate string `json:"uriTemplate"`
}

// The lists that resources/list gives one after the other; each has its own cursor.
const (
	listServers  = "servers"
	listFiles    = "files"
	listMemories = "memories"
)

// listResources answers resources/list: the resources of MCP servers and the files, page by
// page, and the memories on a page of their own.
func (s *server) listResources(ctx context.Context, _ *request, params mcp.Params) (mcp.Result, error) {
	res := &resourceList{Resources: []*resource{}}
	p, _ := params.(*mcp.ListResourcesParams)
	cursor := ""
	if p != nil {
		cursor = p.Cursor
	}
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

// addFiles adds the page of files that begins behind one, and where there are none the
// memories.
func (s *server) addFiles(ctx context.Context, res *resourceList, after string) error {
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

func (s *server) addMemories(ctx context.Context, res *resourceList) error {
	memories, err := s.memories(ctx)
	res.Resources = append(res.Resources, memories...)
	return err
}

// resourceList is the result of resources/list.
type resourceList struct {
	mcp.ResultBase
	cacheable
	Resources  []*resource `json:"resources"`
	NextCursor string      `json:"nextCursor,omitempty"`
}

// templateList is the result of resources/templates/list.
type templateList struct {
	mcp.ResultBase
	cacheable
	Templates  []*template `json:"resourceTemplates"`
	NextCursor string      `json:"nextCursor,omitempty"`
}

// listTemplates answers resources/templates/list.
func (s *server) listTemplates(ctx context.Context, _ *request, params mcp.Params) (mcp.Result, error) {
	own := []*template{
		{URITemplate: "file:///{+path}", described: described{Name: "file", Title: "File of the workspace", Description: "A text file; path is relative to the workspace."}},
		{URITemplate: "memory://{tier}/{key}", described: described{Name: "memory", Title: "Memory", MIMEType: mimeJSON,
			Description: "An entry of the memory; tier is working, episodic or semantic, key the JSON of its key."}},
	}
	_, behind, err := s.serverResources(ctx)
	if err != nil {
		return nil, err
	}
	all := append(own, behind...)
	sortBy(all, func(t *template) string { return t.URITemplate })
	res := &templateList{}
	cursor := ""
	if p, _ := params.(*mcp.ListResourceTemplatesParams); p != nil {
		cursor = p.Cursor
	}
	res.Templates, res.NextCursor, err = page(all, "templates", cursor, func(t *template) string { return t.URITemplate })
	return res, err
}

// readResource answers resources/read.
func (s *server) readResource(ctx context.Context, r *request, params mcp.Params) (mcp.Result, error) {
	uri := params.(*mcp.ReadResourceParams).URI
	contents, err := s.contents(ctx, uri)
	if err != nil {
		failed := resourceError(uri, err)
		if failed.Code == codeResourceNotFound && r.meta != nil { // modern versions have no code of its own for it
			failed.Code = codeInvalidParams
		}
		return nil, failed
	}
	return &readResult{Contents: contents}, nil
}

// readResult is the result of resources/read. The go-sdk's own has no text where that is
// empty, which clients refuse.
type readResult struct {
	mcp.ResultBase
	cacheable
	Contents []*resourceText `json:"contents"`
}

// resourceText has a text, or else the base64 of bytes.
type resourceText struct {
	URI      string  `json:"uri"`
	MIMEType string  `json:"mimeType"`
	Text     *string `json:"text,omitzero"`
	Blob     *string `json:"blob,omitzero"`
}

func (s *server) contents(ctx context.Context, uri string) ([]*resourceText, error) {
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
	default:
		part, err = s.readFile(ctx, uri)
	}
	if err != nil {
		return nil, err
	}
	part.URI = uri
	return []*resourceText{part}, nil
}

// resourceError names the URI in an error. What a file tool cannot read is not there, as
// far as a client of resources goes: the text says why.
func resourceError(uri string, err error) *rpcError {
	rpc := toRPC(err)
	var own *protocol.Error
	if errors.As(err, &own) {
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
