//go:build linux

package e2e_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/go-json-experiment/json"

	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// An attempt must not show the content of one file of the host, nor the name of another.
const (
	wallSecret = "SECRET-OF-THE-HOST-8853"
	wallListed = "listed-7431.txt"
)

// wallGround is a workspace with files of the host in it, and a folder outside, which must stay empty.
type wallGround struct {
	t       *testing.T
	home    string
	ws      string
	outside string
	state   string // where state_dir is
	config  string // path of the config
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

// newWallGround makes a ground whose config begins with head. config and state are relative to the workspace; state
// "" = it is not made.
func newWallGround(t *testing.T, head, config, state string) *wallGround {
	t.Helper()
	base := must.Get(filepath.EvalSymlinks(t.TempDir()))(t)
	g := &wallGround{
		t: t, home: filepath.Join(base, "home"), ws: filepath.Join(base, "ws"),
		outside: filepath.Join(base, "outside"),
	}
	g.config, g.state = filepath.Join(g.ws, config), filepath.Join(g.ws, state)
	for _, dir := range []string{g.home, g.ws, g.outside, filepath.Dir(g.config)} {
		must.OK(t, os.MkdirAll(dir, 0o755))
	}
	must.OK(t, os.WriteFile(g.config, []byte(head+wallPlugins), 0o644))
	if state != "" {
		must.OK(t, os.MkdirAll(g.state, 0o700), os.WriteFile(filepath.Join(g.state, "secret.txt"),
			[]byte(wallSecret+"\n"), 0o600),
			os.WriteFile(filepath.Join(g.state, wallListed), nil, 0o600))
	}
	must.OK(t, os.WriteFile(filepath.Join(g.ws, "mine.txt"), []byte("mine"), 0o644))
	g.note()
	return g
}

// note remembers the state_dir and the config, for check.
func (g *wallGround) note() {
	if g.state != g.ws {
		g.stateInfo, _ = os.Lstat(g.state)
	}
	info, err := os.Lstat(g.config)
	text, err2 := os.ReadFile(g.config)
	must.OK(g.t, err, err2)
	g.configInfo, g.configText = info, string(text)
}

// start starts the host, unless it runs.
func (g *wallGround) start() *live {
	if g.host != nil {
		return g.host
	}
	path := hosttest.Program(g.t, "a2e")
	cmd := command(g.t, g.ws, path, "--config", g.config)
	cmd.Env = append(cmd.Env, "HOME="+g.home)
	g.host = startCommand(g.t, cmd)
	g.host.send(`{"type":"handshake/req","id":"h","agent_id":"wall","agent_caps":["tools","proc","toolkits","skill","chains","mcp"]}`)
	g.host.answer("h")
	return g.host
}

// stop closes the host's stdin, and waits until the host has ended.
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

// ask sends a request and returns the lines up to its answer, or up to the end of the process that it starts.
func (g *wallGround) ask(kind, members string) string {
	g.t.Helper()
	h := g.start()
	g.asked++
	id := "w" + strconv.Itoa(g.asked)
	h.send(fmt.Sprintf(`{"type":%q,"id":%q,%s}`, kind, id, members))
	var all strings.Builder
	for ended := false; !ended; {
		m := h.next()
		text := must.Get(json.Marshal(m))(g.t)
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

// quoted returns a text as a JSON string.
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

// check fails if shown has anything of the host's files, if these have changed, or if a file is in the folder
// outside.
func (g *wallGround) check(shown string) {
	g.t.Helper()
	for _, word := range []string{wallSecret, wallListed} {
		assert.That(g.t, !strings.Contains(shown, word), "it shows %s: %s", word, shown)
	}
	if g.stateInfo != nil {
		info, err := os.Lstat(g.state)
		assert.That(g.t, err == nil && os.SameFile(info, g.stateInfo) && info.Mode() == g.stateInfo.Mode(),
			"the state_dir is another one now, or changed: %v; %s", err, shown)
		text, err := os.ReadFile(filepath.Join(g.state, "secret.txt"))
		assert.That(g.t, err == nil && string(text) == wallSecret+"\n", "a file of the host is now %q, %v", text, err)
		if _, err := os.Lstat(filepath.Join(g.state, "planted")); err == nil {
			g.t.Error("a file was put into the state_dir")
		}
	}
	info, err := os.Lstat(g.config)
	text, err2 := os.ReadFile(g.config)
	if err != nil || err2 != nil || !os.SameFile(info, g.configInfo) || string(text) != g.configText ||
		info.Mode() != g.configInfo.Mode() ||
		info.Sys().(*syscall.Stat_t).Nlink != g.configInfo.Sys().(*syscall.Stat_t).Nlink {
		g.t.Errorf("the config is another one now: %q %v %v; %s", text, err, err2, shown)
	}
	if entries, err := os.ReadDir(g.outside); err != nil || len(entries) > 0 {
		g.t.Errorf("outside there is now %v, %v", entries, err)
	}
}

// link makes a symbolic link in the workspace, as an agent can.
func (g *wallGround) link(to, name string) {
	g.t.Helper()
	must.OK(g.t, os.MkdirAll(filepath.Dir(filepath.Join(g.ws, name)), 0o755), os.Symlink(to, filepath.Join(g.ws, name)))
}

// attempt is one try to reach the host's files; act returns what the agent saw.
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

// say returns an attempt with one call of a tool.
func say(name, tool, args string) attempt {
	return attempt{name, func(g *wallGround) string { return g.tool(tool, args) }}
}

// sh returns an attempt with a shell script; $OUT is the folder outside, $WS the workspace.
func sh(name, script string) attempt {
	return attempt{name, func(g *wallGround) string {
		return g.shell("OUT=" + g.outside + "; WS=" + g.ws + "; " + script)
	}}
}

// py returns an attempt with a Python script; WS is the workspace.
func py(name, script string) attempt {
	return attempt{name, func(g *wallGround) string {
		return g.python("import os,sys,ctypes\nWS=" + quoted(g.ws) + "\n" + script)
	}}
}

// wallGitOut returns the output of git in a repository.
func wallGitOut(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", append([]string{"-c", "safe.directory=*"}, args...)...)
	cmd.Dir = dir
	out, _ := cmd.CombinedOutput() // errors are compared as any other output
	return string(out)
}

// wallRepo makes a repository with one commit and one change that is not staged.
func wallRepo(t *testing.T, dir, text string) {
	t.Helper()
	must.OK(t, os.MkdirAll(dir, 0o755))
	wallGit(t, dir, "init", "-q")
	must.OK(t, os.WriteFile(filepath.Join(dir, "f.txt"), []byte(text+" before\n"), 0o644))
	wallGit(t, dir, "add", ".")
	wallGit(t, dir, "commit", "-q", "-m", text+" commit")
	must.OK(t, os.WriteFile(filepath.Join(dir, "f.txt"), []byte(text+" after\n"), 0o644))
}

// TestWallGitFolderSwapped: the toolkit git works in the folder that was configured. Another folder that takes its
// name later is neither shown nor changed, with the sandbox and without.
func TestWallGitFolderSwapped(t *testing.T) {
	t.Parallel()
	swaps := map[string]func(g *wallGround){
		"a link in place of the folder above": func(g *wallGround) {
			must.OK(g.t, os.Rename(filepath.Join(g.ws, "a"), filepath.Join(g.ws, "old")))
			g.link(filepath.Join(g.home, "b"), "a")
		},
		"a link in place of the folder": func(g *wallGround) {
			must.OK(g.t, os.Rename(filepath.Join(g.ws, "a", "project"), filepath.Join(g.ws, "old")))
			g.link(filepath.Join(g.home, "b", "project"), "a/project")
		},
		"a link that leads there step by step": func(g *wallGround) {
			must.OK(g.t, os.Rename(filepath.Join(g.ws, "a"), filepath.Join(g.ws, "old")))
			g.link("../home", "up")
			g.link("up/b", "a")
		},
		"another folder in its place": func(g *wallGround) {
			must.OK(g.t, os.Rename(filepath.Join(g.ws, "a"), filepath.Join(g.ws, "old")),
				os.Rename(filepath.Join(g.home, "b"), filepath.Join(g.ws, "a")),
				os.Symlink(filepath.Join(g.ws, "a"), filepath.Join(g.home, "b")))
		},
	}
	tries := []attempt{
		say("status", "git_status", `{}`),
		say("log", "git_log", `{}`),
		say("show", "git_show", `{"rev":"HEAD"}`),
		say("diff", "git_diff", `{}`),
		say("add", "git_add", `{"paths":["f.txt"]}`),
		say("commit", "git_commit", `{"message":"taken","all":true}`),
	}
	for _, mode := range []string{"best_effort", "off"} {
		for name, swap := range swaps {
			t.Run(mode+" "+name, func(t *testing.T) {
				g := newWallGround(t, "sandbox: '"+mode+"'\n", "../conf/a2e.yaml", "")
				wallRepo(t, filepath.Join(g.ws, "a", "project"), "own")
				other := filepath.Join(g.home, "b", "project")
				wallRepo(t, other, wallSecret)
				out := g.kit("git", `{"repo":"a/project"}`)
				must.That(t, strings.Contains(out, `"status":"ok"`), "it is not configured: %s", out)
				out = g.tool("git_log", `{}`)
				must.That(t, strings.Contains(out, "own commit"), "it does not work before: %s", out)
				swap(g)
				before := wallGitOut(t, other, "log", "--oneline") + wallGitOut(t, other, "status", "--porcelain")
				for _, a := range tries {
					t.Run(a.name, func(t *testing.T) {
						out := a.act(g)
						assert.That(t, !strings.Contains(out, wallSecret), "it shows the other repository: %s", out)
						now := wallGitOut(t, other, "log", "--oneline") + wallGitOut(t, other, "status", "--porcelain")
						assert.Equal(t, now, before, "the other repository is changed")
					})
				}
			})
		}
	}
}

// TestWallGitLeadsOut: if .git of a folder in the workspace leads to a repository outside, that repository is neither
// shown nor changed.
func TestWallGitLeadsOut(t *testing.T) {
	t.Parallel()
	for name, lead := range map[string]func(g *wallGround, other string) error{
		"a link": func(g *wallGround, other string) error {
			return os.Symlink(other+"/.git", filepath.Join(g.ws, "p", ".git"))
		},
		"a file": func(g *wallGround, other string) error {
			return os.WriteFile(filepath.Join(g.ws, "p", ".git"), []byte("gitdir: "+other+"/.git\n"), 0o644)
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := newWallGround(t, "", "../conf/a2e.yaml", "")
			other := filepath.Join(g.home, "other")
			wallRepo(t, other, wallSecret)
			must.OK(t, os.MkdirAll(filepath.Join(g.ws, "p"), 0o755))
			must.OK(t, lead(g, other))
			before := wallGitOut(t, other, "log", "--oneline") + wallGitOut(t, other, "status", "--porcelain")
			out := g.kit("git", `{"repo":"p"}`) + g.tool("git_log", `{}`) + g.tool("git_show", `{"rev":"HEAD"}`) +
				g.tool("git_add", `{"paths":["."]}`) + g.tool("git_commit", `{"message":"taken","all":true}`)
			now := wallGitOut(t, other, "log", "--oneline") + wallGitOut(t, other, "status", "--porcelain")
			assert.That(t, now == before && !strings.Contains(out, wallSecret), "the other repository is shown or "+
				"changed: %s, was %s; %s", now, before, out)
		})
	}
}

// TestWallGitThroughALink: a repository that is configured by a link in the workspace works as long as the link
// stays.
func TestWallGitThroughALink(t *testing.T) {
	t.Parallel()
	g := newWallGround(t, "", "../conf/a2e.yaml", "")
	wallRepo(t, filepath.Join(g.ws, "a", "project"), "own")
	g.link("a/project", "lnk")
	out := g.kit("git", `{"repo":"lnk"}`) + g.tool("git_add", `{"paths":["."]}`) +
		g.tool("git_commit", `{"message":"done"}`)
	assert.That(t, strings.Contains(out, `"subject":"done"`), "it does not work: %s", out)
}

// TestWallGrantsAreNotLedOut: where the config grants a server a path in the workspace, to read or as its cwd, a link
// that an agent puts there does not lead the server out.
func TestWallGrantsAreNotLedOut(t *testing.T) {
	t.Parallel()
	for name, grant := range map[string]string{
		"read of a server": "{name: mcp, type: mcp, metadata: {mcpServers: {tiny: {command: python3, args: " +
			"[server.py], read: [docs]}}}}",
		"absolute cwd": "{name: mcp, type: mcp, metadata: {mcpServers: {tiny: {command: python3, args: " +
			"[WS/server.py], cwd: WS/docs}}}}",
		"read below a link": "{name: mcp, type: mcp, metadata: {mcpServers: {tiny: {command: python3, args: " +
			"[server.py], read: [docs/more]}}}}",
		"absolute read by name": "{name: mcp, type: mcp, metadata: {mcpServers: {tiny: {command: python3, args: " +
			"[server.py], read: [WS/docs]}}}}",
	} {
		t.Run(name, func(t *testing.T) {
			g := newWallGround(t, "", "../conf/a2e.yaml", "")
			must.OK(t, os.WriteFile(g.config, []byte(g.configText+"- "+strings.ReplaceAll(grant, "WS", g.ws)+"\n"),
				0o644))
			g.note()
			private := filepath.Join(g.home, "private")
			must.OK(t, os.MkdirAll(filepath.Join(private, "more"), 0o755),
				os.WriteFile(filepath.Join(private, "secret.txt"), []byte(wallSecret), 0o644),
				os.WriteFile(filepath.Join(private, "more", "secret.txt"), []byte(wallSecret), 0o644))
			g.link(private, "docs")
			server := "import os\nos.chdir(" + quoted(g.ws) + ")\ndef look(p):\n    try: return open(p).read()\n    " +
				"except OSError as e: return str(e)\n" +
				"open('description.txt','w').write('d ' + look(" + quoted(private+"/secret.txt") + ") + look(" +
				quoted(private+"/more/secret.txt") + "))\n" + tinyMCP
			writeFile(t, g.ws, "server.py", server)
			writeFile(t, g.ws, "description.txt", "d")
			out := g.ask("tool/list/req", `"query":""`) + g.tool("tiny__add", `{"a":2,"b":40}`)
			g.stop()
			text := must.Get(os.ReadFile(filepath.Join(g.ws, "description.txt")))(t)
			g.check(out + string(text))
		})
	}
}
