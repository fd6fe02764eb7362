//go:build unix

package e2e_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

func doctorReport(t *testing.T, dir string, code int, args ...string) report {
	t.Helper()
	out := run(t, dir, nil, append([]string{"doctor", "--json"}, args...)...).want(t, code, "")
	return readReport(t, []byte(out.stdout))
}

// needsConfig names many things that do not exist. %URL% is the address of a server, %OUT% a file outside.
const needsConfig = `mcpServers:
  good: {command: python3, args: [mcp.py, it], env: {LABEL: hush-hush-81174-hush, LABEL_TOKEN: hush-hush-81174-hush}}
  gone: {command: no-such-program-a2e}
  script: {command: python3, args: [gone.py]}
  outside: {command: python3, args: ["%OUT%"]}
  web: {url: "%URL%/mcp"}
  off: {command: no-such-program-a2e, disabled: true}
plugins:
  multi_agent:
    workers:
    - {name: local, llm: {url: "%URL%/v1", model: small}}
    - {name: misnamed, llm: {url: "%URL%/v1", model: smal}}
    - {name: far, llm: {url: "https://api.example.org/v1", model: m}}
    - {name: still, command: [./still.sh]}
    - {name: strange, command: [./strange.sh]}
  ext: {type: exec, command: [python3, plugin.py, it], env: {LABEL: hush-hush-81174-hush, LABEL_TOKEN: hush-hush-81174-hush}}
  env: {env: exec, exec: {command: [python3, gone.py]}}
  toolkits:
    sql: {dsn: data.db}
    openapi: {spec: api.json, base_url: "%URL%"}
    http: {base_url: "%URL%/denied"}
    git: {repo: .}
  memory: {embeddings: {url: "%URL%/v1", model: e}}
`

// needsDir returns a folder with that config as file, and starts the server of its URLs.
func needsDir(t *testing.T, file string) string {
	t.Helper()
	dir := workDir(t)
	out := t.TempDir()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/models"):
			_, _ = w.Write([]byte(`{"data": [{"id": "small"}, {"id": "large"}]}`))
		case strings.HasSuffix(r.URL.Path, "/embeddings"):
			_, _ = w.Write([]byte(`{"data": [{"index": 0, "embedding": [1, 0, 0]}]}`))
		case strings.HasPrefix(r.URL.Path, "/denied"):
			w.WriteHeader(http.StatusForbidden)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(server.Close)
	wallGit(t, dir, "init", "-q")
	writeFile(t, out, "srv.py", "")
	text := strings.NewReplacer("%URL%", server.URL, "%OUT%",
		filepath.ToSlash(filepath.Join(out, "srv.py"))).Replace(needsConfig)
	for name, content := range map[string]string{
		file: text, "mcp.py": canaryMCP, "plugin.py": canaryPlugin, "still.sh": "#!/bin/sh\n",
		"strange.sh": "#!/usr/bin/env no-such-program-a2e\n",
		"data.db":    "", "api.json": `{"openapi": "3.0.0", "info": {"title": "t", "version": "1"}, "paths": {"/a": {"get": {"operationId": "a", "responses": {"200": {"description": "d"}}}}}}`,
	} {
		writeFile(t, dir, name, content)
	}
	must.OK(t, os.Chmod(filepath.Join(dir, "strange.sh"), 0o755))
	must.OK(t, os.Chmod(filepath.Join(dir, "still.sh"), 0o644))
	skill := filepath.Join(dir, ".a2e", "skills", "s")
	must.OK(t, os.MkdirAll(skill, 0o755))
	writeFile(t, skill, "SKILL.md", "---\nname: s\ndescription: Does s.\nrun: s.x\n---\n")
	writeFile(t, skill, "s.x", "#!/usr/bin/env no-such-program-a2e\n")
	return dir
}

// TestDoctorLooksAtWhatTheConfigNames: doctor looks for what the config names, and prints the place of each option
// and a fix. It starts nothing.
func TestDoctorLooksAtWhatTheConfigNames(t *testing.T) {
	t.Parallel()
	dir := needsDir(t, "c.yaml")
	r := doctorReport(t, dir, 1, "-c", "c.yaml")
	for _, c := range []struct{ of, level, place, text, fix string }{
		{"MCP server good", "fine", "c.yaml:2:", "python3", ""},
		{"MCP server gone", "error", "c.yaml:3:", `there is no program "no-such-program-a2e"`, ""},
		{"MCP server script", "error", "c.yaml:4:", "gone.py, which it runs, does not exist", ""},
		{"MCP server outside", "warning", "c.yaml:5:", "in its sandbox it may not see", "read: ["},
		{"MCP server web", "fine", "c.yaml:6:", "http://127.0.0.1", ""},
		{"worker local", "fine", "c.yaml:11:", "http://127.0.0.1", ""},
		{"worker far", "warning", "c.yaml:13:", "is asked without a key", "api_key: ${A2E_LLM_API_KEY}"},
		{"worker still", "error", "c.yaml:14:", "still.sh is not executable", "chmod +x " + dir + "/still.sh"},
		{"worker strange", "error", "c.yaml:15:", "is run by no-such-program-a2e, which its first line names", ""},
		{"plugin ext", "fine", "c.yaml:16:", "python3", ""},
		{"environment exec", "error", "c.yaml:17:", "gone.py, which it runs, does not exist", ""},
		{"toolkit sql", "fine", "c.yaml:19:", "its file is there", ""},
		{"toolkit openapi", "fine", "c.yaml:20:", "1 operation", ""},
		{"toolkit git", "fine", "c.yaml:22:", "git", ""},
		{"embeddings of the memory", "fine", "c.yaml:23:", "model e", ""},
		{"skill s", "warning", "", `there is no program "no-such-program-a2e"`, ""},
	} {
		got := of(t, r, "needs", c.of)
		assert.That(t, got.Level == c.level && strings.HasPrefix(got.Place, c.place) &&
			strings.Contains(got.Text, c.text) && strings.HasPrefix(got.Fix, c.fix) &&
			(c.fix != "") == (got.Fix != "") && !got.Live,
			"%+v, want %+v", got, c)
	}
	for _, n := range r.in("needs") {
		assert.That(t, n.Name != "MCP server off", "a server that is switched off needs nothing")
	}
	out := run(t, dir, nil, "doctor", "-c", "c.yaml").want(t, 1, "something does not work")
	assert.That(t, !strings.Contains(out.stdout+out.stderr, "hush") && !strings.Contains(out.stdout, "\x1b"),
		"a secret, or a color where no terminal is:\n%s", out.stdout)
	assert.Contains(t, out.stdout, "  fix: chmod +x "+dir+"/still.sh\n")
	assert.Contains(t, out.stdout, " warnings, ")
}

