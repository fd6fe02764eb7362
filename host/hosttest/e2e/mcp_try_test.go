package e2e_test

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// shMCP is an MCP server that needs only a shell. It lists the tools in $TOOLS.
const shMCP = `
TOOLS=${TOOLS:-'{"name":"add","inputSchema":{"type":"object"}}'}
while read -r line; do
  id=$(printf %s "$line" | sed -n 's/.*"id": *\([0-9]*\).*/\1/p')
  case $line in
  *'"initialize"'*)
    r='"protocolVersion":"2025-06-18","capabilities":{"tools":{},"resources":{},"prompts":{}}'
    r=$r',"serverInfo":{"name":"tiny server","version":"1.2"}'
    ;;
  *'"tools/list"'*) r="\"tools\":[$TOOLS]" ;;
  *'"resources/list"'*) r='"resources":[{"uri":"a://b","name":"the doc"}]' ;;
  *'"resources/templates/list"'*) r='"resourceTemplates":[]' ;;
  *'"prompts/list"'*) r='"prompts":[{"name":"greet"},{"name":"part"}]' ;;
  *) r= ;;
  esac
  [ -z "$id" ] || printf '{"jsonrpc":"2.0","id":%s,"result":{%s}}\n' "$id" "$r"
done
`

// spread writes files; a text that begins with "-> " makes a link. fill replaces WS and OUT by folders.
func spread(t *testing.T, files map[string]string, fill func(string) string) {
	t.Helper()
	for name, text := range files {
		path := fill(name)
		must.OK(t, os.MkdirAll(filepath.Dir(path), 0o755))
		if target, link := strings.CutPrefix(text, "-> "); link {
			must.OK(t, os.Symlink(fill(target), path))
		} else {
			must.OK(t, os.WriteFile(path, []byte(fill(text)), 0o755))
		}
	}
}

