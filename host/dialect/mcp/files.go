package mcp

import (
	"cmp"
	"context"
	"net/url"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"

	"a2e/host"
	"a2e/protocol"
)

const (
	maxFolders  = 500      // looked into for one page
	maxFiles    = 10_000   // listed in all: what is more is found by the tools
	maxFileRead = 16 << 20 // bytes of a file that is a resource
	gitFolder   = ".git"

	mimeJSON = "application/json"
	mimeText = "text/plain"
)

// pathOf returns the path that a file URI means, relative to the workspace: an absolute one
// within it, or what stands behind file:///. The file tools see to it that it stays there.
func (s *server) pathOf(uri string) (string, error) {
	u, err := url.Parse(uri)
	if err != nil || u.Host != "" && u.Host != "localhost" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return "", rpcErrorf(codeResourceNotFound, "the URI is none of a file of the workspace, such as file:///src/main.go")
	}
	name := strings.TrimPrefix(u.Path, "/")
	if base := s.base(); base != "" {
		if inside, ok := strings.CutPrefix(name+"/", base); ok {
			name = strings.TrimSuffix(inside, "/")
		}
	}
	return name, nil
}

// base is the workspace as the URIs of its files have it: without the first slash, with
// the last one; "" = they are relative to it.
func (s *server) base() string {
	if s.opts.Workspace == "" {
		return ""
	}
	return strings.Trim(filepath.ToSlash(s.opts.Workspace), "/") + "/"
}

// uriOf returns the URI of a file of the workspace.
func (s *server) uriOf(name string) string {
	return (&url.URL{Scheme: "file", Path: "/" + s.base() + name}).String()
}

// entry is one of list_dir's.
type entry struct {
	Name string `json:"name"`
	Type string `json:"type"`
	Size int64  `json:"size"`
}

// listing is one page of files under way.
type listing struct {
	server  *server
	after   string // the path that the page before ended with; "" = this is the first page
	folders int
	found   []*resource
	last    string // the last path that is done with
	full    bool
}

// files returns the next page of the workspace's files, in the order of their paths, and
// where the page after it begins; "" = there is none. The cursor is the number of files
// listed so far and the last path.
func (s *server) files(ctx context.Context, cursor string) (found []*resource, more string, err error) {
	number, after, _ := strings.Cut(cursor, ":")
	count, _ := strconv.Atoi(number)
	l := &listing{server: s, after: after}
	if err := l.folder(ctx, ""); err != nil {
		return nil, "", err
	}
	count = max(count, 0) + len(l.found)
	if l.full && l.last != "" && count < maxFiles {
		more = strconv.Itoa(count) + ":" + l.last
	}
	return l.found, more, nil
}

// folder lists a folder and those below it. One that cannot be read is passed over.
func (l *listing) folder(ctx context.Context, name string) error {
	if !strings.HasPrefix(l.after, name+"/") {
		l.folders++
	}
	if l.full = l.folders > maxFolders; l.full {
		return nil
	}
	entries, err := l.server.listDir(ctx, name)
	if err != nil {
		return ctx.Err()
	}
	for _, e := range entries {
		at := path.Join(name, e.Name)
		if l.isDone(at) {
			continue
		}
		switch {
		case e.Type == "dir" && e.Name != gitFolder:
			if err := l.folder(ctx, at); err != nil || l.full {
				return err
			}
		case e.Type == "file":
			if l.full = len(l.found) == pageSize; l.full {
				return nil
			}
			l.found = append(l.found, &resource{URI: l.server.uriOf(at), described: described{Name: at}, Size: e.Size})
		}
		l.last = at
	}
	return nil
}

// isDone reports whether the pages before had a path, and all below it.
func (l *listing) isDone(at string) bool {
	if l.after == "" || strings.HasPrefix(l.after, at+"/") {
		return false
	}
	inOrder := strings.NewReplacer("/", "\x00") // a folder comes before its files, they before its neighbour
	return inOrder.Replace(at) <= inOrder.Replace(l.after)
}

// listDir returns what is in a folder; nothing where no tool lists any.
func (s *server) listDir(ctx context.Context, name string) ([]entry, error) {
	var data struct {
		Entries []entry `json:"entries"`
	}
	args := map[string]any{}
	if name != "" {
		args["path"] = name
	}
	err := s.tool(ctx, "list_dir", args, &data)
	return data.Entries, err
}

// tool calls one of the host's own tools and decodes its data.
func (s *server) tool(ctx context.Context, name string, args map[string]any, data any) error {
	raw, err := json.Marshal(args, json.Deterministic(true))
	if err != nil {
		return err
	}
	req := &protocol.ToolCallRequest{ToolName: name, Timeout: s.timeout()}
	if req.Arguments, err = protocol.ParseObject(raw); err != nil {
		return err
	}
	var resp protocol.ToolCallResponse
	if err := host.ServicesOf(ctx).Call(ctx, protocol.TypeToolCallReq, req, &resp, nil); err != nil {
		return err
	}
	if !resp.Data.Success {
		return protocol.Errorf(protocol.CodeToolError, "%s failed: %s", name, deref(resp.Data.Error))
	}
	return json.Unmarshal(resp.Data.Data, data)
}

// readFile returns a whole text file, which the tool gives in parts.
func (s *server) readFile(ctx context.Context, name string) (*resourceText, error) {
	var text strings.Builder
	for offset := int64(1); ; {
		var part struct {
			Content    string `json:"content"`
			NextOffset int64  `json:"next_offset"`
			Size       int64  `json:"size"`
		}
		if err := s.tool(ctx, "read_file", map[string]any{"path": name, "offset": offset}, &part); err != nil {
			return nil, err
		}
		text.WriteString(part.Content)
		switch {
		case part.Size > maxFileRead || text.Len() > maxFileRead:
			return nil, protocol.Errorf(protocol.CodeToolError, "the file is too large for a resource; the tool read_file gives it in parts")
		case part.NextOffset > offset:
			offset = part.NextOffset
			continue
		case offset == 1 && int64(text.Len()) < part.Size:
			return nil, protocol.Errorf(protocol.CodeToolError, "a line of the file is too long for a resource; the tool read_file gives the start of it")
		}
		return &resourceText{Text: new(text.String()), MIMEType: mimeOf(name)}, nil
	}
}

// mimeOf returns the media type of a text file.
func mimeOf(name string) string {
	return cmp.Or(map[string]string{
		".json": mimeJSON, ".md": "text/markdown", ".markdown": "text/markdown", ".html": "text/html", ".htm": "text/html",
		".css": "text/css", ".csv": "text/csv", ".xml": "application/xml",
	}[strings.ToLower(path.Ext(name))], mimeText)
}
