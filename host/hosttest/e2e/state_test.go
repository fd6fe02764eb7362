package e2e_test

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/go-json-experiment/json"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

const (
	stateConfig = "state_dir: state\n"
	storeFile   = "state/state.db" // of that config
)

// stateDir returns a workDir whose state is in ./state.
func stateDir(t *testing.T) string {
	t.Helper()
	dir := workDir(t)
	writeConfig(t, dir, stateConfig)
	return dir
}

// remember stores entries, which are JSON, as an agent in the default namespace.
func remember(t *testing.T, dir, agent string, entries ...string) {
	t.Helper()
	rememberIn(t, dir, agent, `{}`, entries...)
}

// rememberIn does the same; opening has the members of memory/init/req.
func rememberIn(t *testing.T, dir, agent, opening string, entries ...string) {
	t.Helper()
	l := start(t, dir)
	l.send(fmt.Sprintf(`{"type":"handshake/req","id":"h","agent_id":%q,"agent_caps":["memory"]}`, agent))
	m := l.answer("h")
	must.That(t, m["ok"] == true, "%v", m)
	l.send(`{"type":"memory/init/req","id":"i",` +
		strings.TrimPrefix(strings.Replace(opening, "{}", `{"namespace":"default"}`, 1), "{"))
	id, _ := l.answer("i")["memory_id"].(string)
	l.send(fmt.Sprintf(`{"type":"memory/store/req","id":"s","memory_id":%q,"entries":[%s]}`, id,
		strings.Join(entries, ",")))
	m = l.answer("s")
	must.Equal(t, len(m["stored"].([]any)), len(entries), "%v", m)
	l.stdin.Close()
	if code := l.exit(); code != 0 {
		t.Fatalf("exit status %d: %s", code, l.stderr.String())
	}
}

// entry returns an entry of memory/store/req as JSON.
func entry(key, tier, content string, tags ...string) string {
	raw, _ := json.Marshal(map[string]any{
		"key": map[string]string{"id": key}, "tier": tier, "content": content,
		"tags": append([]string{}, tags...),
	})
	return string(raw)
}

// outcome is the exit status and the output of a command.
type outcome struct {
	code   int
	stdout string
	stderr string
}

// run runs the binary to its end.
func run(t *testing.T, dir string, stdin []byte, args ...string) outcome {
	t.Helper()
	cmd := command(t, dir, "./a2e", args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &stdout, &stderr
	err := cmd.Run()
	return outcome{exitCode(err), stdout.String(), stderr.String()}
}

// want checks an exit status, and that stderr has the text says.
func (o outcome) want(t *testing.T, code int, says string) outcome {
	t.Helper()
	must.That(t, o.code == code && strings.Contains(o.stderr, says),
		"exit status %d, want %d and %q on stderr:\n%s%s", o.code, code, says, o.stdout, o.stderr)
	return o
}

func exported(t *testing.T, dir string) string {
	t.Helper()
	return run(t, dir, nil, "state", "export").want(t, 0, "").stdout
}

// files lists the files in a folder and below it.
func files(t *testing.T, dir string) (names []string) {
	t.Helper()
	must.OK(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			name, _ := filepath.Rel(dir, path)
			names = append(names, filepath.ToSlash(name))
		}
		return err
	}))
	slices.Sort(names)
	return names
}

func TestStateMovesToAnotherHost(t *testing.T) {
	t.Parallel()
	from, to := stateDir(t), stateDir(t)
	remember(t, from, "w1", entry("a", "episodic", "the first"), entry("b", "semantic", "the second", "x", "y"))
	remember(t, to, "w2", entry("c", "semantic", "was here before"))

	out := run(t, from, nil, "state", "export", "-o", "out.ndjson").want(t, 0, "")
	text, err := os.ReadFile(filepath.Join(from, "out.ndjson"))
	must.That(t, err == nil && out.stdout == "" && string(text) == exported(t, from) &&
		strings.Count(string(text), "\n") >= 3,
		"%v, stdout %q, the file:\n%s", err, out.stdout, text)
	if info, err := os.Stat(filepath.Join(from, "out.ndjson")); err != nil || runtime.GOOS != "windows" &&
		info.Mode().Perm() != 0o600 {
		t.Errorf("the export is readable for others: %v, %v", info.Mode(), err)
	}
	for _, name := range files(t, from) {
		assert.That(t, !strings.Contains(name, "a2e-export"), "left behind: %s", name)
	}

	out = run(t, to, text, "state", "import", "-", "--json").want(t, 0, "")
	var counts map[string]int
	if err := json.Unmarshal([]byte(out.stdout), &counts); err != nil || counts["memory.entry"] != 2 {
		t.Errorf("%v in %s", err, out.stdout)
	}
	got := exported(t, to)
	assert.That(t, strings.Contains(got, "was here before") && strings.Contains(got, "the first") &&
		strings.Contains(got, "the second"), "after the import:\n%s", got)
	run(t, to, nil, "state", "import", filepath.Join(from, "out.ndjson"), "--replace").want(t, 0, "memory.entry 2")
	assert.Equal(t, exported(t, to), string(text), "after --replace:\n…\nwant:\n%s", text)
	// an export of another part has nothing of the memory
	if out := run(t, from, nil, "state", "export", "--part", "planning").want(t, 0, ""); strings.Contains(out.stdout,
		"memory") {
		t.Errorf("the part planning has memory in it:\n%s", out.stdout)
	}
}

