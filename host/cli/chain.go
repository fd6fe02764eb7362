package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/plugins/chains"
	"a2e/protocol"
	"a2e/protocol/client"
)

// chainAgent is the agent id of `a2e chain`.
const chainAgent = "a2e chain"

type chainCmd struct {
	Run   chainRunCmd   `cmd:"" help:"Run the chain in a file, showing how far it is."`
	Graph chainGraphCmd `cmd:"" help:"Draw the chain in a file, as text: Mermaid or DOT."`
	Check chainCheckCmd `cmd:"" help:"Check the chains in files without running them."`

	List    chainListCmd    `cmd:"" help:"List the chains with a journal, the most recently changed first."`
	Show    chainShowCmd    `cmd:"" help:"Show a chain with a journal, node by node."`
	Resume  chainResumeCmd  `cmd:"" help:"Resume a chain where it stopped."`
	Cancel  chainCancelCmd  `cmd:"" help:"Stop a chain with a journal, whichever host runs it; it can be resumed."`
	Approve chainApproveCmd `cmd:"" help:"Decide what a chain waits for, whichever host runs it."`
}

// chainPlugin creates a plugin that checks chains with the options of the config. warn gets the
// warnings of the config.
func (c *commands) chainPlugin(sys *System, warn func(string)) (*chains.Plugin, error) {
	cfg, err := c.load(sys, warn)
	if err != nil {
		return nil, err
	}
	opts := chains.DefaultOptions()
	for _, p := range cfg.Plugins {
		if p.Enabled && p.Type == string(protocol.CapChains) {
			if err := p.Options.Decode(&opts); err != nil {
				return nil, fail(exitConfig, err)
			}
			break
		}
	}
	plugin, err := chains.New("chains", opts, host.Env{Workspace: cfg.Workspace, Wall: cfg.Wall, Log: zerolog.Nop()})
	return plugin, fail(exitConfig, err)
}

// chainGraph reads a file and returns its chain's graph. The error names lines of the file.
func (c *commands) chainGraph(plugin *chains.Plugin, sys *System, path string) (*chains.File, *chains.Graph, error) {
	file, err := chains.ReadFile(path, sys.In)
	if err != nil {
		return nil, nil, fail(exitFailed, err)
	}
	graph, err := plugin.Graph(context.Background(), file.Request)
	if err != nil {
		return nil, nil, fail(exitFailed, file.Explain(err))
	}
	return file, graph, nil
}

type chainCheckCmd struct {
	File []string `arg:"" help:"Files with chains, as YAML or JSON; - is stdin."`
}

// Run checks all files and prints a result for each.
func (c chainCheckCmd) Run(cmd *commands, sys *System) error {
	plugin, err := cmd.chainPlugin(sys, sys.warn)
	if err != nil {
		return err
	}
	wrong := 0
	for _, path := range c.File {
		_, graph, err := cmd.chainGraph(plugin, sys, path)
		if err != nil {
			wrong++
			say(sys.Err, "%v", err)
			continue
		}
		fmt.Fprintf(sys.Out, "%s: ok, %s\n", oneLine(path), protocol.Count(len(graph.Nodes), "node"))
	}
	if wrong > 0 {
		return fail(exitFailed, fmt.Errorf("%d of %s wrong", wrong, protocol.Count(len(c.File), "file")))
	}
	return nil
}

type chainRunCmd struct {
	File    string   `arg:"" help:"A file with a chain, as YAML or JSON; - is stdin."`
	Values  []string `arg:"" optional:"" help:"Members of the initial input as key=value; a value that is JSON counts as such, any other as text; key:=JSON must be JSON."`
	Input   string   `placeholder:"JSON" help:"The initial input as one JSON object, or @FILE, or - for stdin. What the file says itself fills the gaps."`
	ID      string   `name:"id" placeholder:"NAME" help:"Keep a journal of the chain under this name, so that it can go on after a kill, a cancel or a failure."`
	Resume  bool     `help:"With --id: resume the chain of that name where it stopped, or start it."`
	Record  bool     `help:"Count the run, and the calls in it, into what the host learns."`
	Timeout int      `placeholder:"SECONDS" help:"Seconds that the chain may take, and before it the start of the MCP servers that it names. Default: what the file says, else 300, and as long as the start may take."`
	Quiet   bool     `short:"q" help:"Do not show the progress."`
	JSON    bool     `name:"json" help:"Print the whole result, not only the final output."`
}

