package e2e_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

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
