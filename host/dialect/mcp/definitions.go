package mcp

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"net/url"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/host"
	"a2e/host/dialect"
	"a2e/host/schema"
	"a2e/protocol"
)

// pageSize is the largest number of entries in one answer to a list.
const pageSize = 500

// tool is the definition of a tool, with the members that mcp.Tool lacks.
type tool struct {
	mcp.Tool
	Annotations jsontext.Value `json:"annotations,omitempty"`
	Icons       jsontext.Value `json:"icons,omitempty"`
	Meta        jsontext.Value `json:"_meta,omitempty"`
	Execution   *execution     `json:"execution,omitempty"`
}

type execution struct {
	TaskSupport string `json:"taskSupport"`
}

// listed is the result of a list. It is used because the types of the go-sdk have members of later versions of MCP.
type listed struct {
	mcp.ResultBase
	cacheable
	Tools      []jsontext.Value `json:"tools,omitzero"`
	Prompts    []*prompt        `json:"prompts,omitzero"`
	Resources  []*resource      `json:"resources,omitzero"`
	Templates  []*template      `json:"resourceTemplates,omitzero"`
	NextCursor string           `json:"nextCursor,omitempty"`
}

// cursor returns the cursor of a request for a list; "" = the first page.
func (r *request) cursor() string { return textOf(member(r.params, "cursor")) }

// page returns the entries of a list that come after the entry named by cursor, and the cursor of the next page. all is
// sorted by name. The entry of the cursor may be gone: then the page begins where it would have been.
func page[T any](all []T, list, cursor string, name func(T) string) (some []T, next string, err error) {
	from := 0
	if cursor != "" {
		last, err := readCursor(list, cursor)
		if err != nil {
			return nil, "", err
		}
		for from < len(all) && name(all[from]) <= last {
			from++
		}
	}
	some = append([]T{}, all[from:min(from+pageSize, len(all))]...)
	if from+pageSize < len(all) {
		next = writeCursor(list, name(some[len(some)-1]))
	}
	return some, next, nil
}

// writeCursor returns the cursor of the page that begins after the entry last.
func writeCursor(list, last string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(list + ":" + last))
}

// readCursor returns the entry after which the page of a cursor begins.
func readCursor(list, cursor string) (last string, err error) {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(cursor)
	last, ok := strings.CutPrefix(string(raw), list+":")
	if err != nil || !ok {
		return "", rpcErrorf(codeInvalidParams, "the cursor is not one that this list gave; send nextCursor of the "+
			"page before, or none for the first page")
	}
	return last, nil
}

// allAnnotations returns the annotations of a tool as its server wrote them, plus those that only the host knows.
func allAnnotations(known *mcp.ToolAnnotations, said jsontext.Value) jsontext.Value {
	raw, err := json.Marshal(known)
	ours, bad := protocol.ParseObject(raw)
	theirs, none := protocol.ParseObject(said)
	if err != nil || bad != nil || none != nil {
		return raw
	}
	out := append([]byte(nil), theirs.Raw()...)
	for key, val := range ours.All() {
		if _, there := theirs.Get(string(key)); !there {
			out = withLast(out, string(key), val)
		}
	}
	return out
}

// withLast returns a copy of a JSON object with one more member at the end.
func withLast(obj []byte, name string, val []byte) []byte {
	obj = append([]byte(nil), obj[:bytes.LastIndexByte(obj, '}')]...)
	if last := bytes.TrimRight(obj, " \t\r\n"); last[len(last)-1] != '{' {
		obj = append(obj, ',')
	}
	return append(append(append(protocol.AppendString(obj, name), ':'), val...), '}')
}

// withMembers returns a copy of a JSON object with the members of another one at its end, except some.
func withMembers(obj []byte, more protocol.Object, except ...string) []byte {
	for key, val := range more.All() {
		if name := string(key); !slices.Contains(except, name) {
			obj = withLast(obj, name, val)
		}
	}
	return obj
}

// iconsVersion is the first version of MCP with icons. Clients of earlier versions know drafts of icons in another
// shape, and refuse a whole list because of them.
const iconsVersion = "2025-11-25"

// icons returns the icons of a list entry, or nil if the client's version has no icons.
func (s *server) icons(all jsontext.Value) jsontext.Value {
	if !s.hasIcons.Load() {
		return nil
	}
	return all
}