// TestDoctorFixStartsTheServer: each fix that doctor prints for a server that does not start makes it start, without
// changes to the fix.
func TestDoctorFixStartsTheServer(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("there is no sandbox")
	}
	for name, c := range map[string]struct {
		files map[string]string
		entry string
		says  string
		fix   string
	}{
		"a script elsewhere": {
			map[string]string{"OUT/my srv/run.sh": `. "${0%/*}/body.sh"`, "OUT/my srv/body.sh": shMCP},
			`{command: sh, args: ["OUT/my srv/run.sh"]}`, "the sandbox hides OUT/my srv", `read: ["OUT/my srv"]`,
		},
		"a package elsewhere": {
			map[string]string{
				"OUT/n/package.json": "{}", "OUT/n/lib/body.sh": shMCP,
				"OUT/n/dist/run.sh": ". ${0%/*}/../lib/body.sh",
			},
			"{command: sh, args: [OUT/n/dist/run.sh], read: [OUT/x]}", "the sandbox hides OUT/n",
			"read: [OUT/x, OUT/n]",
		},
		"a linked package": {
			map[string]string{
				"WS/node_modules/.bin/srv":                "-> ../srv/run.sh",
				"WS/node_modules/srv":                     "-> OUT/store/node_modules/srv",
				"OUT/store/node_modules/srv/package.json": "{}",
				"OUT/store/node_modules/srv/run.sh":       "#!/bin/sh\n. OUT/store/node_modules/dep/body.sh",
				"OUT/store/node_modules/dep/body.sh":      shMCP,
			},
			"{command: node_modules/.bin/srv}", "the sandbox hides OUT/store/node_modules",
			"read: [OUT/store/node_modules]",
		},
		"a Python elsewhere": {
			map[string]string{
				"WS/venv/bin/python": "-> OUT/py/3/bin/python", "OUT/py/3": "-> 3.1",
				"OUT/py/3.1/bin/python": "#!/bin/sh\n. OUT/py/3.1/lib/body.sh", "OUT/py/3.1/lib/body.sh": shMCP,
			},
			"{command: venv/bin/python, args: [-m, srv]}", "the sandbox hides OUT/py/3", "read: [OUT/py/3]",
		},
		"what a script runs": {
			map[string]string{
				"WS/srv": "#!OUT/tool/bin/python\n", "OUT/tool/bin/python": "-> OUT/py/bin/python",
				"OUT/py/bin/python": "#!/bin/sh\n" + shMCP,
			},
			"{command: ./srv}", "the sandbox hides OUT/tool", "read: [OUT/tool, OUT/py]",
		},
		"what its words name": {
			map[string]string{
				"WS/run.sh":  "[ -e OUT/d/data ] || { echo \"Error: no file 'OUT/d/data'\" >&2; exit 1; }\n" + shMCP,
				"OUT/d/data": "",
			},
			"{command: sh, args: [run.sh]}", "the sandbox hides OUT/d", "read: [OUT/d]",
		},
		"the PATH of a graphical client": {
			map[string]string{
				"WS/.nvm/versions/node/v9.9.0/bin/srv-a2e":                  "#!/bin/sh\n",
				"WS/.nvm/versions/node/v20.1.0/bin/srv-a2e":                 "-> ../lib/node_modules/srv/run.js",
				"WS/.nvm/versions/node/v20.1.0/bin/node-a2e":                "#!/bin/sh\n" + shMCP,
				"WS/.nvm/versions/node/v20.1.0/lib/node_modules/srv/run.js": "#!/usr/bin/env node-a2e\n",
			},
			"{command: srv-a2e}", "but PATH is /usr/bin:/bin", "command: WS/.nvm/versions/node/v20.1.0/bin/srv-a2e",
		},
		"a variable of the host": {
			map[string]string{
				"WS/run.sh": "[ -n \"$SRV_TOKEN\" ] || { echo 'Error: SRV_TOKEN is required' >&2; exit 1; }\n" + shMCP,
			},
			"{command: sh, args: [run.sh]}", "this host has SRV_TOKEN", `env: {SRV_TOKEN: "${SRV_TOKEN}"}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			home, out := workDir(t), t.TempDir()
			work := filepath.Join(home, "work") // a user's home has the workspace in it
			must.OK(t, os.Mkdir(work, 0o755))
			fill := func(text string) string {
				text = strings.ReplaceAll(text, "WS/.nvm", home+"/.nvm")
				return strings.NewReplacer("WS", work, "OUT", out).Replace(text)
			}
			spread(t, c.files, fill)
			must.OK(t, os.MkdirAll(filepath.Join(out, "x"), 0o755))
			report := func(entry string) reportLine {
				writeFile(t, work, "c.yaml", "state_dir: ../state\nmcpServers:\n  srv: "+entry+"\n")
				cmd := command(t, work, filepath.Join(home, "a2e"), "-c", "c.yaml", "doctor", "--live", "--json")
				cmd.Env = append(cmd.Env, "HOME="+home, "PATH=/usr/bin:/bin", "SRV_TOKEN=hush-hush-81174-hush")
				text, _ := cmd.Output() // the report says what is wrong
				return of(t, readReport(t, text), "needs", "MCP server srv")
			}
			entry := fill(c.entry)
			got := report(entry)
			must.That(t, got.Level == "error" && got.Fix == fill(c.fix) && strings.Contains(got.Text, fill(c.says)),
				"%+v", got)
			key, _, _ := strings.Cut(got.Fix, ":")
			parts := strings.Split(strings.Trim(entry, "{}"), ", ")
			kept := []string{got.Fix}
			for _, part := range parts { // works only for an entry without lists of several items
				if !strings.HasPrefix(part, key+":") {
					kept = append(kept, part)
				}
			}
			if strings.Contains(entry, "args: [-m, srv]") {
				kept = append([]string{got.Fix}, strings.Trim(entry, "{}"))
			}
			fixed := report("{" + strings.Join(kept, ", ") + "}")
			assert.That(t, fixed.Level == "fine" && strings.Contains(fixed.Text, "tiny server answers, with 1 tool"),
				"with %s: %+v", got.Fix, fixed)
		})
	}
}

// TestMCPAddTries: `mcp add` tries the server, and prints what the server offers, or in one line why it does not
// work.
func TestMCPAddTries(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("the programs are scripts of a shell")
	}
	dir := workDir(t)
	for name, text := range map[string]string{
		"good.sh": shMCP, "noisy.sh": "echo Starting on stdio\nexit 0\n",
		"key.sh":   "printf 'booting\\nError: A2E_TEST_KEY is required\\nUsage: key [options]\\n' >&2\nexit 1\n",
		"trace.py": "def f():\n    import no_such_module_a2e\nf()\n",
		"odd.sh": `TOOLS='{"name":"add","inputSchema":{"type":"object"}},{"name":"","inputSchema":{"type":"object"}}'` +
			shMCP,
	} {
		writeFile(t, dir, name, text)
	}
	add := func(args string) outcome {
		t.Helper()
		return run(t, dir, nil, append([]string{"mcp", "add"}, strings.Fields(args)...)...)
	}
	out := add("good -- sh good.sh").want(t, 0, "the file is new, and trusted as it is")
	assert.Equal(t, out.stdout,
		"good works: tiny server 1.2\n  1 tool: add\n  1 resource: the doc\n  2 prompts: greet, part\n")
	run(t, dir, nil, "mcp", "list").want(t, 0, "").has(t, "good  ")
	add("odd -- sh odd.sh").want(t, 0, "").has(t, "  1 tool: add\n", `  withheld: "" has `)
	for _, c := range []struct{ args, says string }{
		{"gone -- no-such-program-a2e", `there is no program "no-such-program-a2e"`},
		{"file -- python3 gone.py", "gone.py, which it runs, does not exist"},
		{"noisy -- sh noisy.sh", `exit status 0; its stdout has a line that is not an MCP message: "Starting on stdio"`},
		{"key -- sh key.sh", "exit status 1; its stderr says: Error: A2E_TEST_KEY is required\n"},
		{"trace -- python3 trace.py", "its stderr says: ModuleNotFoundError: No module named 'no_such_module_a2e'\n"},
		{"mute --timeout 0.3 -- sleep 60", "it did not answer within 300ms"},
		{"web --url http://127.0.0.1:1/mcp", "connection refused"},
	} {
		name, _, _ := strings.Cut(c.args, " ")
		out := add(c.args).want(t, 0, "added: "+name).want(t, 0, c.says).
			want(t, 0, "warning: "+name+" does not work yet: ")
		assert.Equal(t, out.stdout, "")
		assert.Equal(t, strings.Count(out.stderr, "\n"), 3, "lines of %s", out.stderr)
	}
	out = add("later --no-try -- sh noisy.sh").want(t, 0, "added: later")
	assert.That(t, !strings.Contains(out.stderr, "warning"), "%s", out.stderr)
	add("unset --env A2E_TEST_UNSET -- sh good.sh").want(t, 0, "the variable A2E_TEST_UNSET is not set").
		want(t, 0, "until then the server is left out")

	writeFile(t, dir, ".mcp.json", "{}\n") // a file of somebody else
	add("good -- sh good.sh").want(t, 0, "next: a2e trust").has(t, "good works: tiny server 1.2\n")
}