// Run runs the chain on a host in this process.
func (c chainRunCmd) Run(cmd *commands, sys *System) error {
	if c.File == "-" && c.Input == "-" {
		return fail(exitUsage, errors.New("stdin cannot be both the chain and its input"))
	}
	plugin, err := cmd.chainPlugin(sys, func(string) {}) // ask prints the warnings
	if err != nil {
		return err
	}
	file, graph, err := cmd.chainGraph(plugin, sys, c.File)
	if err != nil {
		return err
	}
	if graph.Approvals && !file.HasTimeout {
		file.Request.Timeout = untilDecided
	}
	if err := c.prepare(file.Request, sys); err != nil {
		return fail(exitUsage, err)
	}
	switch {
	case c.ID == "" && c.Resume:
		return fail(exitUsage, errors.New("--resume needs --id, the name of the chain"))
	case c.ID == "" && graph.Approvals: // with a name the chain can be approved from elsewhere
		c.ID = chainName(c.File)
	}
	if c.ID != "" {
		file.Request.ChainID, file.Request.Journal, file.Request.Resume = c.ID, true, c.Resume
	}
	return c.ask(cmd, sys, file.Request, graph, file.Explain)
}

// chainName returns a name for a run of the chain in a file, such as deploy-3f2a9c1e.
func chainName(file string) string {
	base := filepath.Base(file)
	if base = strings.TrimSuffix(base, filepath.Ext(base)); base == "" || base == "-" || base == "." {
		base = "chain"
	}
	return protocol.Clip(base, 64) + "-" + uuid.NewString()[:8]
}

// approvals makes the host's person say how to approve the chain with this name from elsewhere.
func (c *commands) approvals(sys *System, id string) {
	if c.person == nil {
		c.person = newPerson(sys)
	}
	c.person.told = func(req *protocol.MCPElicitRequest) string {
		found, err := c.journals(sys, id, false)
		if id == "" || err != nil || len(found) == 0 {
			return ""
		}
		for _, w := range found[0].Waiting {
			if w.Message == req.Message {
				return fmt.Sprintf("%s waits for approval: %s\nelsewhere, in this folder: "+
					"a2e chain approve %s --node %s (--deny refuses)",
					oneLine(w.Path), oneLine(w.Message), quoted(id), quoted(w.Path))
			}
		}
		return ""
	}
}

// untilDecided is the time limit, in seconds, of a chain with approvals that has no limit of its
// own. It is the longest limit of a request, because a person may take long.
const untilDecided = 7 * 24 * 3600

// ask runs a chain on a host in this process, shows the progress, and prints the result.
func (c chainRunCmd) ask(cmd *commands, sys *System, req *protocol.ChainRequest, graph *chains.Graph,
	explain func(error) error,
) error {
	var resp protocol.ChainResponse
	cmd.record = c.Record
	cmd.approvals(sys, req.ChainID)
	wait := serverWait{seconds: float64(c.Timeout), needs: chainMentions(req)}
	err := cmd.askServers(sys, chainAgent, protocol.CapChains, &wait, func(ctx context.Context,
		conn *client.Client,
	) error {
		event, done := c.watch(sys, graph)
		defer done()
		return conn.Call(ctx, protocol.TypeChainReq, req, &resp, client.OnEvent(func(m client.Message) {
			var e chainEvent
			if m.Decode(&e) == nil {
				event(&e)
			}
		}))
	})
	if refused, ok := errors.AsType[*protocol.Error](err); ok && refused.Code == protocol.CodeSchemaViolation {
		return fail(exitFailed, explain(err))
	}
	if err != nil {
		return err
	}
	var out any = resp
	if !c.JSON {
		if out = resp.FinalOutput; resp.FinalOutput == nil {
			out = jsontext.Value("null")
		}
	}
	if err := printJSON(sys.Out, out); err != nil {
		return err
	}
	return failedChain(&resp)
}

