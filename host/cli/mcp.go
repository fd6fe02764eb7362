package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/config"
	"a2e/plugins"
	"a2e/plugins/mcp"
	"a2e/protocol"
	"a2e/protocol/client"
)

// mcpAgent is the agent id of `a2e mcp`.
const mcpAgent = "a2e mcp"

type mcpCmd struct {
	List    mcpListCmd    `cmd:"" help:"Connect to the MCP servers of the config and report how that went."`
	Tools   mcpToolsCmd   `cmd:"" help:"List the tools of an MCP server."`
	Call    toolsCallCmd  `cmd:"" help:"Call a tool of an MCP server and print its result."`
	Add     mcpAddCmd     `cmd:"" help:"Add an MCP server to .mcp.json."`
	Remove  mcpRemoveCmd  `cmd:"" help:"Remove an MCP server from .mcp.json."`
	Approve mcpApproveCmd `cmd:"" help:"Accept the tools of an MCP server that have changed since they were pinned."`
	Serve   mcpServeCmd   `cmd:"" help:"Be an MCP server on stdin and stdout."`
}

type mcpListCmd struct {
	Timeout float64 `aliases:"wait" placeholder:"SECONDS" help:"Seconds to wait for servers that are being started. Default: as long as that may take."`
	JSON    bool    `name:"json" help:"Print all that is known of them as JSON."`
}

// mcpServer has the fields of a server that the commands use.
type mcpServer struct {
	ServerID   string         `json:"server_id"`
	Status     string         `json:"status"`
	State      string         `json:"state"`
	Transport  string         `json:"transport"`
	Tools      int            `json:"tools_count"`
	Resources  int            `json:"resources_count"`
	Prompts    int            `json:"prompts_count"`
	LastError  string         `json:"last_error"`
	ServerName string         `json:"server_name"`
	Version    string         `json:"server_version"`
	Withheld   []withheldTool `json:"withheld"`
	Listed     bool           `json:"listed"` // what the server has is known, or cannot be known
	Progress   string         `json:"progress"`
}

// withheldTool is a tool that the host does not offer to agents.
type withheldTool struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
}

// Run asks a host in this process for the servers, once all are connected or the time is up.
func (l mcpListCmd) Run(cmd *commands, sys *System) error {
	var rows []jsontext.Value
	var servers []mcpServer
	wait := serverWait{seconds: l.Timeout, needs: func(string) bool { return true }}
	err := cmd.askServers(sys, mcpAgent, protocol.CapMCP, &wait, func(ctx context.Context,
		c *client.Client,
	) (err error) {
		rows, servers, err = listServers(ctx, c)
		return err
	})
	if err != nil {
		return err
	}
	if l.JSON {
		err = printJSON(sys.Out, rows)
	} else {
		err = printServers(sys, servers)
	}
	if err != nil {
		return err
	}
	return wait.lacking()
}

func listServers(ctx context.Context, c *client.Client) ([]jsontext.Value, []mcpServer, error) {
	var resp struct {
		Servers []jsontext.Value `json:"servers"`
	}
	if err := c.Call(ctx, protocol.TypeMCPServerListReq, &protocol.MCPServerListRequest{}, &resp); err != nil {
		return nil, nil, err
	}
	servers := make([]mcpServer, len(resp.Servers))
	for i, raw := range resp.Servers {
		if err := json.Unmarshal(raw, &servers[i]); err != nil {
			return nil, nil, fmt.Errorf("a server cannot be read: %w", err)
		}
	}
	return resp.Servers, servers, nil
}

