package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/config"
	"a2e/host/dialect/mcp"
	"a2e/host/schema"
	"a2e/plugins"
	"a2e/protocol"
	"a2e/protocol/client"
)

// toolsAgent is the agent id of `a2e tools`.
const toolsAgent = "a2e tools"

type toolsCmd struct {
	List   toolsListCmd   `cmd:"" help:"List the tools, or search them."`
	Call   toolsCallCmd   `cmd:"" help:"Call one tool and print its result."`
	Export toolsExportCmd `cmd:"" help:"Print the tools as models' APIs and MCP define them."`
}

type toolsListCmd struct {
	Query    string   `arg:"" optional:"" help:"Words to search for; the best match comes first."`
	Kind     string   `placeholder:"KIND" help:"Only tools of this origin: builtin, command, mcp, toolkit."`
	Tag      []string `placeholder:"TAG" help:"Only tools with this tag; may be given several times."`
	Deferred bool     `help:"Include deferred tools."`
	Timeout  float64  `placeholder:"SECONDS" help:"Seconds to wait for MCP servers. Default: as long as their start may take."`
	JSON     bool     `name:"json" help:"Print the definitions as JSON."`

	server string // the only MCP server to wait for; "" = all servers
}

// Run asks a host in this process for its tools and lists them.
func (l toolsListCmd) Run(cmd *commands, sys *System) error {
	req := &protocol.ToolListRequest{Query: l.Query, FilterKind: l.Kind, FilterTags: l.Tag, IncludeDeferred: l.Deferred}
	var resp protocol.ToolListResponse
	wait := serverWait{seconds: l.Timeout, needs: func(id string) bool {
		return (l.Kind == "" || l.Kind == "mcp") && (l.server == "" || id == l.server)
	}}
	err := cmd.askServers(sys, toolsAgent, protocol.CapTools, &wait, func(ctx context.Context, c *client.Client) error {
		if err := c.Call(ctx, protocol.TypeToolListReq, req, &resp); err != nil || len(resp.Tools) > 0 {
			return err
		}
		return l.misnamed(ctx, c)
	})
	if err != nil {
		return err
	}
	none := "there is no such tool"
	if len(wait.missing) > 0 {
		none = ""
	}
	return cmp.Or(list(sys, l.JSON, resp.Tools, none, []string{"TOOL", "ARGUMENTS", "DESCRIPTION"},
		func(t protocol.ToolDefinition) []string {
			return []string{t.Name, signature(t.InputParameters), firstSentence(t.Description)}
		}), wait.lacking())
}

// misnamed returns a usage error if a filter names a kind or a tag that does not exist.
func (l toolsListCmd) misnamed(ctx context.Context, c *client.Client) error {
	kinds := []string{"builtin", "native", "command", "mcp", "toolkit"}
	if l.Kind != "" && !slices.Contains(kinds, strings.ToLower(l.Kind)) {
		return fail(exitUsage, unknown("kind of tools", l.Kind, kinds))
	}
	var resp protocol.ToolListResponse
	if len(l.Tag) == 0 || l.server != "" { // the server has no tools, or did not start
		return nil
	}
	err := c.Call(ctx, protocol.TypeToolListReq, &protocol.ToolListRequest{IncludeDeferred: true}, &resp)
	var tags []string
	for _, t := range resp.Tools {
		tags = append(tags, t.Tags...)
	}
	return cmp.Or(err, unknownOf("tag", l.Tag, tags))
}

func firstSentence(text string) string {
	text, _, _ = strings.Cut(text, "\n")
	sentence, _, _ := strings.Cut(text, ". ")
	return strings.TrimSuffix(sentence, ".")
}

// signature returns the names of a tool's parameters on one line. Optional ones end with a question mark.
func signature(params []protocol.ToolParameter) string {
	return strings.Join(each(params, func(p protocol.ToolParameter) string {
		if p.Required {
			return p.Name
		}
		return p.Name + "?"
	}), " ")
}

// callSeconds is the default time limit of a call.
const callSeconds = 30

type toolsCallCmd struct {
	Name    string   `complete:"tool" arg:"" help:"The tool."`
	Values  []string `complete:"tool-argument" arg:"" optional:"" help:"Arguments as key=value, read as the tool's parameter wants it: 12 is text where that is a string. key:=JSON is JSON in any case."`
	Args    string   `placeholder:"JSON" help:"All arguments as one JSON object, or @FILE, or - for stdin."`
	Record  bool     `help:"Count the call into what the host learns of the tool."`
	Timeout int      `placeholder:"SECONDS" help:"Seconds that the call may take, and before it the start of the MCP server that has the tool. Default: 30, and as long as the start may take."`
	JSON    bool     `name:"json" help:"Print the whole result, not only its data."`
}

