package mcp

import (
	"cmp"
	"context"
	"encoding/base64"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/host"
	"a2e/protocol"
)

// The bounds of one page.
const (
	pageEntries = 500
	pageBytes   = 256 << 10
)

// cursor says after which entry of which server a list over all servers goes on. It stays valid when that
// entry, or the server, goes away. Each plugin has its own cursor; the agent gets the cursors of several
// plugins in one text.
type cursor struct {
	Plugin string `json:"p"`
	List   string `json:"l"`           // resources or prompts
	Filter string `json:"f,omitempty"` // the server that the request named
	Server string `json:"s"`
	Agents bool   `json:"a,omitempty"` // the server is one that the agent registered
	At     int    `json:"n"`           // index of the entry
	Key    string `json:"k"`           // key of the entry
}

// between separates the cursors of several plugins.
const between = "."

// String implements fmt.Stringer: it returns the cursor as the agent gets it.
func (c *cursor) String() string {
	raw, _ := json.Marshal(c) // all its fields can be encoded
	return base64.RawURLEncoding.EncodeToString(raw)
}

// joinCursors joins the cursors of several plugins.
func joinCursors(a, b string) string { return strings.Trim(a+between+b, between) }

// readCursor returns the plugin's cursor in a text, or nil to begin at the start. over = this plugin has
// nothing more to list.
func (p *Plugin) readCursor(text, list, filter string) (c *cursor, over bool, err error) {
	if text == "" {
		return nil, false, nil
	}
	bad := protocol.Violation(protocol.FieldError{Path: "/cursor", Message: "is not one that this list gave; should " +
		"be the next_cursor of the page before, with the same server_id"})
	over = true
	for part := range strings.SplitSeq(text, between) {
		raw, err := base64.RawURLEncoding.DecodeString(part)
		one := new(cursor)
		if err != nil || json.Unmarshal(raw, one, json.RejectUnknownMembers(true)) != nil || one.List != list ||
			one.Filter != filter || one.Server == "" || one.At < 0 {
			return nil, false, bad
		}
		if one.Plugin == p.name {
			c, over = one, false
		}
	}
	return c, over, nil
}

// listRow is one row of a list: the key that a cursor stores, and the row of the answer.
type listRow struct {
	key string
	row map[string]any
}

// page returns one page of a list over all servers, or over the server with this id: the rows behind the
// cursor in text, and the cursor of the next page. entries returns the entries of one server in their
// order.
func (p *Plugin) page(ctx context.Context, text, list, id string, entries func(*server) []listRow,
) (rows []map[string]any, next string, err error) {
	rows = []map[string]any{}
	servers, err := p.some(id)
	if err != nil {
		return nil, "", err
	}
	from, over, err := p.readCursor(text, list, id)
	if err != nil || over {
		return rows, "", err
	}
	p.await(ctx, servers, kindAll, nil)
	size := 0
	for n, s := range servers {
		if from != nil && from.before(s) {
			continue
		}
		all := entries(s)
		for i := from.start(s, all); i < len(all); i++ {
			raw, err := json.Marshal(all[i].row)
			if err != nil {
				return nil, "", protocol.Errorf(protocol.CodeMCPProtocolError, "an entry of the MCP server %q "+
					"cannot be encoded: %w", s.opts.ID, err)
			}
			rows = append(rows, all[i].row)
			size += len(raw)
			if last := n == len(servers)-1 && i == len(all)-1; !last && (len(rows) == pageEntries || size > pageBytes) {
				return rows, (&cursor{
					Plugin: p.name, List: list, Filter: id, Server: s.opts.ID,
					Agents: s.origin == byAgent, At: i, Key: all[i].key,
				}).String(), nil
			}
		}
	}
	return rows, "", nil
}

// before reports whether all entries of a server were on earlier pages.
func (c *cursor) before(s *server) bool {
	if agents := s.origin == byAgent; agents != c.Agents {
		return c.Agents
	}
	return s.opts.ID < c.Server
}

// start returns the index of the first entry of a server that belongs to the page.
func (c *cursor) start(s *server, all []listRow) int {
	if c == nil || c.Server != s.opts.ID {
		return 0
	}
	if c.At < len(all) && all[c.At].key == c.Key {
		return c.At + 1
	}
	for i, e := range all {
		if e.key == c.Key {
			return i + 1
		}
	}
	return min(c.At, len(all))
}

// prompts answers mcp/prompt/list/req, page by page.
func (p *Plugin) prompts(ctx context.Context, req *protocol.MCPPromptListRequest,
	_ host.Emitter,
) (*protocol.MCPPromptListResponse, error) {
	rows, next, err := p.page(ctx, req.Cursor, "prompts", req.ServerID, (*server).promptEntries)
	return &protocol.MCPPromptListResponse{Prompts: rows, NextCursor: next}, err
}

// MergePrompts adds the prompts of a plugin of lower priority, for host.List.
func MergePrompts(dst, src *protocol.MCPPromptListResponse) {
	dst.Prompts = append(dst.Prompts, src.Prompts...)
	dst.NextCursor = joinCursors(dst.NextCursor, src.NextCursor)
}

// takePrompts takes the entries of prompts/list as the server's prompts.
func (s *server) takePrompts(found []jsontext.Value) {
	good := s.take("prompts", promptShape(), found)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.prompts = good
}