// Definition returns MCP's definition of a tool. def must come from a list with detail.
func Definition(def *protocol.ToolDefinition) mcp.Tool {
	t := mcp.Tool{
		Name: def.Name, Title: def.Detail.Title, Description: def.Description,
		Annotations: &mcp.ToolAnnotations{IdempotentHint: def.Idempotent},
	}
	if h := def.Detail.Hints; h != nil {
		t.Annotations = &mcp.ToolAnnotations{
			Title: t.Title, ReadOnlyHint: h.ReadOnly, IdempotentHint: h.Idempotent, DestructiveHint: &h.Destructive,
			OpenWorldHint: &h.OpenWorld,
		}
	}
	input, _, err := schema.NormaliseInput(def.Detail.InputSchema)
	if err != nil || len(def.Detail.InputSchema) == 0 {
		input = schema.Object(def.InputParameters, false)
	}
	t.InputSchema = input
	foreign := slices.Contains(def.Tags, "mcp") // only its server knows the shape of its data
	if output := structuredSchema(def.Detail.OutputSchema); output != nil {
		t.OutputSchema = output
	} else if !foreign && len(def.OutputParameters) > 0 {
		t.OutputSchema = resultSchema(def.OutputParameters)
	}
	return t
}

// structuredSchema returns the schema of structuredContent, made from the schema of a tool's data. If the data is a
// result of MCP, it is the schema of its member structuredContent. nil = there is none that clients could use.
func structuredSchema(data jsontext.Value) jsontext.Value {
	if len(data) == 0 {
		return nil
	}
	if props := member(data, "properties"); props != nil && member(props, "content") != nil {
		if own := member(props, "structuredContent"); own != nil {
			data = schema.Moved(own, "/properties/structuredContent", "")
		}
	}
	out, _, err := schema.NormaliseOutput(data)
	if err != nil {
		return nil
	}
	return out
}

// resultSchema returns the JSON Schema of a tool's data. No member is required, because a result that was cut lacks
// some.
func resultSchema(params []protocol.ToolParameter) jsontext.Value {
	all := slices.Clone(params)
	for i := range all {
		all[i].Required = false
	}
	return schema.Object(all, false)
}

// callTool answers tools/call.
func (s *server) callTool(ctx context.Context, r *request, params mcp.Params) (mcp.Result, error) {
	p := params.(*mcp.CallToolParamsRaw)
	args, err := argumentsOf(jsontext.Value(p.Arguments))
	if err != nil {
		return nil, err
	}
	emit := s.emitter(r, p.Name)
	req := &protocol.ToolCallRequest{
		ToolName: p.Name, Arguments: args, Streaming: emit.Streaming(),
		Timeout: s.timeout(),
	}
	var resp protocol.ToolCallResponse
	said := &dialect.MCPCall{Tool: p.Name, Task: member(r.params, "task"), Meta: metaFor(r.params)}
	if r.token != nil {
		said.Progress = emit.exact
	}
	ctx = dialect.WithMCPCall(ctx, said)
	if err := host.ServicesOf(ctx).Call(ctx, protocol.TypeToolCallReq, req, &resp, emit); err != nil {
		return failedCall(err)
	}
	if said.Task != nil && member(resp.Data.Data, "task") != nil {
		return &rawResult{raw: resp.Data.Data}, nil
	}
	detail, _ := host.ServicesOf(ctx).Tool(p.Name)
	return toolResult(&resp.Data, &detail), nil
}

// hopPrefix begins the keys of _meta that belong to one connection.
const hopPrefix = "io.modelcontextprotocol/"

// metaFor returns the members of a request's _meta for the server behind the host. It leaves out those that belong to
// this connection.
func metaFor(params jsontext.Value) protocol.Object {
	meta, err := protocol.ParseObject(member(params, "_meta"))
	if err != nil {
		return protocol.Object{}
	}
	out := []byte("{}")
	for key, val := range meta.All() {
		switch name := string(key); {
		case name == "progressToken", strings.HasPrefix(name, hopPrefix), strings.HasPrefix(name, "a2e/"):
		default:
			out = withLast(out, name, val)
		}
	}
	meta, _ = protocol.ParseObject(out) // cannot fail: out is an object
	return meta
}

