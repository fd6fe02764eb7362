package mcp

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/bmatcuk/doublestar/v4"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/schema"
	"a2e/plugins/tools"
	"a2e/protocol"
)

// The bounds of one tool.
const (
	maxToolName    = 128       // characters, with the server's id
	maxDefinition  = 256 << 10 // bytes of JSON
	maxDefinitions = 8 << 20   // bytes of all definitions of one server
)

// boundTool is a tool of a server, as the server lists it and as the host offers it.
type boundTool struct {
	name       string         // without the server's id
	definition jsontext.Value // canonical: name, description, schemas, annotations
	hash       string         // SHA-256 of the definition, in hex
	tool       tools.Tool
}

// Withheld is a tool, or an entry of another list, that the host does not offer.
type Withheld struct {
	Tool   string // without the server's id
	Reason string // the end of a sentence about the tool
	Pinned bool   // it is withheld because of the pins; see Approve

	collides bool // another server's tool has its name

	// Old and New are the definitions of a tool that is withheld because it changed; Old is
	// nil for one that is new.
	Old, New jsontext.Value
}

// takeTools takes the entries of tools/list as the server's tools. It reports whether the tools that the
// agent sees have changed.
func (s *server) takeTools(ctx context.Context, found []jsontext.Value) (news bool) {
	var read []*serverTool
	var names []string
	var bound []*boundTool
	var unfit []Withheld
	for i, raw := range found {
		t, err := readTool(raw)
		if err != nil {
			unfit = append(unfit, Withheld{Tool: entryName(i, raw), Reason: err.Error()})
			continue
		}
		read, names = append(read, t), append(names, t.name)
	}
	alias := aliases(names, maxToolName-len(protocol.MCPName(s.opts.ID, "")))
	seen := make(map[string]bool, len(found))
	tasks := make(map[string]string)
	size := 0
	for _, t := range read {
		b, why := s.bind(t, alias[t.name])
		switch {
		case why != "":
		case seen[t.name]:
			why = "has the name of another tool of the server"
		case size+len(b.definition) > maxDefinitions:
			why = fmt.Sprintf("is one too many: the definitions of a server's tools may have %d bytes together",
				maxDefinitions)
		default:
			size += len(b.definition)
		}
		if why != "" {
			unfit = append(unfit, Withheld{Tool: protocol.Clip(t.name, maxQuoted), Reason: why})
			continue
		}
		seen[t.name] = true
		if support := t.taskSupport(); support != "" {
			tasks[t.name] = support
		}
		bound = append(bound, b)
	}
	s.mu.Lock()
	s.tasks = tasks
	s.mu.Unlock()
	return s.offer(ctx, bound, unfit)
}

// offer compares tools with the pins, stores them as the server's tools and publishes them. It reports
// whether the tools that the agent sees have changed.
func (s *server) offer(ctx context.Context, bound []*boundTool, unfit []Withheld) (news bool) {
	held, withheld := s.judge(ctx, bound)
	withheld = append(slices.Clone(unfit), withheld...)
	s.mu.Lock()
	s.tools, s.withheld = held, withheld
	s.mu.Unlock()
	news = s.p.publish()
	if s.judged.set() {
		s.warnOfNames(bound)
	}
	return news
}

// logWithheldLocked logs the withheld tools, except those that were logged before for the same reason.
func (s *server) logWithheldLocked() {
	told := make(map[string]string, len(s.withheld))
	for _, w := range s.withheld {
		if told[w.Tool] = w.Reason; s.told[w.Tool] != w.Reason {
			s.p.env.Log.Warn().Str("mcp_server", s.opts.ID).Str("tool", w.Tool).Msg("a tool of the MCP server is " +
				"withheld: it " + w.Reason)
		}
	}
	s.told = told
}

