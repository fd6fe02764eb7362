package e2e_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// TestInit: `a2e init` writes a config that names what is in the folder, is trusted, and loads. A file that came with
// the folder is not trusted.
func TestInit(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	wallGit(t, dir, "init", "-q")
	for name, text := range map[string]string{
		"skills/x/SKILL.md":         "---\nname: x\ndescription: Does x.\n---\nDo x.\n",
		".claude/skills/y/SKILL.md": "---\nname: y\ndescription: Does y.\n---\nDo y.\n",
		"go.mod":                    "module x\n", "Makefile": "", "Gemfile": "",
		".mcp.json":        `{"mcpServers": {"gh": {"command": "touch", "args": ["started"], "env": {"GH_TOKEN": "hush-1-hush-1"}}}}`,
		".cursor/mcp.json": `{"mcpServers": {"gh": {"command": "other"}}}`,
	} {
		must.OK(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		writeFile(t, dir, name, text)
	}
	printed := run(t, dir, nil, "init", "--print").want(t, 0, "")
	_, err := os.Stat(filepath.Join(dir, "a2e.yaml"))
	assert.That(t, err != nil, "--print wrote the file")
	out := run(t, dir, nil, "init").want(t, 0, "it is trusted as it is; next: a2e doctor").
		want(t, 0, ".cursor/mcp.json is not read").want(t, 0, ".mcp.json: not trusted (nobody has run `a2e trust` "+
		"for it)")
	text := textOf(t, dir, "a2e.yaml")
	assert.Equal(t, text, printed.stdout)
	assert.That(t, !strings.Contains(text+out.stderr, "hush"), "a secret is in it:\n%s", text)
	for _, want := range []string{
		"go, # go.mod is here", "make, # Makefile is here", "    skills_path: [skills]\n",
		"# .claude/skills: 1 skill, found without a setting", "git: {repo: .}",
	} {
		assert.Contains(t, text, want)
	}
	run(t, dir, nil, "check").want(t, 0, "").has(t, "a2e.yaml")
	run(t, dir, nil, "tools", "list").want(t, 0, ".mcp.json: not trusted")
	_, err = os.Stat(filepath.Join(dir, "started"))
	assert.That(t, err != nil, "a server of the folder was started")

	run(t, dir, nil, "init").want(t, 1, "a2e.yaml already exists; --force replaces it")
	writeFile(t, dir, "a2e.yaml", "host_id: old\n")
	run(t, dir, nil, "init", "--force").want(t, 0, "written")
	assert.Equal(t, textOf(t, dir, "a2e.yaml"), text)
}

// TestInitOfLittle: a folder with nothing but a file that cannot be read gets a config, too.
func TestInitOfLittle(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	writeFile(t, dir, ".mcp.json", "{not JSON")
	run(t, dir, nil, "init").want(t, 0, ".mcp.json: not trusted (nobody has run `a2e trust` for it), so it is not "+
		"used; it also has mistakes: .mcp.json:1:3: not valid JSON")
	run(t, dir, nil, "check", "-c", "a2e.yaml").want(t, 0, "")
	run(t, dir, nil, "init", "-c", "other.yaml").want(t, 0, "written: ")
	run(t, dir, nil, "init", "-c", "gone/other.yaml").want(t, 1, "no such file")
}
