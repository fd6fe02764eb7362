package mcp

import (
	"bytes"
	"context"
	"crypto/sha256"
	stdjson "encoding/json"
	"slices"
	"strconv"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/host"
	"a2e/host/dialect"
	"a2e/protocol"
)

// listTools answers tools/list.
func (s *server) listTools(ctx context.Context, r *request, _ mcp.Params) (mcp.Result, error) {
	some, next, err := s.toolPage(ctx, r.cursor())
	if err != nil {
		return nil, err
	}
	res := &listed{Tools: make([]jsontext.Value, len(some)), NextCursor: next}
	for i, t := range some {
		res.Tools[i] = t.text
	}
	return res, nil
}

// toolPage returns the page of tools that cursor names, and the cursor of the next page; "" = there is none.
func (s *server) toolPage(ctx context.Context, cursor string) (some []listedTool, next string, err error) {
	all, err := s.tools(ctx)
	if err != nil {
		return nil, "", err
	}
	s.watch.tools.saw(&all.digest)
	return page(all.tools, "tools", cursor, func(t listedTool) string { return t.name })
}

// toolTable has all tools as tools/list shows them, sorted by name. It does not change.
type toolTable struct {
	tools  []listedTool
	digest [sha256.Size]byte
}

type listedTool struct {
	name string
	text jsontext.Value // the definition, as JSON
}

// knownTools has the table that was made last. It is valid while the host's tools have the same state.
type knownTools struct {
	*toolTable
	state []any // as host.Services.ToolState returned it
}

// Tables keeps the tool tables of several servers, so that servers with the same tools share one. It is safe for
// concurrent use.
type Tables struct {
	mu  sync.Mutex
	all map[[sha256.Size]byte]*toolTable // by the digest of the list they were made from; guarded by mu
}

// maxTables is how many tables are kept. When one more is needed, all are dropped.
const maxTables = 16

// of returns the table for a key. If there is none, build makes it. A nil Tables keeps none.
func (t *Tables) of(key [sha256.Size]byte, build func() (*toolTable, error)) (*toolTable, error) {
	if t == nil {
		return build()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if known := t.all[key]; known != nil {
		return known, nil
	}
	made, err := build()
	if err != nil {
		return nil, err
	}
	if t.all == nil || len(t.all) >= maxTables {
		t.all = make(map[[sha256.Size]byte]*toolTable)
	}
	t.all[key] = made
	return made, nil
}

// tools returns the table of the host's tools. It is the last one if the state of the tools is the same.
func (s *server) tools(ctx context.Context) (*toolTable, error) {
	services := host.ServicesOf(ctx)
	state := services.ToolState(ctx)
	if known := s.listed.Load(); known != nil && state != nil && slices.Equal(state, known.state) {
		return known.toolTable, nil
	}
	var raw jsontext.Value
	all := &protocol.ToolListRequest{IncludeDeferred: true, Detail: true}
	err := services.Call(ctx, protocol.TypeToolListReq, all, &raw, nil)
	if dialect.IsMissing(err) {
		raw, err = jsontext.Value(`{"tools":[]}`), nil
	}
	if err != nil {
		return nil, err
	}
	tables := s.opts.Tables
	if s.hasTasks() { // raw does not say which tools run as tasks
		tables = nil
	}
	key := sha256.Sum256(strconv.AppendBool(raw, s.hasIcons.Load()))
	table, err := tables.of(key, func() (*toolTable, error) { return s.toolTable(services, raw) })
	if err == nil {
		s.listed.Store(&knownTools{table, state})
	}
	return table, err
}

// toolTable makes the table from an answer to tool/list.
func (s *server) toolTable(services *host.Services, raw jsontext.Value) (*toolTable, error) {
	var resp protocol.ToolListResponse
	if err := read(raw, &resp); err != nil {
		return nil, err
	}
	sortBy(resp.Tools, func(t protocol.ToolDefinition) string { return t.Name })
	table := &toolTable{tools: make([]listedTool, len(resp.Tools))}
	var text bytes.Buffer
	out := stdjson.NewEncoder(&text) // the go-sdk encodes in this way
	out.SetEscapeHTML(false)
	ends := make([]int, len(resp.Tools))
	for i := range resp.Tools {
		if err := out.Encode(s.definition(services, &resp.Tools[i])); err != nil {
			return nil, err
		}
		ends[i] = text.Len()
	}
	all, from := bytes.Clone(text.Bytes()), 0
	for i, end := range ends {
		table.tools[i] = listedTool{resp.Tools[i].Name, jsontext.Value(all[from : end-1 : end-1])}
		from = end
	}
	table.digest = sha256.Sum256(all)
	return table, nil
}

// definition makes the definition of a tool for the client.
func (s *server) definition(services *host.Services, def *protocol.ToolDefinition) *tool {
	t := &tool{Tool: Definition(def)}
	t.Annotations = allAnnotations(t.Tool.Annotations, def.Detail.Annotations)
	t.Icons, t.Meta = s.icons(def.Detail.Icons), def.Detail.Meta
	if s.hasTasks() {
		if d, _ := services.Tool(def.Name); d.Task {
			t.Execution = &execution{"optional"} // if the client does not ask for a task, the host waits for the end
		}
	}
	return t
}