func TestStateImportThatFailsChangesNothing(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	remember(t, dir, "w1", entry("a", "episodic", "the first"), entry("b", "semantic", "the second"))
	before := exported(t, dir)
	lines := strings.SplitAfter(before, "\n")
	for name, c := range map[string]struct {
		text, says string
		args       []string
	}{
		"not an export": {"{\"a\":1}\n", "line 1", []string{"-"}},
		"cut off": {
			before + lines[1][:len(lines[1])/2], fmt.Sprintf("line %d", len(lines)),
			[]string{"-", "--replace"},
		},
		"newer": {"{\"a2e_state\":99,\"parts\":[]}\n", "newer", []string{"bad.ndjson", "--replace"}},
	} {
		must.OK(t, os.WriteFile(filepath.Join(dir, "bad.ndjson"), []byte(c.text), 0o600))
		out := run(t, dir, []byte(c.text), append([]string{"state", "import"}, c.args...)...).want(t, 1, c.says)
		assert.That(t, strings.Contains(out.stderr, "nothing was imported") && out.stdout == "", "%s: %+v", name, out)
	}
	assert.Equal(t, exported(t, dir), before, "now there is:\n…\nwant")
	run(t, dir, nil, "state", "import", "nowhere.ndjson").want(t, 2, "nowhere.ndjson")
	run(t, dir, nil, "state", "import").want(t, 2, "")
}

// importing starts an import from a pipe, and returns once the import reads.
func importing(t *testing.T, dir, tmp string) (*exec.Cmd, io.WriteCloser) {
	t.Helper()
	cmd := command(t, dir, "./a2e", "state", "import", "--replace", "-")
	cmd.Env = append(cmd.Env, "TMPDIR="+tmp)
	stdin := must.Get(cmd.StdinPipe())(t)
	must.OK(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if _, err := io.WriteString(stdin, strings.Repeat("\n", 2<<20)); err != nil { // more than pipes hold
		t.Fatal(err)
	}
	return cmd, stdin
}

// TestStateImportThroughASlowPipe: others can write while an import waits for its input, and the import leaves no
// file behind, even if it is interrupted.
func TestStateImportThroughASlowPipe(t *testing.T) {
	t.Parallel()
	from, to, tmp := stateDir(t), stateDir(t), t.TempDir()
	remember(t, from, "w1", entry("a", "semantic", "the first"))
	text := exported(t, from)
	remember(t, to, "w1", entry("b", "semantic", "the second"))
	cmd, stdin := importing(t, to, tmp)
	remember(t, to, "w1", entry("c", "semantic", "the third"))
	must.Get(io.WriteString(stdin, text))(t)
	stdin.Close()
	must.OK(t, cmd.Wait())
	assert.Equal(t, exported(t, to), text, "after it:\n…\nwant")

	cmd, _ = importing(t, to, tmp)
	must.OK(t, cmd.Process.Signal(os.Interrupt))
	assert.Fails(t, cmd.Wait(), "", "an import that was interrupted succeeded")
	left := files(t, tmp)
	assert.That(t, len(left) == 0, "left behind: %q", left)
	assert.Equal(t, exported(t, to), text, "after an interrupt:\n…\nwant")
}

// TestStateWithoutAStore: a command that only reads does not make a store, else a wrong state_dir would go unnoticed.
func TestStateWithoutAStore(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	before := files(t, dir)
	for _, args := range [][]string{{"state", "export"}, {"state", "export", "-o", "out"}, {"state", "reembed"}} {
		out := run(t, dir, nil, args...).want(t, 1, "does not exist yet")
		assert.Equal(t, out.stdout, "", "%v", args)
	}
	out := run(t, dir, nil, "state", "path").want(t, 0, "")
	real, err := filepath.EvalSymlinks(dir)
	assert.That(t, err == nil && (out.stdout == filepath.Join(dir, storeFile)+"\n" ||
		out.stdout == filepath.Join(real, storeFile)+"\n"), "state path: %q, %v", out.stdout, err)
	run(t, dir, nil, "state", "export", "--part", "memroy").want(t, 2, `"memroy"; did you mean "memory"?`)
	assert.Slice(t, files(t, dir), before, "there is … now, before there")
	writeConfig(t, dir, "state_dri: x\n")
	for _, args := range [][]string{{"export"}, {"import", "-"}, {"reembed"}, {"path"}} {
		run(t, dir, nil, append([]string{"state"}, args...)...).want(t, 3, "state_dri")
	}
}

// TestStateExportToAFile: the file is written as a whole or not at all. Links and pipes stay what they are.
func TestStateExportToAFile(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	remember(t, dir, "w1", entry("a", "episodic", "the first"))
	want := exported(t, dir)
	script := `set -e
echo old > real; ln -s real link
./a2e state export -o link; test -L link; cat real
mkfifo pipe; timeout 20 cat pipe & timeout 20 ./a2e state export -o pipe; wait; test -p pipe`
	cmd := command(t, dir, "sh", "-c", script)
	out, err := cmd.Output()
	assert.That(t, err == nil && string(out) == want+want, "%v, got:\n%s\nwant twice:\n%s", err, out, want)
	run(t, dir, nil, "state", "export", "-o", storeFile).want(t, 2, "the store itself")
	run(t, dir, nil, "state", "export", "-o", "no/such/folder").want(t, 1, "no/such")
	run(t, dir, nil, "state", "export", "-o", "state").want(t, 1, "state")

	// an existing file stays as it is if the export fails
	must.OK(t, os.WriteFile(filepath.Join(dir, storeFile), bytes.Repeat([]byte("no database "), 1000), 0o600))
	run(t, dir, nil, "state", "export", "-o", "real").want(t, 1, "not an a2e store")
	if text, err := os.ReadFile(filepath.Join(dir, "real")); err != nil || string(text) != want {
		t.Errorf("%v, the older export is now:\n%s", err, text)
	}
	run(t, dir, []byte(want), "state", "import", "-").want(t, 1, "not an a2e store")
}

// embeddings starts a server that returns vectors of two dimensions; texts counts the texts that it gets.
func embeddings(t *testing.T) (url string, texts *atomic.Int64) {
	t.Helper()
	texts = new(atomic.Int64)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var req struct {
			Input []string `json:"input"`
		}
		type vector struct {
			Index     int       `json:"index"`
			Embedding []float64 `json:"embedding"`
		}
		answer := map[string][]vector{"data": {}}
		assert.OK(t, json.UnmarshalRead(r.Body, &req))
		for i, text := range req.Input {
			answer["data"] = append(answer["data"], vector{i, []float64{float64(len(text)), 1}})
			texts.Add(1)
		}
		w.Header().Set("Content-Type", "application/json")
		assert.OK(t, json.MarshalWrite(w, answer))
	}))
	t.Cleanup(server.Close)
	return server.URL, texts
}

