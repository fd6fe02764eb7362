package e2e_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"a2e/host/config"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/poll"
	"a2e/host/hosttest/postgres"
)

// before is the folder in which testdata/before/make.py made the fixture. The state names folders by their absolute
// paths, so it can be used only there.
const before = "/tmp/a2e-before"

// beforeState is the state_dir of the fixture.
const beforeState = before + "/home/.local/state/a2e"

// goneOptions are the warnings about the options in the fixture's config that do not exist any more.
var goneOptions = []string{
	"a2e.yaml:6:3: rotate has no meaning for this host and is ignored: the log grows until another program, such as " +
		"logrotate, moves it; the host then begins a new file",
	"a2e.yaml:9:1: snapshot_store has no meaning for this host and is ignored: there are no snapshots; " +
		"`a2e state export` and `import` save the state and restore it",
	"a2e.yaml:10:1: snapshot_mode has no meaning for this host and is ignored: there are no snapshots; " +
		"`a2e state export` and `import` save the state and restore it",
	"a2e.yaml:31:5: half_life has no meaning for this host and is ignored: evidence counts the same however old it is",
}

// TestStateOfTheVersionBefore: the files of a user of the version before the last wave of changes (commit 40e3b712)
// are opened and used, in place and after a move to PostgreSQL, and nothing is lost. What the user has to act on is
// said.
func TestStateOfTheVersionBefore(t *testing.T) {
	t.Parallel()
	takeBefore(t)
	t.Run("in place", func(t *testing.T) {
		b := unpackBefore(t)
		b.checkFiles()
		b.checkCommands()
		b.checkExport()
		b.checkAnswers()
		b.use()
	})
	t.Run("moved to PostgreSQL", func(t *testing.T) {
		server := postgres.Start(t)
		b := unpackBefore(t)
		file := b.run("state", "export").want(t, 0, "")
		b.warned(file)
		kept := digest(t, beforeState+"/state.db")
		b.address = server.URL(postgres.Superuser) + "&schema=before"
		b.feed(file.stdout, "state", "import", "-").want(t, 0, "imported: ")
		b.checkExport()
		b.checkAnswers()
		b.use()
		assert.Equal(t, digest(t, beforeState+"/state.db"), kept, "the file that was left behind")
	})
}

// takeBefore waits until no other run of this test uses the folder before. At the end of the test the folder is gone.
func takeBefore(t *testing.T) {
	t.Helper()
	name := before + ".lock"
	var lock *os.File
	poll.Within(t, 5*time.Minute, "the end of other runs of this test", func() bool {
		f := must.Get(os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600))(t)
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		mine, there := must.Get(f.Stat())(t), fs.FileInfo(nil)
		if err == nil {
			there, err = os.Stat(name) // the run that had the lock may have removed the file
		}
		if err != nil || !os.SameFile(mine, there) {
			return f.Close() != nil
		}
		lock = f
		return true
	})
	t.Cleanup(func() { must.OK(t, os.RemoveAll(before), os.Remove(name), lock.Close()) })
}

// former is the unpacked fixture.
type former struct {
	t       *testing.T
	url     string // of the embeddings server
	address string // of the state, if it is on a server
	asked   []question
	export  string
	result  string // of the task
}

// question is a request, and what the old binary answered.
type question struct {
	Agent   string         `json:"agent"`
	Command []string       `json:"command"`
	Request map[string]any `json:"request"`
	Answer  any            `json:"answer"`
}