// Run calls the tool on a host in this process and prints the result.
func (t toolsCallCmd) Run(cmd *commands, sys *System) error {
	given, err := readArguments(sys, "--args", t.Args, t.Values)
	if err != nil {
		return fail(exitUsage, err)
	}
	cmd.record = t.Record
	req := &protocol.ToolCallRequest{ToolName: t.Name, Timeout: cmp.Or(t.Timeout, callSeconds), Streaming: true}
	var resp protocol.ToolCallResponse
	wait := serverWait{seconds: float64(t.Timeout), needs: mentions(t.Name)}
	err = cmd.askServers(sys, toolsAgent, protocol.CapTools, &wait, func(ctx context.Context, c *client.Client) error {
		var known protocol.ToolListResponse
		if err := c.Call(ctx, protocol.TypeToolListReq, &protocol.ToolListRequest{IncludeDeferred: true},
			&known); err != nil {
			return err
		}
		if req.Arguments, err = given.object(t.Name, toolParameters(known.Tools, t.Name)); err != nil {
			return err
		}
		defer sys.waitingFor(t.Name)()
		return c.Call(ctx, protocol.TypeToolCallReq, req, &resp)
	})
	if err != nil {
		return err
	}
	var out any = resp.Data.Data
	if t.JSON {
		out = resp.Data
	}
	if err := printJSON(sys.Out, out); err != nil {
		return err
	}
	tellCut(sys, resp.Data.Truncated, resp.Data.Summary)
	return failedCall(t.Name, resp.Data.Success, resp.Data.Error)
}

// tellCut prints to stderr that the printed result is only a part.
func tellCut(sys *System, truncated *bool, summary jsontext.Value) {
	if truncated != nil && *truncated {
		why, _ := protocol.Value(summary).Str()
		if why != "" {
			why = ": " + oneLine(why)
		}
		say(sys.Err, "the result was cut, and the rest is missing here%s", why)
	}
}

// failedCall returns the error of a call that did not succeed, or nil if it did.
func failedCall(name string, success bool, reason *string) error {
	switch {
	case success:
		return nil
	case reason == nil:
		return fail(exitFailed, fmt.Errorf("%s failed: it reports no reason", name))
	}
	return fail(exitFailed, fmt.Errorf("%s failed: %s", name, *reason))
}

// ask runs a host in this process, opens a session with one capability as the agent agentID, and
// passes the session's client to do. The requests take the same way as those of an agent.
func (c *commands) ask(sys *System, agentID string, capability protocol.Capability,
	do func(context.Context, *client.Client) error,
) error {
	return c.askWith(sys, agentID, []protocol.Capability{capability}, do)
}

// askWith is ask with several capabilities. Only the first one of wanted must be there.
func (c *commands) askWith(sys *System, agentID string, wanted []protocol.Capability,
	do func(context.Context, *client.Client) error,
) (err error) {
	ctx, stop := interruptible()
	defer stop()
	cfg, err := c.loadAloud(sys)
	if err != nil {
		return err
	}
	cfg.Audit.Enabled = false                      // the person at the keyboard is not an agent
	cfg.AuthToken, cfg.Auth = config.Secret{}, nil // the tokens are for agents
	log := zerolog.Nop()                           // the command itself prints what concerns the answer
	if c.LogLevel != nil || c.LogFile != "" {
		opened, closeLog, err := c.openLog(sys)
		if err != nil {
			return err
		}
		defer closeLog()
		log = opened
	}
	opts := hostOptions(cfg, log)
	opts.AgentID = cmp.Or(opts.AgentID, agentID)
	opts.Uncounted = !c.record // trials of a person do not count in the statistics, unless the person asks for it
	within := *sys
	within.over = ctx.Done()
	hostIn, toHost := io.Pipe()
	fromHost, hostOut := io.Pipe()
	served := make(chan error, 1)
	go func() {
		err := serveWith(cfg, opts, speakA2E, &within, hostIn, hostOut)
		hostOut.CloseWithError(err)
		hostIn.CloseWithError(err) // a host that did not start reads no request
		served <- err
	}()
	conn := client.Attach(fromHost, toHost, client.Options{})
	if c.person == nil {
		c.person = newPerson(sys)
	}
	c.person.over = ctx.Done()
	c.person.answers(conn)
	hello, err := conn.Handshake(ctx, agentID, wanted, "")
	var refused *client.RefusedError
	given := func(a protocol.CapabilityRow) bool { return wanted[0] == a.Capability || wanted[0] == protocol.CapCore }
	switch {
	case errors.As(err, &refused) && refused.Reason == protocol.ReasonNoCaps, err == nil &&
		!slices.ContainsFunc(hello.AcceptedCaps, given):
		err = fail(exitConfig, fmt.Errorf("no plugin of the config provides %s", wanted[0]))
	case err == nil:
		err = do(ctx, conn)
	}
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	_ = conn.Close()
	if serveErr := <-served; serveErr != nil {
		return serveErr
	}
	return err
}

func printJSON(w io.Writer, v any) error {
	out, err := json.Marshal(v, jsontext.WithIndent("  "), json.Deterministic(true))
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s\n", escapeUnseen(out))
	return err
}

// closePlugins closes plugins that belong to no host.
func closePlugins(made []host.Plugin) {
	for _, p := range made {
		_ = p.Close(context.Background())
	}
}

