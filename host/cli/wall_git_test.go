//go:build linux

package cli_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// wallGitOut returns what git says of a repository.
func wallGitOut(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", append([]string{"-c", "safe.directory=*"}, args...)...)
	cmd.Dir = dir
	out, _ := cmd.CombinedOutput() // what it cannot say is no change
	return string(out)
}

// wallRepo makes a repository with one commit and one change that is not staged.
func wallRepo(t *testing.T, dir, text string) {
	t.Helper()
	must(t, os.MkdirAll(dir, 0o755))
	wallGit(t, dir, "init", "-q")
	must(t, os.WriteFile(filepath.Join(dir, "f.txt"), []byte(text+" before\n"), 0o644))
	wallGit(t, dir, "add", ".")
	wallGit(t, dir, "commit", "-q", "-m", text+" commit")
	must(t, os.WriteFile(filepath.Join(dir, "f.txt"), []byte(text+" after\n"), 0o644))
}

// The folder of the toolkit git is the one that was configured: what comes to have its name
// is neither shown nor changed, in each mode of the sandbox.
func TestWallGitFolderSwapped(t *testing.T) {
	t.Parallel()
	swaps := map[string]func(g *wallGround){
		"a link in place of the folder above": func(g *wallGround) {
			must(g.t, os.Rename(filepath.Join(g.ws, "a"), filepath.Join(g.ws, "old")))
			g.link(filepath.Join(g.home, "b"), "a")
		},
		"a link in place of the folder": func(g *wallGround) {
			must(g.t, os.Rename(filepath.Join(g.ws, "a", "project"), filepath.Join(g.ws, "old")))
			g.link(filepath.Join(g.home, "b", "project"), "a/project")
		},
		"a link that leads there step by step": func(g *wallGround) {
			must(g.t, os.Rename(filepath.Join(g.ws, "a"), filepath.Join(g.ws, "old")))
			g.link("../home", "up")
			g.link("up/b", "a")
		},
		"another folder in its place": func(g *wallGround) {
			must(g.t, os.Rename(filepath.Join(g.ws, "a"), filepath.Join(g.ws, "old")), os.Rename(filepath.Join(g.home, "b"), filepath.Join(g.ws, "a")),
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
				if out := g.kit("git", `{"repo":"a/project"}`); !strings.Contains(out, `"status":"ok"`) {
					t.Fatalf("it is not configured: %s", out)
				}
				if out := g.tool("git_log", `{}`); !strings.Contains(out, "own commit") {
					t.Fatalf("it does not work before: %s", out)
				}
				swap(g)
				before := wallGitOut(t, other, "log", "--oneline") + wallGitOut(t, other, "status", "--porcelain")
				for _, a := range tries {
					t.Run(a.name, func(t *testing.T) {
						if out := a.act(g); strings.Contains(out, wallSecret) {
							t.Errorf("it shows the other repository: %s", out)
						}
						if now := wallGitOut(t, other, "log", "--oneline") + wallGitOut(t, other, "status", "--porcelain"); now != before {
							t.Errorf("the other repository is changed: %s, was %s", now, before)
						}
					})
				}
			})
		}
	}
}

// A repository whose .git leads out is none of the other repository.
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
			must(t, os.MkdirAll(filepath.Join(g.ws, "p"), 0o755))
			must(t, lead(g, other))
			before := wallGitOut(t, other, "log", "--oneline") + wallGitOut(t, other, "status", "--porcelain")
			out := g.kit("git", `{"repo":"p"}`) + g.tool("git_log", `{}`) + g.tool("git_show", `{"rev":"HEAD"}`) + g.tool("git_add", `{"paths":["."]}`) + g.tool("git_commit", `{"message":"taken","all":true}`)
			if now := wallGitOut(t, other, "log", "--oneline") + wallGitOut(t, other, "status", "--porcelain"); now != before || strings.Contains(out, wallSecret) {
				t.Errorf("the other repository is shown or changed: %s, was %s; %s", now, before, out)
			}
		})
	}
}

// A repository that a link of the workspace names goes on working where nobody swaps it.
func TestWallGitThroughALink(t *testing.T) {
	t.Parallel()
	g := newWallGround(t, "", "../conf/a2e.yaml", "")
	wallRepo(t, filepath.Join(g.ws, "a", "project"), "own")
	g.link("a/project", "lnk")
	if out := g.kit("git", `{"repo":"lnk"}`) + g.tool("git_add", `{"paths":["."]}`) + g.tool("git_commit", `{"message":"done"}`); !strings.Contains(out, `"subject":"done"`) {
		t.Errorf("it does not work: %s", out)
	}
}

// What the config grants by a name in the workspace is what lies there, and not what agents
// make a link to: the working directory of a server, and what it may read.
func TestWallGrantsAreNotLedOut(t *testing.T) {
	t.Parallel()
	for name, grant := range map[string]string{
		"read of a server":      "{name: mcp, type: mcp, metadata: {mcpServers: {tiny: {command: python3, args: [server.py], read: [docs]}}}}",
		"absolute cwd":          "{name: mcp, type: mcp, metadata: {mcpServers: {tiny: {command: python3, args: [WS/server.py], cwd: WS/docs}}}}",
		"read below a link":     "{name: mcp, type: mcp, metadata: {mcpServers: {tiny: {command: python3, args: [server.py], read: [docs/more]}}}}",
		"absolute read by name": "{name: mcp, type: mcp, metadata: {mcpServers: {tiny: {command: python3, args: [server.py], read: [WS/docs]}}}}",
	} {
		t.Run(name, func(t *testing.T) {
			g := newWallGround(t, "", "../conf/a2e.yaml", "")
			must(t, os.WriteFile(g.config, []byte(g.configText+"- "+strings.ReplaceAll(grant, "WS", g.ws)+"\n"), 0o644))
			g.note()
			private := filepath.Join(g.home, "private")
			must(t, os.MkdirAll(filepath.Join(private, "more"), 0o755), os.WriteFile(filepath.Join(private, "secret.txt"), []byte(wallSecret), 0o644),
				os.WriteFile(filepath.Join(private, "more", "secret.txt"), []byte(wallSecret), 0o644))
			g.link(private, "docs")
			server := "import os\nos.chdir(" + quoted(g.ws) + ")\ndef look(p):\n    try: return open(p).read()\n    except OSError as e: return str(e)\n" +
				"open('description.txt','w').write('d ' + look(" + quoted(private+"/secret.txt") + ") + look(" + quoted(private+"/more/secret.txt") + "))\n" + tinyMCP
			writeFile(t, g.ws, "server.py", server)
			writeFile(t, g.ws, "description.txt", "d")
			out := g.ask("tool/list/req", `"query":""`) + g.tool("tiny__add", `{"a":2,"b":40}`)
			g.stop()
			text, err := os.ReadFile(filepath.Join(g.ws, "description.txt"))
			must(t, err)
			g.check(out + string(text))
		})
	}
}
