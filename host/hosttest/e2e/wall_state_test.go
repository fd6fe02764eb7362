//go:build linux

package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

const wallState = "state_dir: .a2e-state\naudit: {}\n"

// TestWallStateTools: no tool reads, lists, changes or replaces the host's files in a state_dir in the workspace.
func TestWallStateTools(t *testing.T) {
	t.Parallel()
	linked := func(name, to, link string, act func(g *wallGround) string) attempt {
		return attempt{name, func(g *wallGround) string { g.link(to, link); return act(g) }}
	}
	all := []attempt{
		say("read", "read_file", `{"path":".a2e-state/secret.txt"}`),
		say("read spelled otherwise", "read_file", `{"path":"./x/..//.a2e-state/./secret.txt"}`),
		say("list", "list_dir", `{"path":".a2e-state"}`),
		say("glob all", "glob", `{"pattern":"**/*"}`),
		say("glob it", "glob", `{"pattern":".a2e-state/*"}`),
		say("glob braces", "glob", `{"pattern":"{.a2e-state,x}/**"}`),
		say("grep all", "grep", `{"pattern":"SECRET.*"}`),
		say("grep it", "grep", `{"pattern":"SECRET.*","path":".a2e-state"}`),
		say("grep the file", "grep", `{"pattern":"SECRET.*","path":".a2e-state/secret.txt"}`),
		say("write", "write_file", `{"path":".a2e-state/planted","content":"x"}`),
		say("overwrite", "write_file", `{"path":".a2e-state/secret.txt","content":"x"}`),
		say("edit", "edit_file", `{"path":".a2e-state/secret.txt","old":"SECRET","new":"x"}`),
		linked("read through a link to the folder", ".a2e-state", "lnk",
			func(g *wallGround) string { return g.tool("read_file", `{"path":"lnk/secret.txt"}`) }),
		linked("read through a link up and down", "../../.a2e-state", "a/b/lnk",
			func(g *wallGround) string { return g.tool("read_file", `{"path":"a/b/lnk/secret.txt"}`) }),
		linked("read through a link to the file", ".a2e-state/secret.txt", "lnk",
			func(g *wallGround) string { return g.tool("read_file", `{"path":"lnk"}`) }),
		linked("list through a link", ".a2e-state", "lnk",
			func(g *wallGround) string { return g.tool("list_dir", `{"path":"lnk"}`) }),
		linked("grep through a link", ".a2e-state", "lnk",
			func(g *wallGround) string { return g.tool("grep", `{"pattern":"SECRET.*","path":"lnk"}`) }),
		linked("glob through a link", ".a2e-state", "lnk",
			func(g *wallGround) string { return g.tool("glob", `{"pattern":"lnk/*"}`) }),
		linked("glob through a link to the workspace", ".", "lnk",
			func(g *wallGround) string { return g.tool("glob", `{"pattern":"lnk/**"}`) }),
		{"read through a hard link", func(g *wallGround) string {
			must.OK(g.t, os.Link(filepath.Join(g.state, "secret.txt"), filepath.Join(g.ws, "hard.txt")))
			return g.tool("read_file", `{"path":"hard.txt"}`) + g.tool("grep",
				`{"pattern":"SECRET.*","path":"hard.txt"}`)
		}},
		{"toolkit rooted in it", func(g *wallGround) string {
			return g.kit("filesystem", `{"root_dir":".a2e-state"}`) + g.tool("filesystem_read_file",
				`{"path":"secret.txt"}`) + g.tool("filesystem_list_dir", `{}`)
		}},
		{"toolkit rooted in it by its absolute path", func(g *wallGround) string {
			return g.kit("filesystem", `{"root_dir":`+quoted(g.state)+`}`) + g.tool("filesystem_grep",
				`{"pattern":"SECRET.*"}`)
		}},
		linked("toolkit rooted through a link", ".a2e-state", "lnk", func(g *wallGround) string {
			return g.kit("filesystem", `{"root_dir":"lnk"}`) + g.tool("filesystem_read_file", `{"path":"secret.txt"}`)
		}),
		{"toolkit rooted in the workspace", func(g *wallGround) string {
			return g.kit("filesystem", `{"root_dir":"."}`) + g.tool("filesystem_read_file",
				`{"path":".a2e-state/secret.txt"}`) +
				g.tool("filesystem_glob", `{"pattern":"**"}`) + g.tool("filesystem_write_file",
				`{"path":".a2e-state/planted","content":"x"}`)
		}},
		{"git adds all of the workspace", func(g *wallGround) string {
			wallGit(g.t, g.ws, "init", "-q")
			g.kit("git", `{"repo":"."}`)
			return g.tool("git_add", `{"paths":["."]}`) + g.tool("git_status", `{}`) +
				g.tool("git_diff", `{"staged":true}`)
		}},
		{"git adds the folder by name", func(g *wallGround) string {
			wallGit(g.t, g.ws, "init", "-q")
			g.kit("git", `{"repo":"."}`)
			return g.tool("git_add", `{"paths":[".a2e-state"]}`) + g.tool("git_status", `{}`)
		}},
		{"git works in it", func(g *wallGround) string {
			wallGit(g.t, g.state, "init", "-q")
			return g.kit("git", `{"repo":".a2e-state"}`) + g.tool("git_add", `{"paths":["."]}`) +
				g.tool("git_status", `{}`)
		}},
		linked("a saved chain that is a link", "../.a2e-state/secret.txt", "chains/peek.yaml",
			func(g *wallGround) string {
				return g.ask("chain/req", `"chain_id":"c","nodes":[{"id":"n","type":"chain","chain":"peek"}],"entry_node":"n","initial_input":{}`)
			}),
		linked("skills of it", "../.a2e-state/skills", ".a2e/skills", func(g *wallGround) string {
			must.OK(g.t, os.MkdirAll(filepath.Join(g.state, "skills", "peek"), 0o700),
				os.WriteFile(filepath.Join(g.state, "skills", "peek", "SKILL.md"),
					[]byte("---\nname: peek\ndescription: "+wallSecret+"\n---\n"), 0o600))
			return g.ask("skill/discover/req", `"query":""`) + g.tool("read_file", `{"path":"skill://peek/SKILL.md"}`)
		}),
		{"resources of MCP", func(g *wallGround) string { return g.mcpResources() }},
	}
	runAttempts(t, all, func(t *testing.T) *wallGround { return newWallGround(t, wallState, "a2e.yaml", ".a2e-state") })
}

