//go:build linux

package cli_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/go-json-experiment/json"
)

// What an attempt must not show: the content of a file of the host, and the name of one.
const (
	wallSecret = "SECRET-OF-THE-HOST-8853"
	wallListed = "listed-7431.txt"
)

// wallGround is a workspace with files of the host in it, and a folder outside.
type wallGround struct {
	t       *testing.T
	home    string
	ws      string
	outside string
	state   string // where state_dir is
	config  string // the config in force
	host    *live
	asked   int

	stateInfo, configInfo os.FileInfo
	configText            string
}

const wallPlugins = `
plugins:
- {name: tools, type: tools}
- {name: proc, type: proc}
- {name: toolkits, type: toolkits}
- {name: skill, type: skill}
- {name: chains, type: chains}
`

// newWallGround makes one whose config begins with head. state is relative to the
// workspace, "" = it is not made.
func newWallGround(t *testing.T, head, config, state string) *wallGround {
	t.Helper()
	base := got(filepath.EvalSymlinks(t.TempDir()))(t)
	g := &wallGround{t: t, home: filepath.Join(base, "home"), ws: filepath.Join(base, "ws"), outside: filepath.Join(base, "outside")}
	g.config, g.state = filepath.Join(g.ws, config), filepath.Join(g.ws, state)
	for _, dir := range []string{g.home, g.ws, g.outside, filepath.Dir(g.config)} {
		must(t, os.MkdirAll(dir, 0o755))
	}
	must(t, os.WriteFile(g.config, []byte(head+wallPlugins), 0o644))
	if state != "" {
		must(t, os.MkdirAll(g.state, 0o700), os.WriteFile(filepath.Join(g.state, "secret.txt"), []byte(wallSecret+"\n"), 0o600),
			os.WriteFile(filepath.Join(g.state, wallListed), nil, 0o600))
	}
	must(t, os.WriteFile(filepath.Join(g.ws, "mine.txt"), []byte("mine"), 0o644))
	g.note()
	return g
}

// note remembers how things are.
func (g *wallGround) note() {
	if g.state != g.ws {
		g.stateInfo, _ = os.Lstat(g.state)
	}
	info, err := os.Lstat(g.config)
	text, err2 := os.ReadFile(g.config)
	must(g.t, err, err2)
	g.configInfo, g.configText = info, string(text)
}

// start starts the host, unless it runs.
func (g *wallGround) start() *live {
	if g.host != nil {
		return g.host
	}
	path, err := binary()
	must(g.t, err)
	cmd := command(g.t, g.ws, path, "--config", g.config)
	cmd.Env = append(cmd.Env, "HOME="+g.home)
	g.host = startCommand(g.t, cmd)
	g.host.send(`{"type":"handshake/req","id":"h","agent_id":"wall","agent_caps":["tools","proc","toolkits","skill","chains","mcp"]}`)
	g.host.answer("h")
	return g.host
}

// stop ends the host in peace.
func (g *wallGround) stop() {
	if g.host == nil {
		return
	}
	g.host.stdin.Close()
	for {
		if _, err := g.host.stdout.ReadBytes('\n'); err != nil {
			break
		}
	}
	g.host.exit()
	g.host = nil
}

// ask sends a request and gives the lines up to its answer, and for a process up to its
// end.
func (g *wallGround) ask(kind, members string) string {
	g.t.Helper()
	h := g.start()
	g.asked++
	id := "w" + strconv.Itoa(g.asked)
	h.send(fmt.Sprintf(`{"type":%q,"id":%q,%s}`, kind, id, members))
	var all strings.Builder
	for ended := false; !ended; {
		m := h.next()
		text, err := json.Marshal(m)
		must(g.t, err)
		all.Write(append(text, '\n'))
		ended = m["req_id"] == id && m["type"] != "invoke/event" && m["type"] != "chain/event"
		if kind == "proc/spawn/req" {
			failed := m["type"] == "proc/spawn/resp" && m["ok"] != true
			ended = failed || m["type"] == "proc/read/event" && strings.Contains(string(text), `"code":`)
		}
	}
	return all.String()
}