// chainMentions returns a function that reports whether a chain names an MCP server. It reports
// true for all servers if the chain runs skills or saved chains, as these may use any server.
func chainMentions(req *protocol.ChainRequest) func(id string) bool {
	text := ""
	for nodes := req.Nodes; len(nodes) > 0; nodes = nodes[1:] {
		kind := nodes[0].Text("kind")
		within, _ := nodes[0].Get("nodes") // nodes of a loop; a loop without them runs a saved chain
		var inner []protocol.Object
		opaque := kind == string(chains.KindChain) || kind == string(chains.KindSkill)
		if kind == string(chains.KindWhile) {
			opaque = json.Unmarshal(within, &inner) != nil
		}
		if opaque {
			return func(string) bool { return true }
		}
		text += string(nodes[0].Raw())
		nodes = append(nodes, inner...)
	}
	return mentions(text)
}

// prepare completes the request of the file with the flags of the command line.
func (c chainRunCmd) prepare(req *protocol.ChainRequest, sys *System) error {
	words, err := readArguments(sys, "--input", c.Input, c.Values)
	if err != nil {
		return fmt.Errorf("the initial input: %w", err)
	}
	given, err := words.object("the chain", nil) // a chain does not declare its arguments
	if err != nil {
		return fmt.Errorf("the initial input: %w", err)
	}
	members := map[string]jsontext.Value{}
	for _, obj := range []protocol.Object{req.InitialInput, given} {
		for key, val := range obj.All() {
			members[string(key)] = jsontext.Value(val)
		}
	}
	raw, err := json.Marshal(members, json.Deterministic(true))
	if err != nil {
		return err
	}
	if req.InitialInput, err = protocol.ParseObject(raw); err != nil {
		return err
	}
	if c.Timeout > 0 {
		req.Timeout = c.Timeout
	}
	req.Streaming = !c.Quiet
	return nil
}

// failedChain returns the error of a chain that failed, or nil if it succeeded.
func failedChain(resp *protocol.ChainResponse) error {
	if resp.Success {
		return nil
	}
	message, ok := resp.Error["message"].(string)
	if !ok {
		message = "it reports no reason: " + fmt.Sprint(slices.Sorted(maps.Keys(resp.Error)))
	}
	return fail(exitFailed, fmt.Errorf("the chain failed: %s", oneLine(message)))
}

// watch returns a function that shows each event of a run, in the way that fits stderr, and a
// function that ends this.
func (c chainRunCmd) watch(sys *System, graph *chains.Graph) (event func(*chainEvent), done func()) {
	switch {
	case c.Quiet:
		return func(*chainEvent) {}, func() {}
	case !sys.showsLive():
		return func(e *chainEvent) { fmt.Fprint(sys.Err, e.line()) }, func() {}
	}
	b := newBoard(sys.Err, time.Now, sys.columnsOf(sys.Err))
	live := newLiveChain(b, graph, sys.rows()-3)
	b.shared = true
	b.start()
	sys.show(b)
	return func(e *chainEvent) {
		b.change(func() { live.event(e) })
		if line := e.line(); line != "" {
			_ = b.write(func() error {
				_, err := io.WriteString(sys.Err,
					line)
				return err
			}) // a closed terminal shows nothing
		}
	}, func() { sys.show(nil); b.close() }
}

type chainGraphCmd struct {
	File   string `arg:"" help:"A file with a chain, as YAML or JSON; - is stdin."`
	Format string `enum:"mermaid,dot," default:"" placeholder:"FORMAT" help:"mermaid, or dot for Graphviz. Default: by the name of the output file, else mermaid."`
	Output string `short:"o" default:"-" placeholder:"FILE" help:"Write to this file, which appears only once it is complete; - is stdout."`
}

// Run draws the chain as text.
func (c chainGraphCmd) Run(cmd *commands, sys *System) error {
	format := c.Format
	switch ext := strings.ToLower(filepath.Ext(c.Output)); {
	case ext == ".svg" || ext == ".png":
		return fail(exitUsage, fmt.Errorf("--output %s: the graph is text, as Mermaid or DOT; `a2e chain graph %s "+
			"--format dot | dot -T%s` makes a picture of it", oneLine(c.Output), oneLine(c.File), ext[1:]))
	case format == "" && (ext == ".dot" || ext == ".gv"):
		format = "dot"
	}
	plugin, err := cmd.chainPlugin(sys, sys.warn)
	if err != nil {
		return err
	}
	_, graph, err := cmd.chainGraph(plugin, sys, c.File)
	if err != nil {
		return err
	}
	text := mermaidOf(graph)
	if format == "dot" {
		text = dotOf(graph)
	}
	return sys.output(c.Output, "", func(w io.Writer) error {
		_, err := io.WriteString(w, text)
		return err
	})
}