// mcpResources asks the host over MCP for its own files.
func (g *wallGround) mcpResources() string {
	path := hosttest.Program(g.t, "a2e")
	cmd := command(g.t, g.ws, path, "mcp", "serve", "--config", g.config)
	cmd.Env = append(cmd.Env, "HOME="+g.home)
	cmd.Stdin = strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}
{"jsonrpc":"2.0","method":"notifications/initialized"}
{"jsonrpc":"2.0","id":2,"method":"resources/list"}
{"jsonrpc":"2.0","id":3,"method":"resources/read","params":{"uri":"file:///.a2e-state/secret.txt"}}
{"jsonrpc":"2.0","id":4,"method":"resources/read","params":{"uri":"file://` + g.state + `/secret.txt"}}
`)
	out := must.Get(cmd.CombinedOutput())(g.t)
	assert.That(g.t, strings.Contains(string(out), "mine.txt"), "the files of the workspace are not resources: %s", out)
	return string(out)
}

// TestWallStatePrograms: programs that agents run do not reach the host's files in the state_dir either, or do not
// start.
func TestWallStatePrograms(t *testing.T) {
	t.Parallel()
	all := []attempt{
		sh("cat", `cat .a2e-state/secret.txt`),
		sh("ls", `ls -laR .`),
		sh("copy", `cp -r . /tmp/all; grep -r SECRET /tmp/all; find /tmp/all`),
		sh("hard link", `ln .a2e-state/secret.txt h; cat h`),
		sh("symlink", `ln -s .a2e-state l; cat l/secret.txt; ls l`),
		sh("rename it", `mv .a2e-state away; ls away; mkdir .a2e-state; echo x > .a2e-state/planted`),
		sh("remove it", `rm -rf .a2e-state; mkdir .a2e-state; echo x > .a2e-state/planted`),
		sh("a link in its place", `rmdir .a2e-state; rm -rf .a2e-state; ln -s $OUT .a2e-state`),
		sh("put a file in", `mkdir -p .a2e-state; echo x > .a2e-state/planted`),
		sh("change its mode", `chmod 777 .a2e-state; chmod 666 .a2e-state/secret.txt; touch -d 2001-01-01 .a2e-state; cat .a2e-state/secret.txt`),
		sh("a link in place of the audit", `ln -sf $OUT/profile .a2e-state/audit.jsonl`),
		sh("proc self root", `cat /proc/self/root$WS/.a2e-state/secret.txt; ls /proc/self/root$WS/.a2e-state`),
		sh("proc 1 root", `cat /proc/1/root$WS/.a2e-state/secret.txt; ls /proc/1/cwd/.a2e-state`),
		sh("proc of all others", `for p in /proc/[0-9]*; do cat $p/cwd/.a2e-state/secret.txt $p/root$WS/.a2e-state/secret.txt; ls $p/cwd/.a2e-state; done 2>/dev/null`),
		sh("open files of others", `for f in /proc/[0-9]*/fd/*; do cat $f/secret.txt $f/.a2e-state/secret.txt; done 2>/dev/null`),
		sh("find", `find / -name '`+wallListed[:8]+`*' 2>/dev/null`),
		sh("git", `git init -q . ; git add -A .; git ls-files; git diff --cached`),
		sh("tar", `tar cf - . | cat`),
		sh("unmount", `umount .a2e-state; umount -l .a2e-state; cat .a2e-state/secret.txt`),
		sh("namespaces of its own", `unshare -Urm sh -c 'umount .a2e-state; cat .a2e-state/secret.txt'; unshare -m cat .a2e-state/secret.txt`),
		py("open", `print(open(".a2e-state/secret.txt").read(), os.listdir(".a2e-state"))`),
		py("by handles", `fd=os.open(".a2e-state",os.O_PATH); print(os.read(os.open("secret.txt",os.O_RDONLY,dir_fd=fd),99)); print(os.listdir("/proc/self/fd/%d"%fd))`),
		py("unmount by system call", `libc=ctypes.CDLL(None,use_errno=True); print(libc.umount2(b".a2e-state",2), libc.umount2((WS+"/.a2e-state").encode(),8)); print(open(".a2e-state/secret.txt").read())`),
		py("bind mount by system call", `libc=ctypes.CDLL(None); os.makedirs("m",exist_ok=True); libc.mount(WS.encode(),b"m",None,4096,None); print(open("m/.a2e-state/secret.txt").read())`),
		py("exchange", `libc=ctypes.CDLL(None); os.mkdir("other"); libc.syscall(316,-100,b"other",-100,b".a2e-state",2); print(os.listdir("other"), os.listdir(".a2e-state"))`),
		py("by file handle", `libc=ctypes.CDLL(None)
class H(ctypes.Structure): _fields_=[("n",ctypes.c_uint),("t",ctypes.c_int),("h",ctypes.c_ubyte*128)]
h=H(n=128); m=ctypes.c_int()
libc.name_to_handle_at(-100,b".a2e-state/secret.txt",ctypes.byref(h),ctypes.byref(m),0)
fd=libc.open_by_handle_at(os.open(".",os.O_RDONLY),ctypes.byref(h),0)
print(os.read(fd,99))`),
		say("working directory", "run_command", `{"command":["sh","-c","ls; cat secret.txt; echo x > planted"],"cwd":".a2e-state"}`),
		{"process", func(g *wallGround) string {
			return g.ask("proc/spawn/req", `"cmd":["sh","-c","cat .a2e-state/secret.txt; ls .a2e-state"]`)
		}},
		{"process in it", func(g *wallGround) string {
			return g.ask("proc/spawn/req", `"cmd":["sh","-c","cat secret.txt; ls; echo x > planted"],"cwd":".a2e-state"`)
		}},
		{"a skill's script", func(g *wallGround) string { return g.skill("") }},
		{"a skill's script that may write", func(g *wallGround) string { return g.skill("write: true\n") }},
		{"after another program", func(g *wallGround) string {
			return g.shell(`mv .a2e-state s; mkdir s`) +
				g.shell(`cat .a2e-state/secret.txt s/secret.txt; ls .a2e-state s`)
		}},
	}
	runAttempts(t, all, func(t *testing.T) *wallGround { return newWallGround(t, wallState, "a2e.yaml", ".a2e-state") })
}

// skill runs the script of a skill in the workspace, which looks for the host's files.
func (g *wallGround) skill(front string) string {
	dir := filepath.Join(g.ws, ".a2e", "skills", "peek")
	must.OK(g.t, os.MkdirAll(dir, 0o755),
		os.WriteFile(filepath.Join(dir, "SKILL.md"),
			[]byte("---\nname: peek\ndescription: d\nrun: go.sh\n"+front+"---\n"), 0o644),
		os.WriteFile(filepath.Join(dir, "go.sh"), []byte("#!/bin/sh\ncd $A2E_WORKSPACE\ncat .a2e-state/secret.txt; "+
			"ls .a2e-state; echo x > .a2e-state/planted; echo end\n"), 0o755))
	return g.ask("skill/call/req", `"name":"peek","arguments":{}`)
}

// TestWallStateParents: no folder above a state_dir in the workspace can be renamed and replaced.
func TestWallStateParents(t *testing.T) {
	t.Parallel()
	all := []attempt{
		sh("rename the folder above", `mv deep/er away; mkdir -p deep/er/state; echo x > deep/er/state/planted; cat away/state/secret.txt; ls -R away`),
		sh("rename the topmost", `mv deep away; mkdir -p deep/er/state; echo x > deep/er/state/planted; cat away/er/state/secret.txt`),
		sh("a link in place of the topmost", `mv deep away; ln -s $OUT deep`),
		sh("remove all", `rm -rf deep; ln -s $OUT deep`),
		py("exchange the folder above", `libc=ctypes.CDLL(None); os.makedirs("x/state"); open("x/state/planted","w"); libc.syscall(316,-100,b"x",-100,b"deep/er",2); print(os.listdir("x"))`),
		say("read", "read_file", `{"path":"deep/er/state/secret.txt"}`),
		say("glob", "glob", `{"pattern":"deep/**"}`),
		{"toolkit rooted above", func(g *wallGround) string {
			return g.kit("filesystem", `{"root_dir":"deep"}`) + g.tool("filesystem_glob", `{"pattern":"**"}`) +
				g.tool("filesystem_read_file", `{"path":"er/state/secret.txt"}`)
		}},
		{"git above", func(g *wallGround) string {
			wallGit(g.t, filepath.Join(g.ws, "deep"), "init", "-q")
			return g.kit("git", `{"repo":"deep"}`) + g.tool("git_add", `{"paths":["."]}`) + g.tool("git_status", `{}`)
		}},
	}
	runAttempts(t, all, func(t *testing.T) *wallGround {
		return newWallGround(t, "state_dir: deep/er/state\naudit: {}\n", "a2e.yaml", "deep/er/state")
	})
}

// TestWallStateBeforeItIsThere: the host does not follow what an agent puts in the place of a state_dir that does not
// exist yet.
func TestWallStateBeforeItIsThere(t *testing.T) {
	t.Parallel()
	all := []attempt{
		sh("a link in its place", `mkdir -p deep; ln -s $OUT deep/state; echo x > deep/state/x`),
		sh("a link in place of the folder above", `ln -s $OUT deep; rmdir deep; mv deep d2; ln -s $OUT deep`),
		sh("a link in place of the audit", `mkdir -p deep/state; ln -s $OUT/profile deep/state/audit.jsonl`),
		say("a file in its place", "write_file", `{"path":"deep/state","content":"x"}`),
		say("a file in it", "write_file", `{"path":"deep/state/audit.jsonl","content":"planted"}`),
		{"a toolkit's file in it", func(g *wallGround) string {
			return g.kit("filesystem", `{"root_dir":"."}`) + g.tool("filesystem_write_file",
				`{"path":"deep/state/audit.jsonl","content":"planted"}`)
		}},
	}
	for _, a := range all {
		t.Run(a.name, func(t *testing.T) {
			g := newWallGround(t, "state_dir: deep/state\n", "a2e.yaml", "")
			shown := a.act(g)
			g.stop()
			g.check(shown)
			must.OK(t, os.WriteFile(g.config, []byte(g.configText+"audit: {}\n"), 0o644))
			g.note()
			g.tool("list_dir", `{}`)
			g.stop()
			g.check("")
			g.state = filepath.Join(g.ws, "deep", "state")
			trail, err := os.ReadFile(filepath.Join(g.state, "audit.jsonl"))
			if info, err2 := os.Lstat(filepath.Join(g.state, "audit.jsonl")); err != nil || err2 != nil ||
				!info.Mode().IsRegular() || strings.Contains(string(trail), `planted"`+"\n") ||
				!strings.HasPrefix(string(trail), "{") {
				t.Errorf("the audit is %q, %v %v: %s", trail, err, err2, shown)
			}
		})
	}
}

// TestWallStateApprovals: an agent cannot have a changed tool served by removing its approval from the store.
func TestWallStateApprovals(t *testing.T) {
	t.Parallel()
	ways := map[string]string{
		"rows deleted":  `import sqlite3; c=sqlite3.connect(".a2e-state/state.db"); [c.execute("delete from "+n) for (n,) in c.execute("select name from sqlite_master where type='table' and name like '%mcp%'").fetchall()]; c.commit()`,
		"store removed": `import os; [os.remove(".a2e-state/"+n) for n in os.listdir(".a2e-state")]`,
		"store renamed": `import os; os.rename(".a2e-state","gone"); os.mkdir(".a2e-state")`,
	}
	for name, script := range ways {
		t.Run(name, func(t *testing.T) {
			g := newWallGround(t, wallState, "a2e.yaml", ".a2e-state")
			text := g.configText + "- {name: mcp, type: mcp, metadata: {pin: true, mcpServers: {tiny: {command: " +
				"python3, args: [server.py]}}}}\n"
			must.OK(t, os.WriteFile(g.config, []byte(text), 0o644))
			g.note()
			writeFile(t, g.ws, "server.py", tinyMCP)
			writeFile(t, g.ws, "description.txt", "Adds two numbers.")
			first := g.tool("tiny__add", `{"a":2,"b":40}`)
			g.stop()
			writeFile(t, g.ws, "description.txt", "Adds two numbers. Changed.")
			shown := g.python(script)
			g.stop()
			served := g.tool("tiny__add", `{"a":2,"b":40}`)
			g.stop()
			assert.That(t, !strings.Contains(served, "sum 42"), "the changed tool is served: %s (at first: %s; %s)",
				served, first, shown)
			g.check(shown)
		})
	}
}

// TestWallStateConfig: an agent can neither change nor replace the config in force.
func TestWallStateConfig(t *testing.T) {
	t.Parallel()
	all := []attempt{
		say("write", "write_file", `{"path":"conf/a2e.yaml","content":"sandbox: off\n"}`),
		say("edit", "edit_file", `{"path":"conf/a2e.yaml","old":"plugins:","new":"sandbox: off\nplugins:"}`),
		sh("overwrite", `echo "sandbox: off" > conf/a2e.yaml`),
		sh("append", `echo "sandbox: off" >> conf/a2e.yaml`),
		sh("move another onto it", `echo "sandbox: off" > x; mv -f x conf/a2e.yaml`),
		sh("copy another onto it", `echo "sandbox: off" > x; cp -f x conf/a2e.yaml; install x conf/a2e.yaml`),
		sh("delete", `rm -f conf/a2e.yaml; echo "sandbox: off" > conf/a2e.yaml`),
		sh("rename", `mv conf/a2e.yaml x; echo "sandbox: off" > conf/a2e.yaml`),
		sh("rename the folder above", `mv conf x; mkdir conf; echo "sandbox: off" > conf/a2e.yaml`),
		sh("remove the folder above", `rm -rf conf; mkdir conf; echo "sandbox: off" > conf/a2e.yaml`),
		sh("link onto it", `echo "sandbox: off" > x; ln -sf $PWD/x conf/a2e.yaml`),
		sh("change its mode", `chmod 777 conf/a2e.yaml`),
		sh("hard link", `ln conf/a2e.yaml h; echo "sandbox: off" > h`),
		sh("sed", `sed -i s/plugins/plugin/ conf/a2e.yaml`),
		py("replace", `open("x","w").write("sandbox: off"); os.replace("x","conf/a2e.yaml")`),
		py("exchange", `os.mkdir("x"); open("x/a2e.yaml","w").write("sandbox: off"); ctypes.CDLL(None).syscall(316,-100,b"x",-100,b"conf",2)`),
		py("truncate by handle", `os.truncate("/proc/self/fd/%d" % os.open("conf/a2e.yaml",os.O_RDONLY),0)`),
		sh("proc self root", `echo "sandbox: off" > /proc/self/root$WS/conf/a2e.yaml; echo "sandbox: off" > /proc/1/root$WS/conf/a2e.yaml`),
		{"a toolkit's file", func(g *wallGround) string {
			return g.kit("filesystem", `{"root_dir":"conf"}`) + g.tool("filesystem_write_file",
				`{"path":"a2e.yaml","content":"sandbox: off\n"}`)
		}},
		{"process", func(g *wallGround) string {
			return g.ask("proc/spawn/req", `"cmd":["sh","-c","echo 'sandbox: off' > conf/a2e.yaml"]`)
		}},
	}
	runAttempts(t, all, func(t *testing.T) *wallGround { return newWallGround(t, "", "conf/a2e.yaml", "") })
}

// TestWallStateHome: where the home is the workspace, the host starts, and hides the default state_dir and the user's
// config folder.
func TestWallStateHome(t *testing.T) {
	t.Parallel()
	home := func(t *testing.T) *wallGround {
		g := newWallGround(t, "audit: {}\n", ".config/a2e/config.yaml", ".local/state/a2e")
		g.home = g.ws
		must.OK(t, os.WriteFile(filepath.Join(g.ws, ".config", "a2e", wallListed), nil, 0o600))
		return g
	}
	all := []attempt{
		say("read the state", "read_file", `{"path":".local/state/a2e/secret.txt"}`),
		say("glob", "glob", `{"pattern":"**"}`),
		say("write the config", "write_file", `{"path":".config/a2e/config.yaml","content":"sandbox: off\n"}`),
		{"write what is trusted", func(g *wallGround) string {
			out := g.tool("write_file", `{"path":".config/a2e/trusted","content":"x"}`) +
				g.shell(`echo x > .config/a2e/trusted`)
			_, err := os.Lstat(filepath.Join(g.ws, ".config", "a2e", "trusted"))
			assert.That(g.t, err != nil, "a file was put into the user's config folder")
			return out
		}},
		say("list the config folder", "list_dir", `{"path":".config/a2e"}`),
		sh("cat the state", `cat .local/state/a2e/secret.txt; find .`),
		sh("overwrite the config", `echo "sandbox: off" > .config/a2e/config.yaml; ls .config/a2e`),
		sh("rename above the config", `mv .config c; mkdir -p .config/a2e; echo "sandbox: off" > .config/a2e/config.yaml`),
		sh("rename above the state", `mv .local l; mkdir -p .local/state/a2e; echo x > .local/state/a2e/planted; cat l/state/a2e/secret.txt`),
	}
	runAttempts(t, all, home)
}

// TestWallStateLeavesTheRest: the rest of the workspace works, also beside hidden folders, and so does a skill of the
// user in a hidden folder.
func TestWallStateLeavesTheRest(t *testing.T) {
	t.Parallel()
	g := newWallGround(t, "audit: {}\n", ".config/a2e/config.yaml", ".local/state/a2e")
	g.home = g.ws
	dir := filepath.Join(g.ws, ".config", "a2e", "skills", "mine")
	must.OK(t, os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "SKILL.md"),
		[]byte("---\nname: mine\ndescription: d\nrun: go.sh\n---\nTEXT-OF-IT\n"), 0o644),
		os.WriteFile(filepath.Join(dir, "go.sh"), []byte("#!/bin/sh\necho '{\"result\":\"ran\"}'\n"), 0o755))
	assert.Contains(t, g.tool("read_file", `{"path":"skill://mine/SKILL.md"}`), "TEXT-OF-IT",
		"a skill of the user is not read")
	if out := g.tool("write_file", `{"path":".local/share/x/new.txt","content":"x"}`); !strings.Contains(out,
		`"success":true`) {
		t.Errorf("beside what is hidden nothing is written: %s", out)
	}
	held := wallHeld(t)
	if out := g.ask("skill/call/req", `"name":"mine","arguments":{}`); !strings.Contains(out, `"ran"`) &&
		!strings.Contains(out, "the sandbox is required, but") {
		t.Errorf("a script of the user's skill: %s", out)
	}
	out := g.shell(`echo new > .local/state/other.txt && mv mine.txt moved.txt && cat moved.txt && mkdir -p .config/other && cat .config/other/../../moved.txt`)
	assert.That(t, strings.Contains(out, "minemine") == held && (held ||
		strings.Contains(out, "move them out of the workspace")),
		"programs do not work beside what is hidden, or do not say why: %s", out)
	g.stop()
	g.check(out)
}

// wallHeld reports whether this machine can hide folders from programs.
func wallHeld(t *testing.T) bool {
	t.Helper()
	path := hosttest.Program(t, "a2e")
	out, _ := command(t, t.TempDir(), path, "doctor", "--json").Output() // fails where something is missing
	return of(t, readReport(t, out), "sandbox", "mount_namespace").Level == "fine"
}

// TestWallStateRefused: a state_dir that nothing could hide is refused before anything starts. `check` and `doctor`
// show a state_dir that is hidden.
func TestWallStateRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ head, want string }{
		"without a sandbox": {"sandbox: off\nstate_dir: .a2e-state\n", "with sandbox: off nothing keeps " +
			"programs out"},
		"the workspace itself": {"state_dir: .\n", "state_dir is the workspace itself"},
		"an audit right in it": {
			"state_dir: ../outside\naudit: {path: WS/audit.jsonl}\n",
			"the folder of audit.path is the workspace itself",
		},
		"an audit without a sandbox": {
			"sandbox: off\nstate_dir: ../outside\naudit: {path: WS/log/audit.jsonl}\n",
			"the folder of audit.path lies in the workspace",
		},
		"through a link":                {"state_dir: lnk/state\n", "reached through a link in the workspace"},
		"through a link that leads out": {"state_dir: out/state\n", "reached through a link in the workspace"},
	} {
		t.Run(name, func(t *testing.T) {
			g := newWallGround(t, "", "a2e.yaml", ".a2e-state")
			g.link(".a2e-state", "lnk")
			g.link(g.outside, "out")
			must.OK(t, os.WriteFile(g.config, []byte(strings.ReplaceAll(c.head, "WS", g.ws)+wallPlugins), 0o644))
			path := hosttest.Program(t, "a2e")
			for _, args := range [][]string{{"check"}, {"serve"}, {"tools", "list"}} {
				cmd := command(t, g.ws, path, append(args, "--config", g.config)...)
				cmd.Env = append(cmd.Env, "HOME="+g.home)
				out, err := cmd.CombinedOutput()
				assert.That(t, err != nil && strings.Contains(string(out), c.want), "%v: %v, %s", args, err, out)
			}
			entries, _ := os.ReadDir(g.outside)
			assert.That(t, len(entries) == 0, "outside there is %v", entries)
		})
	}
	t.Run("told", func(t *testing.T) {
		g := newWallGround(t, wallState, "a2e.yaml", ".a2e-state")
		path := hosttest.Program(t, "a2e")
		for _, c := range []string{"check", "doctor --all"} {
			cmd := command(t, g.ws, path, append(strings.Fields(c), "--config", g.config)...)
			cmd.Env = append(cmd.Env, "HOME="+g.home)
			if out, _ := cmd.CombinedOutput(); !strings.Contains(string(out), "lies in the workspace: hidden from "+
				"agents") || !strings.Contains(string(out), fmt.Sprint(g.state)) {
				t.Errorf("%s does not tell: %s", c, out)
			}
		}
	})
}