func printServers(sys *System, servers []mcpServer) error {
	columns := []string{"SERVER", "STATE", "TRANSPORT", "TOOLS", "RESOURCES", "PROMPTS", "WITHHELD", "WHAT"}
	const none = "no MCP server in the config; a2e mcp add adds one"
	err := list(sys, false, servers, none, columns, func(s mcpServer) []string {
		what := strings.TrimSpace(s.ServerName + " " + s.Version)
		if s.Status != "ready" {
			what = cmp.Or(s.LastError, s.Progress, what)
		}
		return []string{
			s.ServerID, s.State, s.Transport, strconv.Itoa(s.Tools), strconv.Itoa(s.Resources),
			strconv.Itoa(s.Prompts), strconv.Itoa(len(s.Withheld)), what,
		}
	})
	if err != nil {
		return err
	}
	var tools table
	tools.header("SERVER", "WITHHELD TOOL", "REASON")
	for _, s := range servers {
		for _, w := range s.Withheld {
			tools.row(s.ServerID, w.Name, "it "+w.Reason)
		}
	}
	return tools.show(sys)
}

type mcpToolsCmd struct {
	Server  string  `complete:"server" arg:"" help:"The server's id."`
	Timeout float64 `placeholder:"SECONDS" help:"Seconds to wait for the server. Default: as long as its start may take."`
	JSON    bool    `name:"json" help:"Print the definitions as JSON."`
}

// Run lists the tools of the server that the host offers.
func (t mcpToolsCmd) Run(cmd *commands, sys *System) error {
	if err := cmd.knowServer(sys, t.Server); err != nil {
		return err
	}
	return toolsListCmd{
		Kind: "mcp", Tag: []string{t.Server}, Deferred: true, Timeout: t.Timeout, JSON: t.JSON,
		server: t.Server,
	}.Run(cmd, sys)
}

// knowServer returns an error if the config does not have the server.
func (c *commands) knowServer(sys *System, server string) error {
	cfg, err := c.load(sys, func(string) {}) // ask prints the warnings
	if err != nil {
		return err
	}
	if err := tryPlugins(cfg); err != nil {
		return fail(exitConfig, err)
	}
	return withServer(cfg, server, func(*mcp.Plugin) error { return nil })
}

type mcpApproveCmd struct {
	Server  string   `complete:"server" arg:"" help:"The server's id."`
	Tool    []string `sep:"none" placeholder:"NAME" help:"Only this tool; may be given several times. Default: all that have changed."`
	DryRun  bool     `help:"Only show what has changed."`
	Timeout float64  `aliases:"wait" default:"150" help:"Seconds to wait for the server."`
}

// Run connects to the server, shows the changed tools and approves exactly these changes.
func (a mcpApproveCmd) Run(cmd *commands, sys *System) error {
	cfg, err := cmd.loadAloud(sys)
	if err != nil {
		return err
	}
	ctx, stop := interruptible()
	defer stop()
	ctx, cancel := context.WithTimeoutCause(ctx, time.Duration(a.Timeout*float64(time.Second)),
		errors.New("the time is up"))
	defer cancel()
	return withServer(cfg, a.Server, func(p *mcp.Plugin) error {
		if err := p.Start(ctx, nil); err != nil {
			return err
		}
		done := sys.waitingFor("waiting for " + a.Server)
		withheld, err := p.Withheld(ctx, a.Server)
		done()
		if err != nil {
			return fail(exitFailed, err)
		}
		picked, err := a.pick(withheld)
		if err != nil {
			return fail(exitFailed, err)
		}
		if len(picked) == 0 {
			say(sys.Err, "nothing of %s needs approval", a.Server)
			return nil
		}
		for _, w := range picked {
			printChange(sys.Out, w)
		}
		if a.DryRun {
			return nil
		}
		if err := p.Approve(ctx, a.Server, picked); err != nil {
			return fail(exitFailed, err)
		}
		say(sys.Err, "approved: %d of %s", len(picked), a.Server)
		return nil
	})
}

// pick returns the tools to approve.
func (a mcpApproveCmd) pick(withheld []mcp.Withheld) ([]mcp.Withheld, error) {
	var picked []mcp.Withheld
	for _, w := range withheld {
		if w.Pinned && (len(a.Tool) == 0 || slices.Contains(a.Tool, w.Tool)) {
			picked = append(picked, w)
		}
	}
	for _, name := range a.Tool {
		if !slices.ContainsFunc(picked, func(w mcp.Withheld) bool { return w.Tool == name }) {
			return nil, fmt.Errorf("the tool %q of %s does not wait for an approval", oneLine(name), a.Server)
		}
	}
	return picked, nil
}