// bind makes a tool of the host from a tool of the server. alias is its name behind the server's id. why is
// the end of a sentence that says why the tool cannot be offered, or "".
func (s *server) bind(t *serverTool, alias string) (b *boundTool, why string) {
	if alias == "" {
		const why = "has no name that fits behind %q: a tool's name has at most %d bytes"
		return nil, fmt.Sprintf(why, protocol.MCPName(s.opts.ID, ""), maxToolName)
	}
	input, left, err := schema.NormaliseInput(t.input)
	if err != nil {
		return nil, "has an inputSchema that " + err.Error()
	}
	s.logLeftOut(t.name, "inputSchema", left)
	definition, err := canonical(t)
	if err != nil {
		return nil, "has a definition that is not JSON"
	}
	if len(definition) > maxDefinition {
		return nil, fmt.Sprintf("has a definition of %d bytes; at most %d are possible", len(definition), maxDefinition)
	}
	sum := sha256.Sum256(definition)
	name, full := t.name, protocol.MCPName(s.opts.ID, alias)
	b = &boundTool{name: name, definition: definition, hash: hex.EncodeToString(sum[:])}
	b.tool = tools.Tool{
		Def: s.define(full, t, input), Kind: tools.KindMCP, Detail: s.detail(t, input), Denied: s.denial(t.name),
		Check: checker(t.input, input),
		Call: func(ctx context.Context, args protocol.Object, emit host.Emitter) (*tools.Outcome, error) {
			return s.call(ctx, name, args, emit)
		},
	}
	return b, ""
}

// entryName returns a name for an entry of a list: its name, uri or title, or else its place.
func entryName(i int, raw jsontext.Value) string {
	if obj, err := protocol.ParseObject(raw); err == nil {
		if name := cmp.Or(obj.Text("name"), obj.Text("uri"), obj.Text("title")); name != "" {
			return protocol.Clip(name, maxQuoted)
		}
	}
	return fmt.Sprintf("entry %d", i+1)
}

// decoded returns a JSON Schema as a Go value, or true, which accepts everything, if it is null or cannot
// be decoded.
func decoded(raw jsontext.Value) (v any) {
	if json.Unmarshal(raw, &v) != nil || v == nil {
		return true
	}
	return v
}

// canonical returns the definition that is pinned: the same JSON for the same definition.
func canonical(t *serverTool) (jsontext.Value, error) {
	raw, err := encode(map[string]any{
		"name": t.name, "title": t.title, "description": t.description,
		"inputSchema": t.input, "outputSchema": t.output, "annotations": t.annotations,
	})
	if err != nil {
		return nil, err
	}
	return raw, raw.Canonicalize()
}

// define returns what tool/list says about the tool.
func (s *server) define(full string, t *serverTool, input jsontext.Value) protocol.ToolDefinition {
	def := protocol.ToolDefinition{
		Name: full, Description: t.description, InputParameters: schema.Parameters(decoded(input)),
		Streaming: true, Version: "1.0.0", Tags: []string{"mcp", s.opts.ID},
		OutputParameters: []protocol.ToolParameter{
			{
				Name: "content", Type: "array", Description: "What it gave back, in blocks such as {type, text}.",
				Required: true,
			},
			{Name: "structuredContent", Type: "any", Description: "The same as data, from tools that give it."},
		},
	}
	if def.Description == "" {
		def.Description = t.title
	}
	if t.annotations != nil {
		def.Idempotent = t.annotations.IdempotentHint || t.annotations.ReadOnlyHint
	}
	return def
}

// detail returns what DescribeTool says about the tool. Hints that the server leaves out have MCP's
// defaults.
func (s *server) detail(t *serverTool, input jsontext.Value) host.ToolDetail {
	d := host.ToolDetail{Title: t.title, InputSchema: input, Destructive: true, OpenWorld: true}
	d.Task = t.taskSupport() != ""
	if a := t.annotations; a != nil {
		if d.Title == "" {
			d.Title = a.Title
		}
		d.ReadOnly = a.ReadOnlyHint
		d.Idempotent = a.IdempotentHint || a.ReadOnlyHint
		d.Destructive = !a.ReadOnlyHint && allowed(a.DestructiveHint)
		d.OpenWorld = allowed(a.OpenWorldHint)
	}
	d.Foreign, d.Annotations = true, t.raw("annotations")
	d.Icons, d.Meta = bounded(t.raw("icons")), bounded(jsontext.Value(passedMeta(protocol.Value(t.raw("_meta")))))
	if t.output != nil {
		output, left, err := schema.NormaliseOutput(t.output)
		if err != nil {
			s.p.env.Log.Debug().Str("mcp_server", s.opts.ID).Str("tool", t.name).
				Msg("the outputSchema of a tool of the MCP server is left out: it " + err.Error())
			return d
		}
		s.logLeftOut(t.name, "outputSchema", left)
		d.OutputSchema = outputSchema(output)
	}
	return d
}

