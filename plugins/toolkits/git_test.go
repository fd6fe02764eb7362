package toolkits

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"a2e/host/config"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// newRepo makes a workspace whose folder repo is a repository with one commit.
func newRepo(t testing.TB) (workspace, repo string) {
	t.Helper()
	workspace = t.TempDir()
	repo = filepath.Join(workspace, "repo")
	write(t, repo, "a.txt", "one\n", 0o644)
	runGit(t, repo, "init", "-q", "-b", "trunk")
	runGit(t, repo, "add", ".")
	runGit(t, repo, "commit", "-q", "-m", "first\n\nwith a body")
	return workspace, repo
}

func TestGit(t *testing.T) {
	workspace, repo := newRepo(t)
	p := open(t, workspace, Options{Git: &GitOptions{Repo: "repo"}})
	if m := call(t, p, "git_status", `{}`); m.Get("/data/data/clean") != "true" ||
		m.Get("/data/data/branch") != "trunk" {
		t.Fatalf("a new repository: %s", m.Line)
	}
	write(t, repo, "a.txt", "two\n", 0o644)
	write(t, repo, "sub/b ü.txt", "new\n", 0o644)
	m := call(t, p, "git_status", `{}`)
	got := m.Get("/data/data/files/0/path") + m.Get("/data/data/files/0/worktree") + m.Get("/data/data/files/1/path") +
		m.Get("/data/data/files/1/worktree")
	assert.Equal(t, got, "a.txtMsub/b ü.txt?", "files of git_status")
	if m := call(t, p, "git_diff", `{"path":"a.txt"}`); !strings.Contains(m.Get("/data/data/diff"), "-one\n+two") {
		t.Errorf("git_diff: %s", m.Line)
	}
	call(t, p, "git_add", `{"paths":["a.txt","sub"]}`).Has(t, "/data/data/staged", `["a.txt","sub/b ü.txt"]`)
	if m := call(t, p, "git_diff", `{"staged":true,"rev":"HEAD"}`); !strings.Contains(m.Get("/data/data/diff"),
		"+new") {
		t.Errorf("git_diff of what is staged: %s", m.Line)
	}
	m = call(t, p, "git_commit", `{"message":"second\n\n# no comment"}`)
	assert.That(t, m.Get("/data/data/subject") == "second" && m.Get("/data/data/files_changed") == "2" &&
		len(m.Get("/data/data/hash")) == 40, "git_commit: %s", m.Line)
	m = call(t, p, "git_log", `{}`)
	if m.Get("/data/data/commits/0/subject") != "second" || m.Get("/data/data/commits/0/body") != "# no comment" ||
		m.Get("/data/data/commits/0/author") != "a2e agent" ||
		m.Get("/data/data/commits/1/body") != "with a body" || m.Get("/data/data/commits/1/parents") != "[]" {
		t.Errorf("git_log: %s", m.Line)
	}
	if m := call(t, p, "git_show", `{}`); m.Get("/data/data/commit/subject") != "second" ||
		!strings.Contains(m.Get("/data/data/diff"), "+two") {
		t.Errorf("git_show: %s", m.Line)
	}
	call(t, p, "git_show", `{"rev":"HEAD~1","path":"a.txt"}`).Has(t, "/data/data/content", "one\n")
	p.Refused(protocol.TypeToolCallReq, `{"tool_name":"git_commit","arguments":{"message":"nothing"}}`,
		protocol.CodeToolError, "nothing to commit") // a commit of nothing
}

// TestGitEmpty: a repository without a commit has a log, which is empty.
func TestGitEmpty(t *testing.T) {
	dir := t.TempDir()
	runGit(t, dir, "init", "-q", "-b", "trunk")
	p := open(t, dir, Options{Git: &GitOptions{Repo: ".", ReadOnly: true}})
	call(t, p, "git_log", `{}`).Has(t, "/data/data/commits", "[]")
	call(t, p, "git_status", `{}`).Has(t, "/data/data/commit", "", "/data/data/branch", "trunk")
	p.Refused(protocol.TypeToolCallReq, `{"tool_name":"git_commit","arguments":{"message":"x"}}`,
		protocol.CodeUnknownTool) // git_commit of a read-only toolkit
}