// tryPlugins returns an error if the plugins of a config cannot be created.
func tryPlugins(cfg *config.Config) error {
	made, err := plugins.New(cfg, plugins.Deps{})
	closePlugins(made)
	return err
}

// Limits of OpenAI's API.
const (
	openAIDescription = 1024 // characters of a tool's description
	openAITools       = 128  // tools in one request
)

type toolsExportCmd struct {
	Names   []string `arg:"" optional:"" name:"names" help:"The tools; all when none is named."`
	Format  string   `required:"" placeholder:"API" enum:"openai,anthropic,google,mcp,jsonschema" help:"${enum}."`
	Strict  bool     `help:"Of openai: mark the tools whose parameters its strict mode takes as they are."`
	Map     bool     `help:"Print an object: the definitions in tools, and in names the tool that each name there stands for."`
	Timeout float64  `placeholder:"SECONDS" help:"Seconds to wait for MCP servers. Default: as long as their start may take."`
}

// exported is the output of --map.
type exported struct {
	Tools []any             `json:"tools"`
	Names map[string]string `json:"names"` // from the exported name to the name of the tool
}

// Shapes of the tool definitions of the APIs.
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
	googleFunction struct {
		Name        string         `json:"name"`
		Description string         `json:"description"`
		Parameters  jsontext.Value `json:"parametersJsonSchema"`
	}
)

// Run asks a host in this process for its tools and prints their definitions for another API.
func (e toolsExportCmd) Run(cmd *commands, sys *System) error {
	if e.Strict && e.Format != "openai" {
		return fail(exitUsage, errors.New("--strict is for --format openai"))
	}
	var resp protocol.ToolListResponse
	wait := serverWait{seconds: e.Timeout, needs: func(id string) bool {
		return len(e.Names) == 0 || slices.ContainsFunc(e.Names, func(name string) bool { return mentions(name)(id) })
	}}
	err := cmd.askServers(sys, toolsAgent, protocol.CapTools, &wait, func(ctx context.Context, c *client.Client) error {
		return c.Call(ctx, protocol.TypeToolListReq, &protocol.ToolListRequest{IncludeDeferred: true, Detail: true},
			&resp)
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

func toolNames(all []protocol.ToolDefinition) []string {
	return each(all, func(t protocol.ToolDefinition) string { return t.Name })
}

// chosen returns the named tools, in that order, or all tools if none is named.
func (e toolsExportCmd) chosen(all []protocol.ToolDefinition) ([]protocol.ToolDefinition, error) {
	if len(e.Names) == 0 {
		return all, nil
	}
	known := toolNames(all)
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

// export creates the definitions. It prints to stderr what the chosen API cannot express.
func (e toolsExportCmd) export(sys *System, tools []protocol.ToolDefinition) exported {
	names, out := schema.NewNames(toolNames(tools)), exported{[]any{}, map[string]string{}}
	changed := 0
	for i := range tools {
		t := &tools[i]
		name := t.Name
		switch e.Format {
		case "google": // a name must not begin with a digit or -
			if name = names.There(name); strings.ContainsAny(name[:1], "-0123456789") {
				name = schema.FittingName("_" + name)
			}
		case "openai", "anthropic":
			name = names.There(name)
		}
		if bad, found := unfitKey(t.Detail.InputSchema); found && e.Format == "anthropic" {
			say(sys.Err, "a2e: %s is left out: this API takes no parameter called %.80q, only 1 to 64 letters, "+
				"digits, _, . and -", t.Name, bad)
			continue
		}
		if out.Names[name] = t.Name; name != t.Name {
			changed++
		}
		out.Tools = append(out.Tools, e.definition(t, name))
	}
	if changed > 0 && !e.Map {
		say(sys.Err, "a2e: changed %s that this API does not allow; --map lists the tool of each",
			protocol.Count(changed, "name"))
	}
	if e.Format == "openai" && len(out.Tools) > openAITools {
		say(sys.Err, "a2e: these are %d tools; OpenAI's API takes at most %d in one request", len(out.Tools),
			openAITools)
	}
	return out
}

// definition returns the definition of one tool.
func (e toolsExportCmd) definition(t *protocol.ToolDefinition, name string) any {
	switch e.Format {
	case "mcp":
		return mcp.Definition(t)
	case "jsonschema":
		return titled(t)
	}
	input := schema.Fit(t.Detail.InputSchema)
	switch e.Format {
	case "anthropic":
		return anthropicTool{name, t.Description, input}
	case "google":
		return googleFunction{name, t.Description, input}
	}
	about := []rune(t.Description)
	if len(about) > openAIDescription {
		about = append(about[:openAIDescription-1], '…')
	}
	return openAITool{"function", openAIFunction{name, string(about), input, e.Strict && schema.Strict(input)}}
}

// titled returns the schema of a tool's arguments with the tool's name and description. It adds the
// JSON Schema dialect if the schema does not state one.
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

// unfitKey returns the first parameter name that Anthropic's API does not accept.
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