// bounded returns raw, or nil if it has more than maxDefinition bytes.
func bounded(raw jsontext.Value) jsontext.Value {
	if len(raw) > maxDefinition {
		return nil
	}
	return raw
}

// logLeftOut logs the parts of a schema that the host does not offer.
func (s *server) logLeftOut(tool, which string, left []string) {
	if len(left) > 0 {
		s.p.env.Log.Debug().Str("mcp_server", s.opts.ID).Str("tool", tool).Strs("parts", left).
			Msg("parts of the " + which + " of a tool of the MCP server are left out: clients cannot use them")
	}
}

// outputSchema returns the schema of a result's data. The server's schema describes its member
// structuredContent.
func outputSchema(structured jsontext.Value) jsontext.Value {
	head := `{"type":"object","properties":{"content":{"type":"array","items":{"type":"object"}},"structuredContent":`
	within := schema.Moved(structured, "", "/properties/structuredContent")
	return jsontext.Value(head + string(within) + `},"required":["content"]}`)
}

// warnOfNames logs the names and globs of allow and deny that match no tool of the server.
func (s *server) warnOfNames(found []*boundTool) {
	var names []string
	for _, b := range found {
		names = append(names, b.name)
	}
	for _, list := range []struct {
		option string
		globs  []string
	}{{"allow", s.opts.Allow}, {"deny", s.opts.Deny}} {
		for _, glob := range list.globs {
			if !slices.ContainsFunc(names, func(name string) bool { return matches([]string{glob}, name) }) {
				hint := schema.DidYouMean(glob, names)
				if hint != "" {
					hint = "; " + hint
				}
				s.p.env.Log.Warn().Str("mcp_server", s.opts.ID).Msgf("%s: %q matches no tool of the MCP server%s",
					list.option, protocol.Clip(glob, maxQuoted), hint)
			}
		}
	}
}

// denial returns why the config denies a tool, or "" if it does not.
func (s *server) denial(name string) string {
	if len(s.opts.Allow) > 0 && !matches(s.opts.Allow, name) {
		return "is not among the tools that the config allows of its server"
	}
	if matches(s.opts.Deny, name) {
		return "is denied in the config"
	}
	return ""
}

func matches(globs []string, name string) bool {
	return slices.ContainsFunc(globs, func(glob string) bool {
		return glob == name || doublestar.MatchUnvalidated(glob, name)
	})
}

// publish makes the tools of all servers the plugin's tools. It reports whether what the agent sees has
// changed. If two servers have the same name for a tool, the first server keeps it (those of the config
// come before those of the agent) and the other tool is withheld.
func (p *Plugin) publish() (news bool) {
	p.publishing.Lock()
	defer p.publishing.Unlock()
	owner := make(map[string]string)
	var all []tools.Tool
	for _, s := range p.all() {
		s.mu.Lock()
		s.withheld = slices.DeleteFunc(slices.Clone(s.withheld), func(w Withheld) bool { return w.collides })
		for _, b := range s.tools {
			name := b.tool.Def.Name
			if other := owner[name]; other != "" {
				why := "would have the name " + name + ", which a tool of the server " + other + " has"
				s.withheld = append(s.withheld, Withheld{Tool: b.name, Reason: why, collides: true})
				continue
			}
			owner[name] = s.opts.ID
			all = append(all, b.tool)
		}
		s.logWithheldLocked()
		s.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b tools.Tool) int { return cmp.Compare(a.Def.Name, b.Def.Name) })
	if err := p.Replace(all); err != nil {
		p.env.Log.Error().Err(err).Str("plugin", p.name).Msg("the tools of the MCP servers could not be taken in")
		return false
	}
	seen := summary(all)
	news = seen != p.seen
	p.seen = seen
	return news
}

// summary returns a hash of what the agent sees of a list of tools.
func summary(all []tools.Tool) (sum [sha256.Size]byte) {
	h := sha256.New()
	for _, t := range all {
		for _, text := range []string{t.Def.Name, t.Denied, t.Def.Description, string(t.Detail.InputSchema)} {
			fmt.Fprintf(h, "%d:%s", len(text), text)
		}
	}
	h.Sum(sum[:0])
	return sum
}