// withServer creates only the mcp plugins of the config, and passes the one that has the server to do.
func withServer(cfg *config.Config, server string, do func(*mcp.Plugin) error) error {
	only := *cfg
	only.Plugins = slices.DeleteFunc(slices.Clone(cfg.Plugins),
		func(p config.Plugin) bool { return p.Type != string(protocol.CapMCP) })
	made, err := plugins.New(&only, plugins.Deps{})
	if err != nil {
		return fail(exitConfig, err)
	}
	defer closePlugins(made)
	var known []string
	for _, plugin := range made {
		if p, ok := asMCP(plugin); ok {
			if known = append(known, p.ServerIDs()...); slices.Contains(known, server) {
				return do(p)
			}
		}
	}
	return unknownServer{fail(exitFailed, unknown("MCP server", server, known)), known}
}

// unknownServer is the error for a server that the config does not have.
type unknownServer struct {
	error
	known []string
}

func (u unknownServer) Unwrap() error { return u.error }

// asMCP returns the mcp plugin inside its wrappers, if it is one.
func asMCP(p host.Plugin) (*mcp.Plugin, bool) {
	for {
		if found, ok := p.(*mcp.Plugin); ok {
			return found, true
		}
		wrapped, ok := p.(interface{ Unwrap() host.Plugin })
		if !ok {
			return nil, false
		}
		p = wrapped.Unwrap()
	}
}

// printChange shows how a tool differs from its approved definition, part by part.
func printChange(w io.Writer, change mcp.Withheld) {
	before, after := parts(change.Old), parts(change.New)
	state := "changed"
	if change.Old == nil {
		state = "new"
	}
	fmt.Fprintf(w, "%s: %s\n", oneLine(change.Tool), state)
	names := slices.AppendSeq(slices.Collect(maps.Keys(before)), maps.Keys(after))
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if string(before[name]) == string(after[name]) {
			continue
		}
		for _, line := range []struct{ sign, text string }{{"-", string(before[name])}, {"+", string(after[name])}} {
			if line.text != "" && line.text != "null" && line.text != `""` {
				fmt.Fprintf(w, "  %s %s: %s\n", line.sign, oneLine(name), escapeUnseen([]byte(line.text)))
			}
		}
	}
}

// parts returns the members of a definition.
func parts(definition jsontext.Value) map[string]jsontext.Value {
	members := make(map[string]jsontext.Value)
	_ = json.Unmarshal(definition, &members) // the definition is valid JSON, or nil, which has no members
	return members
}

// checkServers reads the servers in a file of another MCP client, as the option mcpServers would
// accept them, and prints a line for each. It shows nothing that may be secret. The error names
// each invalid server and field.
func checkServers(file string, raw []byte, sys *System) error {
	servers, err := mcp.ParseServers(raw)
	if ext := filepath.Ext(file); err != nil && (ext == ".yaml" || ext == ".yml") { // other clients use only JSON
		err = fmt.Errorf("%w; a config of this host is checked by: a2e check --config %s", err, file)
	}
	if err != nil {
		return fail(exitConfig, fmt.Errorf("%s: %w", file, err))
	}
	fmt.Fprintf(sys.Out, "ok: %s; its mcpServers can be copied into the config as they are\n", file)
	return list(sys, false, slices.Sorted(maps.Keys(servers)), "", []string{"SERVER", "TRANSPORT", "WHAT"},
		func(id string) []string {
			transport, what := servers[id].Summary()
			return []string{id, transport, what}
		})
}

type mcpServeCmd struct{ recordFlag }

// Run serves until stdin ends or a signal arrives.
func (m mcpServeCmd) Run(cmd *commands, sys *System) error {
	return cmd.serveStdio(sys, m.recordFlag, "a2e mcp serve is for an MCP client, which starts it by itself; Ctrl-D "+
		"ends it, a2e mcp --help tells more.", speakMCP)
}

