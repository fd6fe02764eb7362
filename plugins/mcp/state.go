package mcp

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/url"
	"path/filepath"
	"slices"
	"time"

	"github.com/go-json-experiment/json"

	"a2e/host/sandbox"
	"a2e/plugins/mcp/link"
)

// maxInstructions bounds what is told of a server's own words, in bytes.
const maxInstructions = 16 << 10

// row is the server as mcp/server/list tells of it. `status` is in the words of A2E
// (connecting, ready, error, disconnected), `state` more exact.
func (s *server) row() map[string]any {
	var st link.State
	if s.link != nil {
		st = s.link.State()
	}
	state, status := states(s.link != nil, st)
	if st.Installing {
		state = "installing"
	}
	row := map[string]any{
		"server_id": s.opts.ID, "name": cmp.Or(s.opts.Name, s.opts.ID), "origin": string(s.origin), "status": status, "state": state,
		"transport":  string(cmp.Or(st.Transport, s.opts.transport())),
		"latency_ms": millis(st.Latency), "last_ping_ms": millis(st.Latency), "error": st.LastError, "last_error": st.LastError,
		"since": seconds(st.Since), "connected_at": 0.0, "restarts": st.Restarts, "junk": st.Junk,
		"mcp_version": st.ProtocolVersion, "protocol_version": st.ProtocolVersion, "instructions": clip(st.Instructions, maxInstructions),
		"server_name": "", "server_version": "", "server_info": map[string]any{}, "pinned": s.p.opts.Pin, "pushes_dropped": s.push.droppedEver(),
		"listed": s.link == nil || s.listed.isSet(),
	}
	if st.Status == link.Connected {
		row["connected_at"], row["error"] = seconds(st.Since), ""
	}
	if !st.RetryAt.IsZero() {
		row["retry_at"] = seconds(st.RetryAt)
	}
	if st.Progress != "" {
		row["progress"] = clip(st.Progress, maxSummary)
	}
	if info := st.Server; info != nil {
		name, title, version := clip(info.Name, maxSummary), clip(info.Title, maxSummary), clip(info.Version, maxSummary)
		row["server_name"], row["server_version"] = name, version
		row["server_info"] = map[string]any{"name": name, "title": title, "version": version}
	}
	s.contentsRow(row)
	return row
}

// contentsRow adds what the server has.
func (s *server) contentsRow(row map[string]any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := []string{}
	withheld := []map[string]any{}
	for _, b := range s.tools {
		if b.tool.Denied == "" && !slices.ContainsFunc(s.withheld, func(w Withheld) bool { return w.Tool == b.name && w.collides }) {
			names = append(names, b.tool.Def.Name)
		}
	}
	for _, w := range s.withheld {
		withheld = append(withheld, map[string]any{"name": w.Tool, "reason": w.Reason})
	}
	row["tools"], row["withheld"] = names, withheld
	row["tools_count"], row["resources_count"], row["templates_count"], row["prompts_count"] = len(names), len(s.resources), len(s.templates), len(s.prompts)
}

// states returns the exact state of a connection, and the word that A2E has for it.
func states(enabled bool, st link.State) (state, status string) {
	if !enabled {
		return "disabled", "disconnected"
	}
	switch st.Status {
	case link.Connected:
		status = "ready"
	case link.Connecting, link.Reconnecting:
		status = "connecting"
	case link.Failed:
		status = "error"
	default:
		status = "disconnected"
	}
	return string(st.Status), status
}

// transport is what the options say, or what their command or URL stands for.
func (o *ServerOptions) transport() link.Transport {
	switch {
	case o.Transport != "":
		return o.Transport
	case o.URL != "":
		return link.HTTP
	}
	return link.Stdio
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// seconds returns a time as messages carry it; 0 = never.
func seconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMicro()) / 1e6
}

// Summary returns the transport of a server, and what it is reached by, without anything
// that may be secret.
func (o ServerOptions) Summary() (transport, what string) {
	what = o.Command
	if u, err := url.Parse(o.URL); o.URL != "" && err == nil {
		what = u.Scheme + "://" + u.Host
	}
	if n := len(o.Args); n > 0 {
		what += fmt.Sprintf(" and %d arguments", n)
	}
	if n := len(o.Env) + len(o.Headers); n > 0 {
		what += fmt.Sprintf(", %d variables or headers", n)
	}
	if o.Disabled {
		what += ", disabled"
	}
	return string(o.transport()), what
}

// homeName names the home of a server. No two share one that differ in who named them, in
// what they run or in what they may do.
func homeName(workspace string, by origin, cfg link.Config) string {
	key, _ := json.Marshal([]any{ // texts, which encode always
		workspace, by, cfg.ID, cfg.Command, cfg.Args, slices.Sorted(maps.Keys(cfg.Env)), cfg.Dir, cfg.Network, cfg.Read,
	})
	sum := sha256.Sum256(key)
	return cfg.ID + "-" + hex.EncodeToString(sum[:8])
}

// homes is the folder of the homes of servers; "" = none stays.
func (p *Plugin) homes() string {
	if p.env.StateDir == "" {
		return ""
	}
	return filepath.Join(p.env.StateDir, "homes")
}

// Installation is a server of the config that the program which starts it installs first.
type Installation struct {
	ID      string
	Command string // the program's name
	State   string // installed, installing (by a host that runs) or missing
	Home    string // where to; "" = a folder that goes with the server
}

// Installations tells of these servers, also before Start.
func (p *Plugin) Installations() []Installation {
	all := []Installation{}
	for _, o := range p.configured {
		cfg := p.config(&o, byConfig)
		if o.Disabled || !cfg.Installs() {
			continue
		}
		one := Installation{ID: o.ID, Command: filepath.Base(cfg.Command), State: "missing"}
		if dir := p.homes(); dir != "" {
			one.Home = filepath.Join(dir, cfg.Home)
			switch ready, used := sandbox.HomeState(dir, cfg.Home); {
			case ready:
				one.State = "installed"
			case used:
				one.State = "installing"
			}
		}
		all = append(all, one)
	}
	return all
}