func (s *server) promptEntries() []listRow {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]listRow, 0, len(s.prompts))
	for _, pr := range s.prompts {
		row := pr.row(s.opts.ID)
		row["arguments"] = promptArguments(pr)
		out = append(out, listRow{pr.Text("name"), row})
	}
	return out
}

// promptArguments returns the arguments of a prompt as the server wrote them. An argument without a
// description, or without required, gets MCP's default for it.
func promptArguments(pr listed) []jsontext.Value {
	all := []jsontext.Value{}
	items, _ := listItems(protocol.Value(pr.raw("arguments")))
	for _, item := range items {
		arg, err := protocol.ParseObject(item)
		if err != nil {
			continue
		}
		raw := arg.Raw()
		raw = raw[:len(raw)-1]
		for _, absent := range [][2]string{{"description", `""`}, {"required", "false"}} {
			if _, there := arg.Get(absent[0]); !there {
				raw = append(raw[:len(raw):len(raw)], `,"`+absent[0]+`":`+absent[1]...)
			}
		}
		all = append(all, append(raw[:len(raw):len(raw)], '}'))
	}
	return all
}

// promptServer returns the server of a prompt: the server with the id, or the first one that lists the
// prompt if the id is "".
func (p *Plugin) promptServer(ctx context.Context, name, id string) (*server, error) {
	if id != "" {
		return p.find(id)
	}
	all := p.all()
	at := -1
	p.await(ctx, all, kindAll, func() bool {
		at = slices.IndexFunc(all, func(s *server) bool { return s.hasPrompt(name) })
		return at >= 0
	})
	if at >= 0 {
		return all[at], nil
	}
	known := []string{}
	for _, s := range all {
		for _, e := range s.promptEntries() {
			known = append(known, e.key)
		}
	}
	asked := protocol.Clip(name, maxQuoted)
	unknown := protocol.Errorf(protocol.CodeMCPPromptNotFound, "no MCP server has a prompt %q", asked)
	return nil, host.NotKnown(unknown, name, known)
}

// get answers mcp/prompt/get/req.
func (p *Plugin) get(ctx context.Context, req *protocol.MCPPromptGetRequest,
	_ host.Emitter,
) (*protocol.MCPPromptGetResponse, error) {
	var wrong problems
	if req.Name == "" {
		wrong.add("/name", "is empty; should be the name of a prompt")
	}
	args := make(map[string]string, req.Arguments.Len())
	for key, v := range req.Arguments.All() {
		text, ok := v.Scalar()
		if !ok {
			wrong.add("/arguments/"+protocol.Clip(string(key), maxQuoted), "is %s; prompts take texts", kindName(v))
		}
		args[string(key)] = text
	}
	if wrong != nil {
		return nil, protocol.Violation(wrong...)
	}
	s, err := p.promptServer(ctx, req.Name, req.ServerID)
	if err != nil {
		return nil, err
	}
	if err := s.usable(); err != nil {
		return nil, err
	}
	var raw jsontext.Value
	start := p.env.Now()
	err = s.asked(ctx, func(ctx context.Context, cs *sdk.ClientSession) (err error) {
		raw, err = s.request(ctx, cs, "prompts/get", map[string]any{"name": req.Name, "arguments": args})
		return err
	})
	if s.hasPrompt(req.Name) {
		if err == nil || !host.CutShort(ctx) {
			p.Services().CountCall(ctx, host.CallOutcome{Kind: host.KindPrompt, Component: protocol.MCPName(s.opts.ID,
				req.Name), Success: err == nil, Duration: p.env.Now().Sub(start)})
		}
	} else if _, ok := answeredCode(err); ok {
		err = withCode(err, protocol.CodeMCPPromptNotFound)
	}
	if err != nil {
		return nil, err
	}
	return s.prompt(raw)
}

// prompt reads a result of prompts/get.
func (s *server) prompt(raw jsontext.Value) (*protocol.MCPPromptGetResponse, error) {
	res, err := protocol.ParseObject(raw)
	list, _ := res.Get("messages")
	items, bad := listItems(list)
	if err != nil || bad != nil {
		return nil, protocol.Errorf(protocol.CodeMCPProtocolError,
			"the prompt of the MCP server %q cannot be read: its result has no list of messages", s.opts.ID)
	}
	resp := &protocol.MCPPromptGetResponse{
		Description: res.Text("description"), ServerID: s.opts.ID, Messages: []map[string]any{},
	}
	if meta, _ := res.Get("_meta"); meta != nil {
		resp.Meta = jsontext.Value(passedMeta(meta))
	}
	for _, item := range items {
		message := map[string]any{}
		said, _ := protocol.ParseObject(item) // if it is not an object, it has no content
		for key, val := range said.All() {
			message[string(key)] = jsontext.Value(val)
		}
		content, _ := said.Get("content")
		if content == nil {
			content = item
		}
		message["role"], message["content"] = cmp.Or(said.Text("role"), "user"), fitBlock(jsontext.Value(content))
		resp.Messages = append(resp.Messages, message)
	}
	return resp, nil
}

func (s *server) hasPrompt(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.prompts, func(pr listed) bool { return pr.Text("name") == name })
}
