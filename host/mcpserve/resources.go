package mcpserve

import (
	"context"
	"encoding/base64"
	"errors"
	"slices"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/host"
	"a2e/protocol"
)

// Resources are the files of the workspace, what other plugins have files of (skills:
// skill://NAME/FILE, which are not listed), and the entries of the memory.
const (
	fileScheme   = "file://"
	memoryScheme = "memory://"
)

// A cursor of resources/list says where the listing of files goes on, or that the
// memories come.
const (
	cursorFiles    = "f"
	cursorMemories = "m"
)

// listResources answers resources/list: files first, page by page, and the memories on a
// page of their own.
func (s *server) listResources(ctx context.Context, _ *request, params mcp.Params) (mcp.Result, error) {
	cursor := cursorFiles
	if p, _ := params.(*mcp.ListResourcesParams); p != nil && p.Cursor != "" {
		raw, err := base64.RawURLEncoding.DecodeString(p.Cursor)
		if cursor = string(raw); err != nil || cursor == "" {
			return nil, rpcErrorf(codeInvalidParams, "the cursor is none that this server gave")
		}
	}
	res := &resourceList{Resources: []*mcp.Resource{}}
	next := ""
	if after, ok := strings.CutPrefix(cursor, cursorFiles); ok {
		files, more, err := s.files(ctx, after)
		if err != nil {
			return nil, err
		}
		res.Resources = append(res.Resources, files...)
		switch {
		case more != "":
			next = cursorFiles + more
		case len(files) > 0:
			next = cursorMemories
		}
	}
	if len(res.Resources) == 0 && next == "" {
		memories, err := s.memories(ctx)
		if err != nil {
			return nil, err
		}
		res.Resources = append(res.Resources, memories...)
	}
	if next != "" {
		res.NextCursor = base64.RawURLEncoding.EncodeToString([]byte(next))
	}
	return res, nil
}

// resourceList is the result of resources/list.
type resourceList struct {
	mcp.ResultBase
	Resources  []*mcp.Resource `json:"resources"`
	NextCursor string          `json:"nextCursor,omitempty"`
}

// templateList is the result of resources/templates/list.
type templateList struct {
	mcp.ResultBase
	Templates []*mcp.ResourceTemplate `json:"resourceTemplates"`
}

// listTemplates answers resources/templates/list.
func (s *server) listTemplates(context.Context, *request, mcp.Params) (mcp.Result, error) {
	return &templateList{Templates: []*mcp.ResourceTemplate{
		{Name: "file", Title: "File of the workspace", URITemplate: "file:///{+path}", Description: "A text file; path is relative to the workspace."},
		{Name: "memory", Title: "Memory", URITemplate: "memory://{tier}/{key}", MIMEType: mimeJSON,
			Description: "An entry of the memory; tier is working, episodic or semantic, key the JSON of its key."},
	}}, nil
}

// readResource answers resources/read.
func (s *server) readResource(ctx context.Context, _ *request, params mcp.Params) (mcp.Result, error) {
	uri := params.(*mcp.ReadResourceParams).URI
	contents, err := s.contents(ctx, uri)
	if err != nil {
		return nil, resourceError(uri, err)
	}
	contents.URI = uri
	return &readResult{Contents: []*resourceText{contents}}, nil
}

// readResult is the result of resources/read. The go-sdk's own has no text where that is
// empty, which clients refuse.
type readResult struct {
	mcp.ResultBase
	Contents []*resourceText `json:"contents"`
}

type resourceText struct {
	URI      string `json:"uri"`
	MIMEType string `json:"mimeType"`
	Text     string `json:"text"`
}

func (s *server) contents(ctx context.Context, uri string) (*resourceText, error) {
	scheme, _, _ := strings.Cut(uri, "://")
	switch {
	case strings.HasPrefix(uri, fileScheme):
		name, err := s.pathOf(uri)
		if err != nil {
			return nil, err
		}
		return s.readFile(ctx, name)
	case strings.HasPrefix(uri, memoryScheme):
		return s.readMemory(ctx, uri)
	case slices.ContainsFunc(host.All[host.FileSource](ctx), func(f host.FileSource) bool { return strings.EqualFold(f.Scheme(), scheme) }):
		return s.readFile(ctx, uri)
	}
	return nil, rpcErrorf(codeResourceNotFound, "no resource has this URI; those there are begin with %s/ and %s", fileScheme, memoryScheme)
}

// resourceError names the URI in an error. What a file tool cannot read is not there, as
// far as a client of resources goes: the text says why.
func resourceError(uri string, err error) error {
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