// How a person is informed about something that takes long.
const (
	quietFor   = time.Second      // before the first message
	tellEvery  = 10 * time.Second // between messages if stderr cannot redraw a line
	lookEvery  = 20 * time.Millisecond
	shownWords = 300 // maximal characters of a message of a server
)

// serverWait says which MCP servers a command needs, and holds the result of waiting for them.
type serverWait struct {
	needs   func(id string) bool
	seconds float64 // 0 = as long as the start of the servers may take

	waited  int         // number of servers that were not connected at first
	missing []mcpServer // servers that are not connected after waiting
}

// mentions returns a function that reports whether a text names a tool of a server.
func mentions(text string) func(id string) bool {
	return func(id string) bool { return strings.Contains(text, protocol.MCPName(id, "")) }
}

// askServers is ask, but waits until the servers that wait needs have started or the time is up.
func (c *commands) askServers(sys *System, agentID string, capability protocol.Capability, wait *serverWait,
	do func(context.Context, *client.Client) error,
) error {
	return c.askWith(sys, agentID, []protocol.Capability{capability, protocol.CapMCP},
		func(ctx context.Context, conn *client.Client) error {
			if err := wait.settle(ctx, conn, sys); err != nil {
				return err
			}
			return do(ctx, conn)
		})
}

// settle waits for the servers, and shows on stderr which ones are still starting.
func (w *serverWait) settle(ctx context.Context, c *client.Client, sys *System) error {
	start := time.Now()
	tell := start.Add(quietFor)
	var waitsFor atomic.Value
	waitsFor.Store("the host")
	defer sys.waiting(func() string { return "waiting for " + waitsFor.Load().(string) })()
	for first := true; ; first = false {
		_, servers, err := listServers(ctx, c)
		if known := new(protocol.Error); errors.As(err, &known) && first {
			return nil // a host without the mcp plugin has no servers
		}
		if err != nil {
			return err
		}
		servers = slices.DeleteFunc(servers, func(s mcpServer) bool {
			return s.State == "disabled" ||
				!w.needs(s.ServerID)
		})
		busy := slices.DeleteFunc(slices.Clone(servers), func(s mcpServer) bool { return !s.starts() })
		if first {
			w.waited = len(busy)
		}
		if len(busy) == 0 || w.seconds > 0 && time.Since(start).Seconds() >= w.seconds {
			w.missing = slices.DeleteFunc(servers, func(s mcpServer) bool { return s.Status == "ready" && s.Listed })
			return nil
		}
		waitsFor.Store("MCP servers: " + described(busy))
		if !sys.showsLive() && time.Now().After(tell) {
			say(sys.Err, "waiting for MCP servers: %s", described(busy))
			tell = time.Now().Add(tellEvery)
		}
		select {
		case <-time.After(lookEvery):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// starts reports whether a server is still starting.
func (s *mcpServer) starts() bool {
	return s.State == "connecting" || s.State == "installing" || s.Status == "ready" && !s.Listed
}

// described returns the ids of servers, each with its state and last message.
func described(servers []mcpServer) string {
	return strings.Join(each(servers, func(s mcpServer) string { return s.ServerID + " (" + s.why() + ")" }), ", ")
}

// why returns the state of a server and its last message.
func (s *mcpServer) why() string {
	if words := []rune(oneLine(cmp.Or(s.LastError, s.Progress))); len(words) > 0 {
		return s.State + ": " + string(words[:min(len(words), shownWords)])
	}
	return s.State
}

// lacking returns an error if some servers are missing, as a list is then incomplete, or nil if none is.
func (w *serverWait) lacking() error {
	switch len(w.missing) {
	case 0:
		return nil
	case 1:
		s := w.missing[0]
		return fail(exitFailed, fmt.Errorf("the MCP server %s is not connected, so its tools and resources are "+
			"missing: %s", s.ServerID, s.why()))
	}
	return fail(exitFailed, fmt.Errorf("%d MCP servers are not connected, so their tools and resources are missing: %s",
		len(w.missing), described(w.missing)))
}