// timeout returns the time limit of one call, in seconds.
func (s *server) timeout() int { return int(s.opts.CallTimeout / time.Second) }

// argumentsOf parses the arguments of a call, which must be an object. Missing arguments are an empty object.
func argumentsOf(raw jsontext.Value) (protocol.Object, error) {
	if len(raw) == 0 || raw.Kind() == 'n' {
		return protocol.Object{}, nil
	}
	args, err := protocol.ParseObject(raw)
	if err != nil {
		return args, rpcErrorf(codeInvalidParams, `"arguments" must be an object with the tool's arguments`)
	}
	return args, nil
}

const (
	maxFolders  = 500      // folders that are read for one page
	maxFiles    = 10_000   // files listed in all; the tools find further ones
	maxFileRead = 16 << 20 // bytes of a file that is read as a resource
	gitFolder   = ".git"

	mimeJSON = "application/json"
	mimeText = "text/plain"
)

// pathOf returns the path that a file URI means, relative to the workspace. The URI has an absolute path within the
// workspace, or a relative one after file:///. pathOf does not check that the path stays in the workspace; the file
// tools do.
func (s *server) pathOf(uri string) (string, error) {
	u, err := url.Parse(uri)
	if err != nil || u.Host != "" && u.Host != "localhost" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return "", rpcErrorf(codeResourceNotFound, "the URI does not name a file of the workspace, such as "+
			"file:///src/main.go")
	}
	name := strings.TrimPrefix(u.Path, "/")
	if base := s.base(); base != "" {
		if inside, ok := strings.CutPrefix(name+"/", base); ok {
			name = strings.TrimSuffix(inside, "/")
		}
	}
	return name, nil
}

// base returns the workspace as it stands in the URIs of its files: without the first slash, with a slash at the end;
// "" = the URIs are relative.
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

// dirEntry is one entry of the tool list_dir.
type dirEntry struct {
	Name string `json:"name"`
	Type string `json:"type"`
	Size int64  `json:"size"`
}

// listing collects one page of files.
type listing struct {
	server  *server
	after   string // the last path of the page before; "" = this is the first page
	folders int
	found   []*resource
	last    string // the last path that was handled
	full    bool
}

// files returns one page of the workspace's files, sorted by path, and the cursor of the next page; "" = this is the
// last one. A cursor is the number of files listed so far and the last path.
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

// folder lists a folder and those below it. It skips a folder that cannot be read.
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
			found := &resource{URI: l.server.uriOf(at), described: described{Name: at}}
			if e.Size > 0 {
				found.Size = strconv.AppendInt(nil, e.Size, 10)
			}
			l.found = append(l.found, found)
		}
		l.last = at
	}
	return nil
}

// isDone reports whether earlier pages had a path and everything below it.
func (l *listing) isDone(at string) bool {
	if l.after == "" || strings.HasPrefix(l.after, at+"/") {
		return false
	}
	inOrder := strings.NewReplacer("/", "\x00") // a folder comes before its files, and these before the next folder
	return inOrder.Replace(at) <= inOrder.Replace(l.after)
}

// listDir returns the entries of a folder.
func (s *server) listDir(ctx context.Context, name string) ([]dirEntry, error) {
	var data struct {
		Entries []dirEntry `json:"entries"`
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

// readFile returns a whole text file. The tool read_file returns it in parts.
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
			return nil, protocol.Errorf(protocol.CodeToolError, "the file is too large for a resource; the tool "+
				"read_file gives it in parts")
		case part.NextOffset > offset:
			offset = part.NextOffset
			continue
		case offset == 1 && int64(text.Len()) < part.Size:
			return nil, protocol.Errorf(protocol.CodeToolError, "a line of the file is too long for a resource; the "+
				"tool read_file gives the start of it")
		}
		return &resourceText{Text: new(text.String()), MIMEType: mimeOf(name)}, nil
	}
}

// mimeOf returns the media type of a text file.
func mimeOf(name string) string {
	return cmp.Or(map[string]string{
		".json": mimeJSON, ".md": "text/markdown", ".markdown": "text/markdown", ".html": "text/html",
		".htm": "text/html",
		".css": "text/css", ".csv": "text/csv", ".xml": "application/xml",
	}[strings.ToLower(path.Ext(name))], mimeText)
}