// TestDoctorLive: --live starts the programs and calls the servers, each within its time limit.
func TestDoctorLive(t *testing.T) {
	t.Parallel()
	dir := needsDir(t, "c.yaml")
	writeFile(t, dir, "mute.yaml", "mcpServers: {mute: {command: sleep, args: ['60']}}\n")
	r := doctorReport(t, dir, 1, "-c", "c.yaml", "--live")
	for _, c := range []struct{ of, level, text string }{
		{"MCP server web", "error", "404"},
		{"MCP server good", "fine", "answers, with 2 tools"},
		{"plugin ext", "fine", "it completes the handshake and serves "},
		{"worker local", "fine", "it answers, and has small among 2 models"},
		{"worker misnamed", "warning", `it does not list the model "smal"; did you mean "small"?`},
		{"toolkit sql", "fine", "SQLite answers"},
		{"toolkit openapi", "fine", "1 operation; it answers HTTP 404"},
		{"toolkit http", "warning", "HTTP 403: are its headers right?"},
		{"embeddings of the memory", "fine", "e answers, with 3 dimensions"},
	} {
		got := of(t, r, "needs", c.of)
		assert.That(t, got.Level == c.level && strings.Contains(got.Text, c.text) && got.Live, "%+v, want %+v", got, c)
	}
	for _, n := range r.in("needs") {
		assert.That(t, !strings.Contains(n.Text, "hush"), "a secret: %s", n.Text)
	}
	mute := of(t, doctorReport(t, dir, 1, "-c", "mute.yaml", "--live", "--timeout", "0.2"), "needs", "MCP server mute")
	assert.That(t, mute.Level == "error" && strings.Contains(mute.Text, "it did not answer within 200ms"), "%+v", mute)
	run(t, dir, nil, "doctor", "--timeout", "3").want(t, 2, "--timeout is for --live")
}

// TestDoctorOfAnUntrustedConfig: doctor starts nothing of a config that nobody has trusted, not even with --live, and
// shows no variable that the config names.
func TestDoctorOfAnUntrustedConfig(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	writeFile(t, dir, "a2e.yaml", "mcpServers:\n  bad: {command: sh, args: [-c, 'touch started']}\n  no: {command: "+
		"no-such-program-a2e}\nplugins:\n  ext: {type: exec, command: [sh, -c, 'touch started']}\n"+
		"  multi_agent: {workers: [{name: \"${CANARY_TOKEN}\", command: [no-such-program-a2e]}]}\n")
	cmd := command(t, dir, "./a2e", "doctor", "--live", "--json")
	cmd.Env = append(cmd.Env, "CANARY_TOKEN=hush-hush-81174-hush")
	text, err := cmd.Output()
	must.That(t, err == nil && !strings.Contains(string(text), "hush"), "%v: %s", err, text)
	r := readReport(t, text)
	got := of(t, r, "untrusted", "MCP server no")
	assert.That(t, got.Level == "warning" && strings.HasPrefix(got.Place, "a2e.yaml:3:"), "%+v", got)
	assert.Equal(t, of(t, r, "untrusted", "plugin ext").Level, "fine")
	assert.That(t, len(r.in("needs")) == 0, "%+v", r)
	for _, c := range r.Checks {
		assert.That(t, !strings.Contains(c.Text, "not trusted (") || c.Fix == "a2e trust", "%+v", c)
	}
	_, err = os.Stat(filepath.Join(dir, "started"))
	assert.That(t, err != nil, "something of it was started")
}

// TestDoctorOfFolders: doctor reports a folder that cannot be written, and one that does not exist yet.
func TestDoctorOfFolders(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	writeFile(t, dir, "c.yaml", "state_dir: state\naudit: {path: /proc/nowhere/a.jsonl}\n")
	out := run(t, dir, nil, "doctor", "-c", "c.yaml", "--log-file", filepath.Join(dir, "gone", "log")).want(t, 1, "")
	for _, want := range []string{
		"wrong    audit.path  /proc/nowhere (cannot be written: ",
		"ok       --log-file  " + dir + "/gone (does not exist yet",
	} {
		assert.Contains(t, out.stdout, want)
	}
}