// misbehave sets everything with which a repository can run a program of its own. Each program leaves a
// file behind when it runs.
func misbehave(t testing.TB, workspace, repo string) (tracks string) {
	t.Helper()
	tracks = filepath.Join(workspace, "tracks")
	must.OK(t, os.Mkdir(tracks, 0o777))
	script := func(name string) string {
		write(t, repo, ".evil/"+name, "#!/bin/sh\ntouch .git/ran-"+name+" ran-"+name+" '"+tracks+"/"+name+"'\ncat\nexit 0\n", 0o755)
		return filepath.Join(repo, ".evil", name)
	}
	for _, hook := range []string{
		"pre-commit", "prepare-commit-msg", "commit-msg", "post-commit", "post-index-change",
		"pre-auto-gc", "post-rewrite", "reference-transaction", "fsmonitor-watchman",
	} {
		write(t, repo, ".git/hooks/"+hook, "#!/bin/sh\ntouch .git/ran-hook-"+hook+" '"+tracks+"/hook-"+hook+"'\n",
			0o755)
	}
	for key, name := range map[string]string{
		"core.pager": "pager", "pager.log": "pager-log", "pager.diff": "pager-diff", "pager.show": "pager-show",
		"pager.status":   "pager-status",
		"core.fsmonitor": "fsmonitor", "core.editor": "editor", "credential.helper": "credential",
		"core.askPass": "askpass", "core.sshCommand": "ssh",
		"diff.external": "diff-external", "gpg.program": "gpg", "filter.evil.clean": "clean",
		"filter.evil.smudge": "smudge", "filter.evil.process": "process",
		"filter.a=b.c.clean": "clean-odd", "diff.evil.textconv": "textconv", "diff.evil.command": "diff-command",
		"trailer.evil.command": "trailer", "core.alternateRefsCommand": "alternate",
		"interactive.diffFilter": "difffilter", "merge.evil.driver": "merge",
	} {
		runGit(t, repo, "config", key, script(name))
	}
	runGit(t, repo, "config", "commit.gpgSign", "true")
	runGit(t, repo, "config", "log.showSignature", "true")
	runGit(t, repo, "config", "filter.evil.required", "true")
	runGit(t, repo, "config", "core.hooksPath", ".git/hooks")
	runGit(t, repo, "config", "alias.status", "!touch .git/ran-alias")
	runGit(t, repo, "config", "remote.origin.url", "ext::"+script("transport"))
	write(t, repo, ".gitattributes", "*.txt filter=evil diff=evil merge=evil\n*.odd filter=a=b.c\n", 0o644)
	write(t, repo, ".git/info/attributes", "*.txt filter=evil diff=evil\n", 0o644)
	return tracks
}

// ran returns the files that these programs have left.
func ran(t testing.TB, repo, tracks string) (names []string) {
	t.Helper()
	for _, pattern := range []string{
		filepath.Join(tracks, "*"), filepath.Join(repo, "ran-*"),
		filepath.Join(repo, ".git", "ran-*"),
	} {
		found := must.Get(filepath.Glob(pattern))(t)
		names = append(names, found...)
	}
	return names
}