// unpackBefore unpacks the fixture.
func unpackBefore(t *testing.T) *former {
	t.Helper()
	must.OK(t, os.RemoveAll(before))
	server := httptest.NewServer(http.HandlerFunc(letters))
	t.Cleanup(server.Close)
	b := &former{t: t, url: server.URL + "/v1"}
	f := must.Get(os.Open(filepath.Join(root, "testdata/before/state.tar.gz")))(t)
	defer f.Close()
	archive := tar.NewReader(must.Get(gzip.NewReader(f))(t))
	for {
		head, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		must.OK(t, err)
		path := filepath.Join(before, head.Name)
		if head.Typeflag == tar.TypeDir {
			must.OK(t, os.MkdirAll(path, head.FileInfo().Mode()))
			continue
		}
		must.OK(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must.OK(t, os.WriteFile(path, must.Get(io.ReadAll(archive))(t), head.FileInfo().Mode()))
	}
	for line := range strings.Lines(b.file("asked.ndjson")) {
		var q question
		decode(t, line, &q)
		b.asked = append(b.asked, q)
	}
	b.export = b.file("export.ndjson")
	b.result = b.file("task_result.json")
	return b
}

// letters is the embeddings server of make.py: a vector says how often a text has each letter.
func letters(w http.ResponseWriter, r *http.Request) {
	var asked struct {
		Input []string `json:"input"`
		Model string   `json:"model"`
	}
	_ = json.NewDecoder(r.Body).Decode(&asked)
	var data []any
	for i, text := range asked.Input {
		vector := make([]int, 26)
		for n := range vector {
			vector[n] = 1 + strings.Count(strings.ToLower(text), string(rune('a'+n)))
		}
		data = append(data, map[string]any{"index": i, "embedding": vector})
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"object": "list", "model": asked.Model, "data": data})
}

// decode decodes JSON; numbers keep all digits.
func decode(t testing.TB, text string, v any) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	must.OK(t, d.Decode(v))
}

// file returns the text of a file of the fixture.
func (b *former) file(name string) string {
	b.t.Helper()
	return string(must.Get(os.ReadFile(filepath.Join(before, name)))(b.t))
}

// digest returns a digest of a file, or of a folder with all that it has.
func digest(t *testing.T, path string) string {
	t.Helper()
	sum := sha256.New()
	must.OK(t, filepath.WalkDir(path, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		fmt.Fprintf(sum, "%s %s\n", path, d.Type())
		if d.Type().IsRegular() {
			content, err := os.ReadFile(path)
			fmt.Fprintf(sum, "%d %s\n", len(content), content)
			return err
		}
		return nil
	}))
	return fmt.Sprintf("%x", sum.Sum(nil))
}

// command prepares a command in the workspace of the fixture.
func (b *former) command(args ...string) *exec.Cmd {
	cmd := exec.CommandContext(b.t.Context(), hosttest.Program(b.t, "a2e"), args...)
	cmd.Dir = before + "/work"
	cmd.Env = append(os.Environ(), "HOME="+before+"/home", "XDG_STATE_HOME=", "XDG_CONFIG_HOME=", "A2E_CONFIG=",
		"EMBEDDINGS_URL="+b.url, config.EnvState+"="+b.address)
	return cmd
}

// run runs a command to its end.
func (b *former) run(args ...string) outcome { return b.feed("", args...) }