func (g *wallGround) tool(name, args string) string {
	g.t.Helper()
	return g.ask("tool/call/req", fmt.Sprintf(`"tool_name":%q,"arguments":%s`, name, args))
}

// quoted returns a JSON text.
func quoted(text string) string {
	raw, _ := json.Marshal(text) // a string always encodes
	return string(raw)
}

func (g *wallGround) shell(script string) string {
	g.t.Helper()
	return g.tool("run_command", `{"command":["sh","-c",`+quoted(script)+`]}`)
}

func (g *wallGround) python(script string) string {
	g.t.Helper()
	return g.tool("run_command", `{"command":["python3","-c",`+quoted(script)+`]}`)
}

func (g *wallGround) kit(name, config string) string {
	g.t.Helper()
	return g.ask("toolkit/configure/req", fmt.Sprintf(`"toolkit_name":%q,"config":%s`, name, config))
}

// check reports whether the host's files are as they were, and nothing of them was shown.
func (g *wallGround) check(shown string) {
	g.t.Helper()
	for _, word := range []string{wallSecret, wallListed} {
		if strings.Contains(shown, word) {
			g.t.Errorf("it shows %s: %s", word, shown)
		}
	}
	if g.stateInfo != nil {
		info, err := os.Lstat(g.state)
		if err != nil || !os.SameFile(info, g.stateInfo) || info.Mode() != g.stateInfo.Mode() {
			g.t.Errorf("the state_dir is another one now, or changed: %v; %s", err, shown)
		}
		text, err := os.ReadFile(filepath.Join(g.state, "secret.txt"))
		if err != nil || string(text) != wallSecret+"\n" {
			g.t.Errorf("a file of the host is now %q, %v", text, err)
		}
		if _, err := os.Lstat(filepath.Join(g.state, "planted")); err == nil {
			g.t.Error("a file was put into the state_dir")
		}
	}
	info, err := os.Lstat(g.config)
	text, err2 := os.ReadFile(g.config)
	if err != nil || err2 != nil || !os.SameFile(info, g.configInfo) || string(text) != g.configText || info.Mode() != g.configInfo.Mode() ||
		info.Sys().(*syscall.Stat_t).Nlink != g.configInfo.Sys().(*syscall.Stat_t).Nlink {
		g.t.Errorf("the config is another one now: %q %v %v; %s", text, err, err2, shown)
	}
	if entries, err := os.ReadDir(g.outside); err != nil || len(entries) > 0 {
		g.t.Errorf("outside there is now %v, %v", entries, err)
	}
}

// link makes a link in the workspace, as the agent may.
func (g *wallGround) link(to, name string) {
	g.t.Helper()
	must(g.t, os.MkdirAll(filepath.Dir(filepath.Join(g.ws, name)), 0o755), os.Symlink(to, filepath.Join(g.ws, name)))
}

// attempt is one way in: it gives what it saw.
type attempt struct {
	name string
	act  func(g *wallGround) string
}

func runAttempts(t *testing.T, all []attempt, ground func(t *testing.T) *wallGround) {
	for _, a := range all {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			g := ground(t)
			shown := a.act(g)
			g.stop()
			g.check(shown)
		})
	}
}

// say makes an attempt of one call of a tool.
func say(name, tool, args string) attempt {
	return attempt{name, func(g *wallGround) string { return g.tool(tool, args) }}
}

// sh makes an attempt of a shell's script; $OUT is the folder outside.
func sh(name, script string) attempt {
	return attempt{name, func(g *wallGround) string {
		return g.shell("OUT=" + g.outside + "; WS=" + g.ws + "; " + script)
	}}
}

// py makes an attempt of a Python script.
func py(name, script string) attempt {
	return attempt{name, func(g *wallGround) string {
		return g.python("import os,sys,ctypes\nWS=" + quoted(g.ws) + "\n" + script)
	}}
}