// TestGitMisbehaving: no program that the repository's config, attributes or hooks name runs.
func TestGitMisbehaving(t *testing.T) {
	workspace, repo := newRepo(t)
	tracks := misbehave(t, workspace, repo)
	p := open(t, workspace, Options{Git: &GitOptions{Repo: "repo"}})
	write(t, repo, "a.txt", "changed\n", 0o644)
	write(t, repo, "b.txt", "new\n", 0o644)
	write(t, repo, "c.odd", "new\n", 0o644)
	for _, c := range [][2]string{
		{"git_status", `{}`},
		{"git_diff", `{}`},
		{"git_diff", `{"rev":"HEAD","path":"a.txt"}`},
		{"git_add", `{"paths":["a.txt","b.txt","c.odd",".gitattributes"]}`},
		{"git_diff", `{"staged":true}`},
		{"git_commit", `{"message":"x"}`},
		{"git_log", `{"path":"a.txt"}`},
		{"git_show", `{}`},
		{"git_show", `{"path":"a.txt"}`},
		{"git_commit", `{"message":"y","all":true}`},
		{"git_status", `{}`},
	} {
		m := p.Call(protocol.TypeToolCallReq, `{"tool_name":"`+c[0]+`","arguments":`+c[1]+`}`)
		if m.Type != protocol.TypeToolCallResp && !strings.Contains(m.Get("/message"), "nothing") {
			t.Errorf("%s %s: %s", c[0], c[1], m.Line)
		}
		if names := ran(t, repo, tracks); names != nil {
			t.Fatalf("after %s %s these have run: %v", c[0], c[1], names)
		}
	}
	assert.Equal(t, runGit(t, repo, "show", "--no-ext-diff", "--no-textconv", "HEAD:a.txt"), "changed\n", "the commit")
	// the trap works: without the toolkit, git runs the programs
	runGit(t, repo, "-c", "commit.gpgSign=false", "-c", "filter.evil.required=false", "commit", "-q", "--allow-empty",
		"-m", "trap")
	names := ran(t, repo, tracks)
	assert.That(t, len(names) >= 3, "nothing would have run anyway: %v", names)
}

func TestGitArguments(t *testing.T) {
	workspace, _ := newRepo(t)
	p := open(t, workspace, Options{Git: &GitOptions{Repo: "repo"}})
	for _, c := range []struct{ tool, args, code string }{
		{"git_log", `{"rev":"--output=x"}`, "schema_violation"},
		{"git_log", `{"rev":"-n1"}`, "schema_violation"},
		{"git_log", `{"rev":"HEAD\n--all"}`, "schema_violation"},
		{"git_log", `{"rev":"nope"}`, "tool_error"},
		{"git_log", `{"limit":0.5}`, "schema_violation"},
		{"git_log", `{"limit":5000}`, "schema_violation"},
		{"git_diff", `{"path":"../x"}`, "schema_violation"},
		{"git_diff", `{"path":"/etc/passwd"}`, "schema_violation"},
		{"git_show", `{"path":"../../etc/passwd"}`, "schema_violation"},
		{"git_show", `{"path":"--help"}`, "tool_error"},
		{"git_add", `{"paths":[]}`, "schema_violation"},
		{"git_add", `{"paths":[""]}`, "schema_violation"},
		{"git_add", `{"paths":["--chmod=+x"]}`, "tool_error"},
		{"git_add", `{"paths":[7]}`, "schema_violation"},
		{"git_commit", `{"message":" "}`, "schema_violation"},
		{"git_commit", `{"message":"x","author":"me"}`, "schema_violation"},
	} {
		m := p.Call(protocol.TypeToolCallReq, `{"tool_name":"`+c.tool+`","arguments":`+c.args+`}`)
		assert.Equal(t, string(m.Code), c.code, "%s %s: %s", c.tool, c.args, m.Line)
	}
}

// TestGitShowSeparatorsInFiles: the diff of a file with record separators in it is whole.
func TestGitShowSeparatorsInFiles(t *testing.T) {
	workspace, repo := newRepo(t)
	p := open(t, workspace, Options{Git: &GitOptions{Repo: "repo"}})
	write(t, repo, "a.txt", "x\x1ey\x1f\x1f\x1f\x1f\x1f\x1f\x1fz\nlast\n", 0o644)
	runGit(t, repo, "commit", "-q", "-a", "-m", "separators")
	m := call(t, p, "git_show", `{}`)
	assert.That(t, m.Get("/data/data/commit/subject") == "separators" && strings.Contains(m.Get("/data/data/diff"),
		"+last"), "git_show: %s", m.Line)
}

