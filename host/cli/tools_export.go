package cli

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/dialect/mcp"
	"a2e/host/schema"
	"a2e/protocol"
	"a2e/protocol/client"
)

// The limits of OpenAI's API.
const (
	openAIDescription = 1024 // characters of a tool's description
	openAITools       = 128  // of one request
)

type toolsExportCmd struct {
	Names   []string `arg:"" optional:"" name:"names" help:"The tools; all when none is named."`
	Format  string   `required:"" placeholder:"FORMAT" enum:"openai,anthropic,mcp,jsonschema" help:"Whose shape the definitions have: openai, anthropic, mcp or jsonschema."`
	Strict  bool     `help:"Of openai: mark the tools whose parameters its strict mode takes as they are."`
	Map     bool     `help:"Print an object: the definitions in tools, and in names the tool that each name there stands for."`
	Timeout float64  `placeholder:"SECONDS" help:"Seconds to wait for MCP servers. Default: as long as their start may take."`
}

// exported is what --map prints.
type exported struct {
	Tools []any             `json:"tools"`
	Names map[string]string `json:"names"` // the tool by its name there
}

// The shapes of the APIs.
type (
	openAITool struct {
		Type     string         `json:"type"`
		Function openAIFunction `json:"function"`
	}
	openAIFunction struct {
		Name        string         `json:"name"`
		Description string         `json:"description"`
		Parameters  jsontext.Value `json:"parameters"`
		Strict      bool           `json:"strict,omitzero"`
	}
	anthropicTool struct {
		Name        string         `json:"name"`
		Description string         `json:"description"`
		InputSchema jsontext.Value `json:"input_schema"`
	}
)

// Run asks a host in this process for its tools and prints them in another shape.
func (e toolsExportCmd) Run(cmd *commands, sys *System) error {
	if e.Strict && e.Format != "openai" {
		return fail(exitUsage, errors.New("--strict is for --format openai"))
	}
	var resp protocol.ToolListResponse
	wait := serverWait{seconds: e.Timeout, needs: func(id string) bool {
		return len(e.Names) == 0 || slices.ContainsFunc(e.Names, func(name string) bool { return mentions(name)(id) })
	}}
	err := cmd.askServers(sys, toolsAgent, protocol.CapTools, &wait, func(ctx context.Context, c *client.Client) error {
		return c.Call(ctx, protocol.TypeToolListReq, &protocol.ToolListRequest{IncludeDeferred: true, Detail: true}, &resp)
	})
	if err != nil {
		return err
	}
	chosen, err := e.chosen(resp.Tools)
	if err != nil {
		return cmp.Or(wait.lacking(), err)
	}
	out := e.export(sys, chosen)
	if e.Map {
		return cmp.Or(printJSON(sys.Out, out), wait.lacking())
	}
	return cmp.Or(printJSON(sys.Out, out.Tools), wait.lacking())
}

// chosen returns the tools that are named, in that order, or all.
func (e toolsExportCmd) chosen(all []protocol.ToolDefinition) ([]protocol.ToolDefinition, error) {
	if len(e.Names) == 0 {
		return all, nil
	}
	var known []string
	for _, t := range all {
		known = append(known, t.Name)
	}
	var some []protocol.ToolDefinition
	for _, name := range e.Names {
		i := slices.Index(known, name)
		if i < 0 {
			return nil, fail(exitUsage, unknown("tool", name, known))
		}
		if !slices.ContainsFunc(some, func(t protocol.ToolDefinition) bool { return t.Name == name }) {
			some = append(some, all[i])
		}
	}
	return some, nil
}

// export makes the definitions, and says what of the tools they cannot say.
func (e toolsExportCmd) export(sys *System, tools []protocol.ToolDefinition) exported {
	var all []string
	for _, t := range tools {
		all = append(all, t.Name)
	}
	names, out := schema.NewNames(all), exported{[]any{}, map[string]string{}}
	changed := 0
	for i := range tools {
		t := &tools[i]
		name := t.Name
		if e.Format == "openai" || e.Format == "anthropic" {
			name = names.There(name)
		}
		if bad, found := unfitKey(t.Detail.InputSchema); found && e.Format == "anthropic" {
			say(sys.Err, "a2e: %s is left out: this API takes no parameter called %.80q, only 1 to 64 letters, digits, _, . and -", t.Name, bad)
			continue
		}
		if out.Names[name] = t.Name; name != t.Name {
			changed++
		}
		out.Tools = append(out.Tools, e.definition(t, name))
	}
	if changed > 0 && !e.Map {
		say(sys.Err, "a2e: %d names do not fit this API and are others there; --map says which tool each stands for", changed)
	}
	if e.Format == "openai" && len(out.Tools) > openAITools {
		say(sys.Err, "a2e: these are %d tools; OpenAI's API takes at most %d in one request", len(out.Tools), openAITools)
	}
	return out
}

// definition makes the definition of one tool.
func (e toolsExportCmd) definition(t *protocol.ToolDefinition, name string) any {
	switch e.Format {
	case "mcp":
		return mcp.Definition(t)
	case "jsonschema":
		return titled(t)
	}
	input := schema.Fit(t.Detail.InputSchema)
	if e.Format == "anthropic" {
		return anthropicTool{name, t.Description, input}
	}
	about := []rune(t.Description)
	if len(about) > openAIDescription {
		about = append(about[:openAIDescription-1], '…')
	}
	return openAITool{"function", openAIFunction{name, string(about), input, e.Strict && schema.Strict(input)}}
}

// titled returns the schema of a tool's arguments with its name and description, and says which
// JSON Schema it is written in where it does not say so itself.
func titled(t *protocol.ToolDefinition) jsontext.Value {
	input, _ := protocol.ParseObject(t.Detail.InputSchema)
	out := jsontext.Value(`{`)
	if _, says := input.Get("$schema"); !says {
		out = append(out, `"$schema":"https://json-schema.org/draft/2020-12/schema",`...)
	}
	out = append(protocol.AppendString(append(out, `"title":`...), t.Name), `,"description":`...)
	out = protocol.AppendString(out, t.Description)
	for key, val := range input.All() {
		if name := string(key); name != "title" && name != "description" {
			out = append(append(protocol.AppendString(append(out, ','), name), ':'), val...)
		}
	}
	return append(out, '}')
}

// unfitKey returns the first parameter that Anthropic's API does not take.
func unfitKey(input jsontext.Value) (name string, found bool) {
	obj, _ := protocol.ParseObject(input)
	val, _ := obj.Get("properties")
	properties, _ := protocol.ParseObject(val)
	for key := range properties.All() {
		if name = string(key); name == "" || strings.ReplaceAll(name, ".", "_") != schema.FittingName(name) {
			return name, true
		}
	}
	return "", false
}