// shape says how to draw a kind of node.
type shape struct{ left, right, dot string }

func shapeOf(kind chains.Kind) shape {
	s, own := map[chains.Kind]shape{
		chains.KindSkill: {"([", "])", "box, style=rounded"}, chains.KindProc: {"[/", "/]", "parallelogram"},
		chains.KindBranch: {"{", "}", "diamond"},
		chains.KindMap:    {"{{", "}}", "hexagon"}, chains.KindChain: {"[[", "]]", "component"},
		chains.KindWait: {">", "]", "note"}, chains.KindWhile: {`[/`, `\]`, "trapezium"},
	}[kind]
	if !own {
		return shape{"[", "]", "box"}
	}
	return s
}

// edge says how to draw a kind of edge.
type edge struct{ mermaid, dot string }

func edgeOf(kind chains.EdgeKind) edge {
	e, own := map[chains.EdgeKind]edge{
		chains.EdgeData: {"-.->", "style=dotted"}, chains.EdgeNext: {"-->", ""},
		chains.EdgeError: {"-. on error .->", `style=dashed, label="on error"`},
		chains.EdgeItem:  {"==>|each item|", `style=bold, label="each item"`}, chains.EdgeLoop: {
			"==>|each iteration|",
			`style=bold, label="each iteration"`,
		},
		chains.EdgeAgain: {"-. again .->", `style=dashed, label="again"`}, chains.EdgeBoth: {
			"-->|true, false|",
			`label="true, false"`,
		},
	}[kind]
	if !own {
		return edge{"-->|" + string(kind) + "|", fmt.Sprintf("label=%q", string(kind))}
	}
	return e
}

// mermaidOf returns a chain as a Mermaid flowchart.
func mermaidOf(g *chains.Graph) string {
	escape := strings.NewReplacer("#", "#35;", `"`, "#quot;", "&", "#amp;", "<", "#lt;", ">", "#gt;", "`", "#96;", `\`, "#92;")
	return drawn("flowchart TD\n", "", g, func(i int, kind chains.Kind, lines []string) string {
		for k := range lines {
			lines[k] = escape.Replace(lines[k])
		}
		s := shapeOf(kind)
		return fmt.Sprintf(`n%d%s"%s"%s`, i, s.left, strings.Join(lines, "<br/>"), s.right)
	}, func(e chains.GraphEdge) string {
		return fmt.Sprintf("n%d %s n%d", e.From, edgeOf(e.Kind).mermaid, e.To)
	})
}

// dotOf returns a chain as a Graphviz digraph.
func dotOf(g *chains.Graph) string {
	escape := strings.NewReplacer(`\`, `\\`, `"`, `\"`)
	return drawn("digraph chain {\n", "}\n", g, func(i int, kind chains.Kind, lines []string) string {
		for k := range lines {
			lines[k] = escape.Replace(lines[k])
		}
		return fmt.Sprintf(`n%d [label="%s", shape=%s];`, i, strings.Join(lines, `\n`), shapeOf(kind).dot)
	}, func(e chains.GraphEdge) string {
		return fmt.Sprintf("n%d -> n%d [%s];", e.From, e.To, edgeOf(e.Kind).dot)
	})
}

// drawn returns a drawing with a line for each node, labeled with its id, kind and name, and a line for each edge.
func drawn(head, foot string, g *chains.Graph, node func(int, chains.Kind, []string) string,
	arrow func(chains.GraphEdge) string,
) string {
	var b strings.Builder
	b.WriteString(head)
	for i, n := range g.Nodes {
		lines := []string{cut(oneLine(n.ID), 60)}
		if what := strings.TrimSpace(string(n.Kind) + " " + n.Name); what != "" {
			lines = append(lines, cut(oneLine(what), 60))
		}
		b.WriteString("  " + node(i, n.Kind, lines) + "\n")
	}
	for _, e := range g.Edges {
		b.WriteString("  " + arrow(e) + "\n")
	}
	b.WriteString(foot)
	return b.String()
}