// TestGitCommitSubmoduleFilter: a commit asks no submodule for its changes, which would run
// the filters of the submodule's own config.
func TestGitCommitSubmoduleFilter(t *testing.T) {
	workspace, repo := newRepo(t)
	sub := filepath.Join(repo, "sub")
	write(t, sub, "f", "1\n", 0o644)
	runGit(t, sub, "init", "-q")
	runGit(t, sub, "add", "f")
	runGit(t, sub, "commit", "-q", "-m", "sub")
	runGit(t, repo, "-c", "advice.addEmbeddedRepo=false", "add", "sub")
	runGit(t, repo, "commit", "-q", "-m", "with a submodule")
	write(t, sub, ".git/info/attributes", "* filter=evil\n", 0o644)
	runGit(t, sub, "config", "filter.evil.clean", "touch .git/ran-clean; cat")
	write(t, sub, "f", "2\n", 0o644)
	write(t, repo, "a.txt", "changed\n", 0o644)
	p := open(t, workspace, Options{Git: &GitOptions{Repo: "repo"}})
	call(t, p, "git_add", `{"paths":["."]}`)
	call(t, p, "git_commit", `{"message":"x","all":true}`)
	p.Refused(protocol.TypeToolCallReq, `{"tool_name":"git_add","arguments":{"paths":["sub"]}}`,
		protocol.CodeToolDenied) // git_add of a submodule
	_, err := os.Stat(filepath.Join(sub, ".git", "ran-clean"))
	assert.That(t, err != nil, "the submodule's filter ran")
	runGit(t, repo, "status") // the trap itself works
	_, err = os.Stat(filepath.Join(sub, ".git", "ran-clean"))
	assert.That(t, err == nil, "nothing would have run anyway: %v", err)
}

// TestGitLogBrokenRepository: git_log fails if git cannot read the repository, which is not an empty
// one.
func TestGitLogBrokenRepository(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, ".git", "gitdir: nowhere\n", 0o644)
	p := open(t, dir, Options{Git: &GitOptions{Repo: "."}})
	p.Refused(protocol.TypeToolCallReq, `{"tool_name":"git_log","arguments":{}}`, protocol.CodeToolError)
}

