package cli_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// The config of a folder names what is there, holds no secret, and loads.
func TestInit(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	wallGit(t, dir, "init", "-q")
	for name, text := range map[string]string{
		"skills/x/SKILL.md": "---\nname: x\ndescription: Does x.\n---\nDo x.\n", ".claude/skills/y/SKILL.md": "---\nname: y\ndescription: Does y.\n---\nDo y.\n",
		"go.mod": "module x\n", "Makefile": "", "Gemfile": "",
		".mcp.json": `{"mcpServers": {
			"gh": {"command": "sh", "args": ["-c", "cat"], "env": {"GH_TOKEN": "hush-1-hush-1", "DEBUG": "1"}, "alwaysAllow": ["x"], "timeout": 30},
			"db": {"command": "sh -c cat", "args": ["postgres://me:hush-2-hush-2@db/x?sslmode=off", "--api-key", "hush-3-hush-3", "--token=hush-4-hush-4", "sk-hush5hush5hush5hush5"]},
			"web": {"type": "http", "url": "https://x.example.org/mcp?api_key=hush-6-hush-6&a=1", "headers": {"Authorization": "Bearer hush-7-hush-7", "X-V": "${env:SOME_V}"}},
			"my bad": {"command": "x"}, "asks": {"command": "x", "args": ["${input:tok}"]}}}`,
		".cursor/mcp.json": `{"mcpServers": {"gh": {"command": "other"}}}`,
		".vscode/mcp.json": `{"servers": {"code": {"command": "sh", "args": ["${workspaceFolder}/x"], "env": {"GH_TOKEN": "hush-8-hush-8"}}}}`,
	} {
		must.OK(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		writeFile(t, dir, name, text)
	}
	printed := run(t, dir, nil, "init", "--print").want(t, 0, "")
	_, err := os.Stat(filepath.Join(dir, "a2e.yaml"))
	assert.That(t, err != nil, "--print wrote the file")
	out := run(t, dir, nil, "init").want(t, 0, "next: look at it, then a2e trust")
	text := textOf(t, dir, "a2e.yaml")
	assert.Equal(t, text, printed.stdout)
	assert.That(t, !strings.Contains(text+out.stderr, "hush"), "a secret is in it:\n%s", text)
	for _, want := range []string{
		"      GH_TOKEN: \"${GH_TOKEN:-}\"\n", `      DEBUG: "1"`, "    timeout: 30\n", `command: sh` + "\n" + `    args: [-c, cat, "postgres://me:${DB_PASSWORD:-}@db/x?sslmode=off", --api-key, "${DB_API_KEY:-}", "--token=${DB_TOKEN:-}", "${DB_TOKEN_2:-}"]`,
		`    url: "https://x.example.org/mcp?api_key=${WEB_API_KEY:-}&a=1"`, `Authorization: "Bearer ${WEB_AUTHORIZATION:-}"`, `X-V: "${SOME_V:-}"`,
		`args: [./x]`, `GH_TOKEN: "${CODE_GH_TOKEN:-}"`, "go, # go.mod is here", "make, # Makefile is here", "    skills_path: [skills]\n", "# .claude/skills: 1 skill, found without a setting", "git: {repo: .}",
	} {
		assert.That(t, strings.Contains(text, want), "it lacks %q:\n%s", want, text)
	}
	for _, want := range []string{`"my-bad" would do`, "asks", "gh of .cursor/mcp.json, as .mcp.json has one", "set these variables where a2e is started: GH_TOKEN, DB_PASSWORD"} {
		assert.Contains(t, out.stderr, want)
	}
	run(t, dir, nil, "trust").want(t, 0, "trusted until it changes")
	run(t, dir, nil, "check").want(t, 0, "")
	doctor := run(t, dir, nil, "doctor")
	assert.That(t, doctor.code <= 1 && strings.Contains(doctor.stdout, "its variable GH_TOKEN is empty"), "exit status %d:\n%s", doctor.code, doctor.stdout)

	run(t, dir, nil, "init").want(t, 1, "a2e.yaml already exists; --force replaces it")
	writeFile(t, dir, "a2e.yaml", "host_id: old\n")
	run(t, dir, nil, "init", "--force").want(t, 0, "written")
	assert.Equal(t, textOf(t, dir, "a2e.yaml"), text)
}

// A folder without anything, or with files that cannot be read, gets a config all the same.
func TestInitOfLittle(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	writeFile(t, dir, ".mcp.json", "{not JSON")
	run(t, dir, nil, "init").want(t, 0, "left out: .mcp.json: ")
	run(t, dir, nil, "check", "-c", "a2e.yaml").want(t, 0, "")
	run(t, dir, nil, "init", "-c", "other.yaml").want(t, 0, "written: ")
	must.OK(t, os.Remove(filepath.Join(dir, ".mcp.json")))
	must.OK(t, os.Symlink(os.DevNull, filepath.Join(dir, ".mcp.json"))) // nor does one that never ends
	run(t, dir, nil, "init", "--print").want(t, 0, "left out: .mcp.json: not a regular file")
	must.OK(t, os.Remove(filepath.Join(dir, ".mcp.json")))
	run(t, dir, nil, "init", "-c", "gone/other.yaml").want(t, 1, "no such file")
	writeFile(t, dir, ".mcp.json", `{"mcpServers": [{"command": "x"}]}`)
	run(t, dir, nil, "init", "--force").want(t, 0, "should be an object of ids")
}

// Whatever place of another client's file a secret stands in, it does not get into the config.
func TestInitHidesSecrets(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	writeFile(t, dir, ".mcp.json", `{"mcpServers": {
		"a": {"command": "npx", "args": ["mcp-remote", "--header", "Authorization:Bearer hush-1-hush", "--header=X-Api-Key:hush-2", "--env=A_KEY=hush-3", "--password=hush-4${X}",
			"--api-key", "hush-5${X}", "{\"token\":\"hush-6\"}", "mongodb://u:hush@hush-7@h", "sh A=1 B_TOKEN=hush-8 x --secret hush-9 y", "--header", "Cookie: a=b; c=hush-10", "-Hx=ghp_hushhushhush1"],
			"env": {"A_TOKEN": "hush-11${Y}", "B_TOKEN": "${Z:-hush-12}", "C_AUTH": "Basic hush-13", "KIND": "${HOME}x"}},
		"b": {"url": "https://x.example.org/s/hushHUSH0123456789abcdef/mcp?key=hush-14#token=hush-15", "headers": {"Authorization": "hush"}}}}`)
	text := run(t, dir, nil, "init", "--print").want(t, 0, "taken over from .mcp.json").stdout
	assert.That(t, !strings.Contains(strings.ToLower(text), "hush"), "a secret is in it:\n%s", text)
	for _, want := range []string{`"Authorization:Bearer ${A_AUTHORIZATION:-}"`, `"--password=${A_PASSWORD:-}"`, "x --secret ${A_SECRET:-} y", `KIND: "${HOME}x"`, "/s/${B_TOKEN_2:-}/mcp?key=${B_KEY:-}#token=${B_TOKEN_3:-}"} {
		assert.Contains(t, text, want)
	}
}