func (b *former) feed(stdin string, args ...string) outcome {
	cmd := b.command(args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	err := cmd.Run()
	return outcome{exitCode(err), stdout.String(), stderr.String()}
}

// warned checks that stderr has the warnings about gone options and these lines, and nothing else.
func (b *former) warned(o outcome, lines ...string) {
	b.t.Helper()
	var want strings.Builder
	for _, text := range goneOptions {
		fmt.Fprintf(&want, "warning: %s\n", text)
	}
	for _, line := range lines {
		fmt.Fprintln(&want, line)
	}
	assert.Equal(b.t, o.stderr, want.String())
}

// talk is a session of an agent with a host.
type talk struct {
	*live
	sent int
}

// begin starts a host, opens a session and waits for the MCP server.
func (b *former) begin(agent string) *talk {
	b.t.Helper()
	l := &talk{live: startCommand(b.t, b.command())}
	l.ask(map[string]any{"type": "handshake/req", "agent_id": agent, "agent_caps": []string{}})
	poll.Eventually(b.t, "the MCP server", func() bool {
		return slices.ContainsFunc(l.ask(map[string]any{"type": "mcp/server/list/req"})["servers"].([]any),
			func(s any) bool { return at(s, "server_id") == "notes" && at(s, "status") == "ready" })
	})
	return l
}

// end closes the host's stdin, and waits for its end.
func (l *talk) end() {
	l.t.Helper()
	l.stdin.Close()
	_, _ = io.Copy(io.Discard, l.stdout)
	must.Equal(l.t, l.exit(), 0, l.stderr.String())
}

// read reads messages up to the first one for which wanted is true.
func (l *talk) read(wanted func(map[string]any) bool) map[string]any {
	l.t.Helper()
	for {
		line, err := l.stdout.ReadString('\n')
		if err != nil { // only then: the host may still write to stderr
			l.t.Fatalf("no further line: %v; stderr: %s", err, l.stderr.String())
		}
		var m map[string]any
		decode(l.t, line, &m)
		if wanted(m) {
			return m
		}
	}
}

// ask sends a request of A2E or, with a method, of JSON-RPC, and returns the answer or the result.
func (l *talk) ask(request map[string]any) map[string]any {
	l.t.Helper()
	l.sent++
	id := fmt.Sprint("q", l.sent)
	message, key := map[string]any{"id": id}, "req_id"
	if request["method"] != nil {
		message["jsonrpc"], key = "2.0", "id"
	}
	for name, value := range request {
		message[name] = value
	}
	l.send(string(must.Get(json.Marshal(message))(l.t)))
	answer := l.read(func(m map[string]any) bool {
		kind, _ := m["type"].(string)
		return m[key] == id && !strings.HasSuffix(kind, "/event") && m["method"] == nil
	})
	if key == "id" {
		must.That(l.t, answer["error"] == nil, "%v: %v", request, answer)
		answer = answer["result"].(map[string]any)
	}
	return answer
}

// asks is ask for a request as JSON.
func (l *talk) asks(format string, args ...any) map[string]any {
	l.t.Helper()
	var request map[string]any
	decode(l.t, fmt.Sprintf(format, args...), &request)
	return l.ask(request)
}

// checkFiles checks what a2e says about the config, the trusted files and the audit log, and that it changes none.
func (b *former) checkFiles() {
	b.t.Helper()
	kept := digest(b.t, before)
	b.warned(b.run("check").want(b.t, 0, ""))
	assert.Contains(b.t, b.run("trust", "--list").want(b.t, 0, "").stdout, before+"/work/a2e.yaml")
	log := b.run("check", "--audit", beforeState+"/audit.jsonl").want(b.t, 0, "").stdout
	assert.Contains(b.t, log, "entries in an unbroken chain")
	assert.Contains(b.t, log, "none is missing, changed or moved")
	assert.Equal(b.t, digest(b.t, before), kept, "what check reads")
}

// checkExport compares the export with that of the old binary, record by record.
func (b *former) checkExport() {
	b.t.Helper()
	want, env := b.records(b.export)
	got, gotEnv := b.records(b.run("state", "export").want(b.t, 0, "").stdout)
	parts := want[0].(map[string]any)
	parts["parts"] = append(parts["parts"].([]any), "multi_agent") // the new part is empty
	assert.Diff(b.t, want, got)
	assert.Diff(b.t, env, gotEnv, sameNumber)
}

// records returns the records of an export, without the counts for half_life. The episodes and steps of environments
// are apart, by time, as each host packs steps into records of its own.
func (b *former) records(export string) (all, env []any) {
	b.t.Helper()
	for line := range strings.Lines(export) {
		var r any
		decode(b.t, line, &r)
		switch at(r, "kind") {
		case "env.episode":
			env = append(env, map[string]any{"at": at(r, "record/created_at"), "episode": r})
			continue
		case "env.experiences":
			for _, step := range at(r, "record/experiences").([]any) {
				env = append(env, map[string]any{"at": at(step, "ts"), "plugin": at(r, "record/plugin"), "step": step})
			}
			continue
		case "learning.component":
			record := at(r, "record").(map[string]any)
			for _, gone := range []string{"calls", "successes", "rewards", "reward_sum", "at"} {
				delete(record, "aged_"+gone)
			}
			delete(record, "durations") // an import encodes them anew; checkDurations reads them
		}
		all = append(all, r)
	}
	slices.SortStableFunc(env, func(x, y any) int { return strings.Compare(fmt.Sprint(x), fmt.Sprint(y)) })
	return all, env
}

// checkAnswers asks what the old binary was asked, and compares the answers.
func (b *former) checkAnswers() {
	b.t.Helper()
	var l *talk
	agent := ""
	for _, q := range b.asked {
		var got any
		if q.Command != nil {
			decode(b.t, b.run(q.Command...).want(b.t, 0, "").stdout, &got)
		} else {
			if q.Agent != agent {
				if l != nil {
					l.end()
				}
				l, agent = b.begin(q.Agent), q.Agent
			}
			got = l.ask(q.Request)
		}
		if at(q.Request, "type") == "learn/stats/req" {
			b.checkDurations(at(q.Answer, "components").([]any), at(got, "components").([]any))
		}
		want, got := settled(q.Answer), settled(got)
		if b.address != "" && at(q.Request, "query") != nil {
			// An import leaves out what is known of typical cosines. Until it is found anew, meanings count more.
			want, got = best(want), best(got)
		}
		assert.Diff(b.t, want, known(want, got), sameNumber)
		if b.t.Failed() {
			b.t.Fatalf("the answer to %v %v differs", q.Request, q.Command)
		}
	}
	l.end()
}

// checkDurations compares the 95th percentiles of components, and removes them. They are within 1 %, or 512 ns for
// short calls. The old binary left out the slowest of a few calls.
func (b *former) checkDurations(want, got []any) {
	b.t.Helper()
	must.Equal(b.t, len(got), len(want))
	for i := range want {
		number := func(of any, name string) float64 {
			n, _ := at(of, name).(json.Number)
			return must.Get(n.Float64())(b.t)
		}
		was, now := number(want[i], "p95_duration_ms"), number(got[i], "p95_duration_ms")
		most := was
		if calls := number(want[i], "calls_total"); calls > 1 {
			most = calls * number(want[i], "avg_duration_ms")
		}
		assert.That(b.t, now >= 0.99*was-0.001 && now <= 1.01*most+0.001, "%v: p95 is %v ms, it was %v",
			at(want[i], "component_name"), now, was)
		delete(want[i].(map[string]any), "p95_duration_ms")
		delete(got[i].(map[string]any), "p95_duration_ms")
	}
}

// settled returns what matters of an answer: without what differs each time, and without what this version says of its
// own tools.
func settled(answer any) any {
	m, is := answer.(map[string]any)
	if !is || m["type"] == nil {
		return answer
	}
	for _, name := range []string{"id", "ts", "req_id"} {
		delete(m, name)
	}
	if obs, is := m["obs"].(map[string]any); is {
		delete(obs, "created_at")
	}
	if m["type"] == "tool/list/resp" {
		tools := map[string]any{}
		for _, tool := range m["tools"].([]any) {
			name := at(tool, "name").(string)
			if tools[name] = tool; !slices.Contains([]string{"glob", "notes__stay", "word_count"}, name) {
				tools[name] = at(tool, "task")
			}
		}
		return tools
	}
	return m
}

// sameNumber compares numbers by their values: 0.5 is 0.50.
var sameNumber = cmp.Comparer(func(x, y json.Number) bool {
	a, isA := new(big.Rat).SetString(x.String())
	b, isB := new(big.Rat).SetString(y.String())
	return isA && isB && a.Cmp(b) == 0
})

// best returns the best entry that a search has found, without its score.
func best(answer any) any {
	found, _ := at(answer, "entries").([]any)
	if len(found) == 0 {
		return nil
	}
	first := found[0].(map[string]any)
	delete(first, "score")
	return first
}

// known returns got without the members that want does not have: this version may say more.
func known(want, got any) any {
	switch want := want.(type) {
	case map[string]any:
		if got, is := got.(map[string]any); is {
			less := map[string]any{}
			for name, value := range got {
				if old, is := want[name]; is {
					less[name] = known(old, value)
				}
			}
			return less
		}
	case []any:
		if got, is := got.([]any); is && len(got) == len(want) {
			less := []any{}
			for i := range got {
				less = append(less, known(want[i], got[i]))
			}
			return less
		}
	}
	return got
}

// use goes on with what the old host left, whatever the engine.
func (b *former) use() {
	b.t.Helper()
	snapshots := digest(b.t, beforeState+"/snapshots.db") + digest(b.t, beforeState+"/sessions")
	folder := b.checkpoints()
	checkpoints := digest(b.t, folder)

	b.useChains()
	l := b.begin("ada")
	b.usePlan(l)
	b.useLearning(l)
	b.useEpisodes(l)
	b.useTalk(l)
	l.send(`{"type":"TASK_DISPATCH","protocol_version":"2.0","task":{"task_id":"t1"},"brief":"this has two words more"}`)
	var want any
	decode(b.t, b.result, &want)
	assert.Diff(b.t, want, any(l.read(func(m map[string]any) bool { return m["type"] == "TASK_RESULT" })))
	skill := l.asks(`{"type":"skill/call/req","name":"shout","arguments":{"text":"quiet"}}`)
	assert.Contains(b.t, fmt.Sprint(skill), "QUIET")
	l.asks(`{"type":"tool/call/req","tool_name":"write_file","arguments":{"path":"readme.txt","content":"third\n"}}`)
	l.end()
	b.checkLog(l.stderr.String(), folder)

	b.useServers()
	b.run("undo").want(b.t, 0, "")
	assert.Equal(b.t, b.file("work/readme.txt"), "second line\n")
	audit := b.run("check", "--audit", beforeState+"/audit.jsonl").want(b.t, 0, "").stdout
	assert.Contains(b.t, audit, "none is missing, changed or moved")
	now := digest(b.t, beforeState+"/snapshots.db") + digest(b.t, beforeState+"/sessions")
	assert.Equal(b.t, now, snapshots, "the named snapshots")
	assert.Equal(b.t, digest(b.t, folder), checkpoints, "the old checkpoints")
}

// checkpoints returns the folder of the checkpoints that the old host made.
func (b *former) checkpoints() string {
	b.t.Helper()
	for _, path := range must.Get(filepath.Glob(beforeState + "/checkpoints/*"))(b.t) {
		if filepath.Ext(path) == "" {
			return path
		}
	}
	b.t.Fatal("the fixture has no checkpoints")
	return ""
}

// checkLog checks that the log of a host has one line for each thing that the user has to act on, and no other.
func (b *former) checkLog(log, checkpoints string) {
	b.t.Helper()
	want := append(slices.Clone(goneOptions), "checkpoints: those of an earlier version are not read; remove the folder "+
		"when they are not needed any more "+checkpoints, "a tool of the MCP server is withheld: it has changed since it "+
		"was approved; `a2e mcp approve notes` accepts it")
	var got []string
	for line := range strings.Lines(log) {
		var entry map[string]any
		decode(b.t, line, &entry)
		folder, _ := entry["folder"].(string)
		got = append(got, strings.TrimSpace(fmt.Sprint(entry["message"], " ", folder)))
	}
	slices.Sort(got)
	slices.Sort(want)
	assert.Slice(b.t, got, want)
}

// checkCommands checks what commands say about things that are gone, before any host has run.
func (b *former) checkCommands() {
	b.t.Helper()
	old := b.checkpoints()
	b.warned(b.run("checkpoints", "list").want(b.t, 0, ""),
		"no checkpoint; those of an earlier version, in "+old+", are not read")
	b.warned(b.run("undo").want(b.t, 1, ""), "a2e: there are no checkpoints of this workspace (.); those of an "+
		"earlier version, in "+old+", are not read")
	for line, says := range map[string]string{
		"snapshot restore monday": "a2e: there is no command snapshot any more: `a2e state export -o FILE` saves the " +
			"state, `a2e state import --replace FILE` restores it; see a2e --help\n",
		"bench": "a2e: there is no command bench any more: in a clone of the source, `make bench` measures a host; " +
			"see a2e --help\n",
	} {
		assert.Equal(b.t, b.run(strings.Fields(line)...).want(b.t, 2, "").stderr, says)
	}
}

// useChains resumes the chain that was killed, one that failed and one that waits, and uses a cached output.
func (b *former) useChains() {
	b.t.Helper()
	said := b.run("chain", "resume", "killed", "-q").want(b.t, 1, "").stderr
	assert.Contains(b.t, said, "under-way")
	out := b.run("chain", "resume", "killed", "-q", "--resolve", "under-way=done").want(b.t, 0, "").stdout
	assert.Equal(b.t, out, "{\n  \"text\": \"made.txt\"\n}\n")

	must.OK(b.t, os.WriteFile(before+"/work/later.txt", []byte("now\n"), 0o600))
	out = b.run("chain", "resume", "failed", "-q").want(b.t, 0, "").stdout
	assert.Contains(b.t, out, `"content": "now\n"`)

	b.run("chain", "approve", "waits").want(b.t, 0, "")
	out = b.run("chain", "resume", "waits", "-q", "--timeout", "60").want(b.t, 0, "").stdout
	assert.Equal(b.t, out, "{\n  \"text\": \"published\"\n}\n")

	var all []any
	decode(b.t, b.run("chain", "list", "--json").want(b.t, 0, "").stdout, &all)
	must.Equal(b.t, len(all), 4)
	for _, chain := range all {
		assert.That(b.t, at(chain, "state") == "done" && at(chain, "done") == at(chain, "nodes"), "%v", chain)
	}
}

// usePlan does the task that is ready, and looks at the board.
func (b *former) usePlan(l *talk) {
	b.t.Helper()
	ready := at(l.asks(`{"type":"planning/task/list","ready":true}`), "tasks").([]any)
	must.Equal(b.t, len(ready), 1)
	change := map[string]any{
		"type": "planning/task/update", "plan_id": at(ready[0], "plan_id"), "task_id": at(ready[0], "task_id"),
		"if_version": at(ready[0], "version"), "status": "done", "comment": "也 done",
	}
	answer := l.ask(change)
	want := ready[0].(map[string]any)
	want["status"], want["version"] = "done", json.Number("3")
	got := answer["task"].(map[string]any)
	assert.Equal(b.t, at(got, "comments/0/text"), any("也 done"))
	for _, name := range []string{"comments", "updated_at"} {
		delete(want, name)
		delete(got, name)
	}
	assert.Diff(b.t, want, got)
	next := l.asks(`{"type":"planning/task/list","ready":true}`)
	assert.Equal(b.t, at(next, "tasks/0/title"), any("tell the world"))
	board := l.asks(`{"type":"planning/plan/board","plan_id":%q,"format":"markdown"}`, change["plan_id"])["text"].(string)
	assert.Contains(b.t, board, "- [x] tag the commit")
	assert.Contains(b.t, board, "- [ ] tell the world")
}

// useLearning calls a group, whose tools have a past, and takes back a refinement.
func (b *former) useLearning(l *talk) {
	b.t.Helper()
	calls := func() (of map[string]int64) {
		of = map[string]int64{}
		for _, c := range l.asks(`{"type":"learn/stats/req"}`)["components"].([]any) {
			of[at(c, "component_name").(string)] = must.Get(at(c, "calls_total").(json.Number).Int64())(b.t)
		}
		return of
	}
	want := calls()
	answer := l.asks(`{"type":"tool/call/req","tool_name":"look","arguments":{"pattern":"*.txt"}}`)
	must.That(b.t, answer["group"] == "look" && at(answer, "data/success") == true, "%v", answer)
	want[at(answer, "data/tool_name").(string)]++
	assert.Diff(b.t, want, calls())

	for _, entry := range l.asks(`{"type":"learn/refinement/history/req"}`)["entries"].([]any) {
		if at(entry, "proposal_id") == "kept" {
			answer = l.asks(`{"type":"learn/refinement/rollback/req","refinement_id":%q}`, at(entry, "refinement_id"))
			assert.Equal(b.t, answer["error"], any(""))
		}
	}
	tools := settled(l.asks(`{"type":"tool/list/req"}`))
	assert.That(b.t, at(tools, "glob/description") != "Finds files, refined", "the text is still refined")
}

// useEpisodes plays the saved episodes to their ends.
func (b *former) useEpisodes(l *talk) {
	b.t.Helper()
	ids := map[string]string{} // by plugin
	for line := range strings.Lines(b.export) {
		var r any
		if decode(b.t, line, &r); at(r, "kind") == "env.episode" {
			ids[at(r, "record/plugin").(string)] = at(r, "record/episode_id").(string)
		}
	}
	step := func(plugin, action string) (obs any) {
		return l.asks(`{"type":"env/step/req","episode_id":%q,"action":%s}`, ids[plugin], action)["obs"]
	}
	for n, done := range []bool{false, false, true} {
		obs := step("count", `{"type":"inc"}`)
		assert.That(b.t, at(obs, "state/count") == json.Number(fmt.Sprint(3+n)) && at(obs, "done") == done, "%v", obs)
	}
	var obs any
	for range 20 { // the maze has 20 cells
		plan := l.asks(`{"type":"env/plan/req","episode_id":%q}`, ids["maze"])
		obs = step("maze", string(must.Get(json.Marshal(at(plan, "suggested_actions/0")))(b.t)))
		if at(obs, "done") == true {
			break
		}
	}
	assert.That(b.t, at(obs, "done") == true && at(obs, "reward") == json.Number("1"), "%v", obs)
	obs = step("task", `{"type":"read_file","path":"answer.txt"}`)
	assert.Equal(b.t, at(obs, "state/last/data/content"), any("5\n"))
	step("task", `{"type":"write_file","path":"answer.txt","content":"4\n"}`)
	obs = step("task", `{"type":"submit"}`)
	assert.That(b.t, at(obs, "done") == true && at(obs, "reward") == json.Number("1"), "%v", obs)
}

// useTalk goes on with a conversation.
func (b *former) useTalk(l *talk) {
	b.t.Helper()
	talk := at(l.asks(`{"method":"history.list","params":{}}`), "sessions").([]any)[0]
	var session any
	for _, q := range b.asked {
		if q.Request["method"] == "session.get" {
			session = at(q.Request, "params/session_id")
		}
	}
	l.asks(`{"method":"session.send","params":{"session_id":%q,"text":"one more"}}`, session)
	l.read(func(m map[string]any) bool { return m["method"] == "event" && at(m, "params/payload/pending") == false })
	messages := l.asks(`{"method":"history.get","params":{"id":%q}}`, at(talk, "id"))["messages"].([]any)
	must.Equal(b.t, len(messages), 8)
	said := []string{"how many words are these", "5", "你好 \U0001f600", "20", "and three words", "26", "one more"}
	for i, text := range said {
		assert.Equal(b.t, at(messages[i], "text"), any(text))
	}
}

// useServers approves the tool that has changed since it was approved by the old host.
func (b *former) useServers() {
	b.t.Helper()
	b.warned(b.run("mcp", "call", "notes__vary").want(b.t, 1, ""), `a2e: tool "notes__vary" has changed since it was `+
		"approved; `a2e mcp approve notes` accepts it")
	difference := b.run("mcp", "approve", "notes").want(b.t, 0, "")
	assert.Contains(b.t, difference.stdout+difference.stderr, "Says what it says")
	assert.Contains(b.t, b.run("mcp", "call", "notes__vary").want(b.t, 0, "").stdout, "noted")
}