// newAPI starts a web server that answers with the request that it got.
func newAPI(t testing.TB) (base string) {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"method":%q,"uri":%q,"body":%q,"type":%q,"auth":%q}`, r.Method, r.RequestURI, body,
			r.Header.Get("Content-Type"), r.Header.Get("Authorization"))
	})
	mux.HandleFunc("/v1/gone", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no such thing", http.StatusNotFound)
	})
	mux.HandleFunc("/v1/inside", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/v1/x", http.StatusFound)
	})
	mux.HandleFunc("/v1/away", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/admin", http.StatusFound)
	})
	mux.HandleFunc("/admin", func(http.ResponseWriter, *http.Request) { t.Error("the toolkit left the API") })
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}

func TestHTTP(t *testing.T) {
	const token = "tok-1234567"
	p := open(t, t.TempDir(), Options{HTTP: &HTTPOptions{
		BaseURL: newAPI(t) + "/v1", Headers: map[string]config.Secret{"authorization": config.NewSecret("Bearer " +
			token)},
	}})
	for _, c := range []struct{ tool, args, want string }{
		{
			"api_get", `{"path":"users/7","query":{"q":"a b&c","n":3,"tag":["x","y"]}}`,
			`{"method":"GET","uri":"/v1/users/7?n=3&q=a+b%26c&tag=x&tag=y","body":"","type":"","auth":"[redacted]"}`,
		},
		{"api_get", `{"path":"/"}`, `{"method":"GET","uri":"/v1/","body":"","type":"","auth":"[redacted]"}`},
		{
			"api_post", `{"path":"users","body":{"name":"Ann"}}`,
			`{"method":"POST","uri":"/v1/users","body":"{\"name\":\"Ann\"}","type":"application/json","auth":"[redacted]"}`,
		},
		{
			"api_put", `{"path":"note","body":"text"}`,
			`{"method":"PUT","uri":"/v1/note","body":"text","type":"text/plain; charset=utf-8","auth":"[redacted]"}`,
		},
		{"api_delete", `{"path":"users/7"}`, `{"method":"DELETE","uri":"/v1/users/7","body":"","type":"","auth":"[redacted]"}`},
		{"api_get", `{"path":"inside"}`, `{"method":"GET","uri":"/v1/x","body":"","type":"","auth":"[redacted]"}`},
	} {
		m := call(t, p, c.tool, c.args)
		got := m.Get("/data/data/content")
		assert.That(t, got == c.want && m.Get("/data/success") == "true" && m.Get("/data/data/status") == "200",
			"%s %s:\ngot  %s\nwant %s\n%s", c.tool, c.args, got, c.want, m.Line)
		assert.That(t, !strings.Contains(string(m.Line), token), "%s %s shows the token: %s", c.tool, c.args, m.Line)
	}
	if m := call(t, p, "api_get", `{"path":"gone"}`); m.Get("/data/success") != "false" ||
		m.Get("/data/error") != "HTTP 404" || !strings.Contains(m.Get("/data/data/content"), "no such thing") {
		t.Errorf("404: %s", m.Line)
	}
	call(t, p, "api_get", `{"path":"away"}`).Has(t, "/data/data/status", "302")
	for _, c := range []struct{ args, code string }{
		{`{"path":"../admin"}`, "tool_denied"},
		{`{"path":"%2e%2e/admin"}`, "tool_denied"},
		{`{"path":"x/../../admin"}`, "tool_denied"},
		{`{"path":"http://example.com/"}`, "schema_violation"},
		{`{"path":"//example.com/"}`, "schema_violation"},
		{`{"path":"x?y=1"}`, "schema_violation"},
		{`{"path":"..\\admin"}`, "schema_violation"},
		{`{"path":"x","query":{"a":{}}}`, "schema_violation"},
		{`{"path":"x","headers":{}}`, "schema_violation"},
		{`{}`, "schema_violation"},
	} {
		m := p.Call(protocol.TypeToolCallReq, `{"tool_name":"api_get","arguments":`+c.args+`}`)
		assert.Equal(t, string(m.Code), c.code, "%s: %s", c.args, m.Line)
	}
}

// TestHTTPSecretsOfAgent: headers that the agent configures are secret too, and end with its session.
func TestHTTPSecretsOfAgent(t *testing.T) {
	base := newAPI(t)
	p := open(t, t.TempDir(), Options{AllowPrivate: true})
	m := configure(p, "http", `{"base_url":"`+base+`/v1/","headers":{"Authorization":"s3cret-value"}}`)
	list := p.Call(protocol.TypeToolkitListReq, `{"filter_kind":"http"}`)
	got := call(t, p, "api_get", `{"path":"x"}`)
	for _, m := range []string{string(m.Line), string(list.Line), string(got.Line)} {
		assert.That(t, !strings.Contains(m, "s3cret"), "the secret stands in %s", m)
	}
	assert.Equal(t, list.Get("/toolkits/0/configured"), "true", "list: %s", list.Line)
	p.Handshake(protocol.CapToolkits, protocol.CapTools)
	p.Refused(protocol.TypeToolCallReq, `{"tool_name":"api_get","arguments":{"path":"x"}}`,
		protocol.CodeUnknownTool) // the next session must not use the secret
}

// TestHTTPAcceptIsNoSecret: the type that a configured Accept asks for stays readable in answers.
func TestHTTPAcceptIsNoSecret(t *testing.T) {
	p := open(t, t.TempDir(), Options{HTTP: &HTTPOptions{
		BaseURL: newAPI(t) + "/v1", Headers: map[string]config.Secret{"accept": config.NewSecret("application/json")},
	}})
	call(t, p, "api_get", `{"path":"x"}`).Has(t, "/data/data/content_type", "application/json")
	p.Refused(protocol.TypeToolCallReq, `{"tool_name":"api_get","arguments":{"path":"..%5cadmin"}}`,
		protocol.CodeSchemaViolation) // an encoded backslash
}