func TestStateReembed(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	remember(t, dir, "w1", entry("a", "episodic", "the first"), entry("b", "semantic", "the second"))
	run(t, dir, nil, "state", "reembed").want(t, 0, "no embeddings") // there is nothing to do

	url, texts := embeddings(t)
	withEndpoint := func(url, model string) {
		writeConfig(t, dir, stateConfig+"plugins: [{name: m, type: memory, metadata: {embeddings: {url: '"+url+"', model: "+model+", timeout: 20}}}]\n")
	}
	withEndpoint(url, "m1")
	run(t, dir, nil, "memory", "search", "first", "--agent", "w1").want(t, 0, "")
	run(t, dir, nil, "state", "reembed").want(t, 0, "2 entries embedded with m1")
	n := texts.Load()
	assert.That(t, n >= 2, "the endpoint embedded %d texts", n)
	_, text := doctorOfStore(t, dir, 0)
	assert.Contains(t, text, "its vectors were made with m1\n")
	out := run(t, dir, nil, "memory", "search", "first", "--agent", "w1").want(t, 0, "")
	assert.That(t, strings.Contains(out.stdout, "the first"), "after it, search finds:\n%s", out.stdout)

	withEndpoint(url, "m2")
	run(t, dir, nil, "memory", "search", "first", "--agent", "w1").want(t, 1, "a2e state reembed")
	_, text = doctorOfStore(t, dir, 1)
	assert.That(t, strings.Count(text, "wrong ") == 1 && strings.Contains(text, "a2e state reembed"), "%s", text)
	writeConfig(t, dir, stateConfig)
	run(t, dir, nil, "memory", "search", "first", "--agent", "w1").want(t, 0, "")
	run(t, dir, nil, "state", "reembed").want(t, 0, "no embeddings")
	withEndpoint("http://127.0.0.1:1/v1", "m1")
	run(t, dir, nil, "state", "reembed").want(t, 1, "")
	writeConfig(t, dir, stateConfig+"plugins: [{name: t, type: tools}]\n")
	run(t, dir, nil, "state", "reembed").want(t, 3, "memory")
}
