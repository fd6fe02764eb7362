package e2e_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/cli/record"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// served runs a2e with lines as its stdin, and returns its stdout and stderr.
func served(t *testing.T, dir string, env []string, lines string, args ...string) (stdout, stderr string) {
	t.Helper()
	cmd := command(t, dir, "./a2e", args...)
	cmd.Env = append(cmd.Env, env...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(lines), &out, &errs
	err := cmd.Run()
	must.That(t, err == nil, "%v\n%s", err, errs.String())
	return out.String(), errs.String()
}

// entriesOf reads a record and checks that its numbers are in order.
func entriesOf(t *testing.T, file string) (all []*record.Entry) {
	t.Helper()
	_, damage, err := record.Read(file, func(e *record.Entry) {
		all = append(all, e)
		assert.Equal(t, e.N, int64(len(all)), "the number of an entry")
		assert.That(t, e.TS > 1e9, "the time of entry %d is %v", e.N, e.TS)
	})
	must.OK(t, err)
	assert.Equal(t, damage, record.Damage{}, "damage")
	return all
}

// side returns the lines of a record in one direction.
func side(all []*record.Entry, dir record.Dir) (lines []string) {
	for _, e := range all {
		switch {
		case e.Dir != dir:
		case e.Text != nil:
			lines = append(lines, *e.Text)
		default:
			lines = append(lines, string(e.Msg))
		}
	}
	return lines
}

// TestRecordHoldsEachLineOfEachProtocol: a record has each line that the host receives and each that it sends, in
// order.
func TestRecordHoldsEachLineOfEachProtocol(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args, lines string
		least       int // number of lines that the host sends
	}{
		{"serve", hello + "\n" + call("1", "echo", `{"text":"a"}`) + "\n" +
			`{"jsonrpc":"2.0","id":7,"method":"rpc.handshake"}` + "\nno message\n", 4},
		{"serve", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`, 1},
		{"mcp serve", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`, 1},
		{"worker --no-contract", `{"type":"TASK_DISPATCH","protocol_version":"2.0","task":{"task_id":"t1"},"brief":"count me"}`, 2},
	} {
		dir := workDir(t)
		args := append(strings.Fields(c.args), "--record", "r.ndjson")
		if args[0] == "worker" {
			args = append(args, "--", "wc", "-w")
		}
		out, _ := served(t, dir, nil, c.lines, args...)
		all := entriesOf(t, filepath.Join(dir, "r.ndjson"))
		assert.Equal(t, strings.Join(side(all, record.In), "\n"), strings.TrimSpace(c.lines), "%s: what came", c.args)
		assert.That(t, all[len(all)-1].Dir == record.Out, "%s: the last answer stands before its request", c.args)
		assert.Equal(t, strings.Join(side(all, record.Out), "\n")+"\n", out, "%s: what went", c.args)
		assert.That(t, strings.Count(out, "\n") >= c.least, "%s answers:\n%s", c.args, out)
		info := must.Get(os.Stat(filepath.Join(dir, "r.ndjson")))(t)
		assert.Equal(t, info.Mode().Perm(), 0o600, "who may read it")
	}
}

// confidential are texts that mark their own secrets, for example by a key. Each secret has "canary" in it, which may
// be escaped; inClear finds those that are not redacted.
var (
	confidential = []string{
		`{"clientSecret":"canary-51","ID_TOKEN":"canary-52","pass":"canary-53",` +
			`"auth":{"type":"bearer","x":"canary-54"},"secrets":["canary-55",{"main":"canary-56"}],` +
			`"env":{"FOO":"canaryQ2mXv9Rt4Lp8Wc3Yb7Z","DB_PWD":"canary-57"},"headers":{"Cookie":"canary-58"},` +
			`"environment":["MY_KEY=canary-59",{"name":"apiKey","value":"canary-60"}],"u":"https://a:canary-64@h/",` +
			`"args":["--token","canary-61","--api-key=canary-62","-H","Authorization: Bearer canary-63"]}`,
		`/tool {"env":{"API_TOKEN":"canary-71"},"args":["--token","canary-72"]} of {1} and {"apiKey":"c\u0061nary-73"}`,
		`/tool API_TOKEN=canary-74 env={"FOO":"canaryB4kZt8Qw2Hn6Jd9Xs5Vp"} passwd="canary-75 two canary-76"`,
		"run it with\tDB_PASS='canary-77'\nor --token canary-78 at https://h/?page=1&token=canary-79;canary-80",
		`https://h/?x=%zz&sig=canary-81%zz https://a:canary-82%zz@h/`,
		`{"text":"{\"headers\":{\"Authorization\":\"Bearer canary-83\"}}"}`,
		`{"a" 1,"id_token":"canary-84"}`,
		`{"credentials":{"main":["canary-85","canary-86`,
	}
	inClear = regexp.MustCompile(`canary|nary-`)
)

// TestHistoryAndLogsHoldNoSecret: the worker and the client get texts with secrets as they are; the history and the
// logs hold them without the secrets.
func TestHistoryAndLogsHoldNoSecret(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	writeFile(t, dir, "junk", strings.Join(confidential, "\n")+"\n")
	writeConfig(t, dir, "state_dir: state\nmcpServers:\n"+
		"  junk: {command: sh, args: [-c, 'cat junk; cat junk >&2; cat >/dev/null']}\n"+
		"plugins: {multi_agent: {workers: [{name: w, command: [cat], contract: false}]}}\n")
	host := start(t, dir, "serve", "--log-level", "debug")
	answer := func(until string) string {
		for {
			line, err := host.stdout.ReadString('\n')
			must.That(t, err == nil, "no %s: %v", until, err)
			if strings.Contains(line, until) {
				return line
			}
		}
	}
	host.send(`{"jsonrpc":"2.0","id":"c","method":"session.create","params":{"title":"token=canary-91"}}`)
	var made struct {
		Result struct {
			ID string `json:"session_id"`
		} `json:"result"`
	}
	must.OK(t, json.Unmarshal([]byte(answer(`"id":"c"`)), &made))
	for _, text := range confidential {
		params := fmt.Appendf(nil, `{"session_id":%q,"text":`, made.Result.ID)
		host.send(`{"jsonrpc":"2.0","id":"s","method":"session.send","params":` +
			string(protocol.AppendString(params, text)) + "}}")
		said := answer(`"assistant"`)
		assert.That(t, inClear.MatchString(said), "the client reads %s", said)
		answer(`"pending":false`) // until then the session is busy, and refuses the next text
	}
	host.send(`{"jsonrpc":"2.0","id":"g","method":"history.get","params":{"last":true}}`)
	history := answer(`"id":"g"`)
	for _, kept := range []string{
		`/tool {\"env\":{\"API_TOKEN\":\"[redacted]\"},`, `of {1} and {\"apiKey\":\"[redacted]\"}`,
		`"title":"token=[redacted]"`,
	} {
		assert.Contains(t, history, kept)
	}
	must.OK(t, host.stdin.Close())
	_, _ = io.Copy(io.Discard, host.stdout)
	assert.Equal(t, host.exit(), 0, "the host ends with")
	for line := range strings.Lines(history + host.stderr.String()) {
		assert.That(t, !inClear.MatchString(line), "a secret is in %s", line)
	}
	must.OK(t, filepath.WalkDir(filepath.Join(dir, "state"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		kept := must.Get(os.ReadFile(path))(t)
		assert.That(t, !inClear.Match(kept), "a secret is in %s: %q", path, inClear.FindAll(kept, -1))
		return nil
	}))
}

// TestRecordHoldsNoSecret: a record holds no secret, from whatever source and however it is written.
func TestRecordHoldsNoSecret(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	writeConfig(t, dir, "auth_token: ${TOKEN_OF_HOST}\nmcpServers:\n"+
		"  files: {command: ./nothing, env: {API_KEY: canary-mcp-31, OTHER_PASS: canary+ünlike/33}}\n")
	lines := []string{
		`{"type":"handshake/req","id":"1","agent_caps":["tools"],"auth_token":"canary-wrong-11"}`,
		`{"type":"handshake/req","id":"2","agent_caps":["tools"], "auth_token" : "canary-right-12"}`,
		call("3", "echo", `{"text":"canary-wrong-11 canary-right-12 canary-env-21 canary-mcp-31"}`),
		call("4", "echo", `{"text":"c\u0061nary-env-21 canary+\u00fcnlike\/33"}`),
		call("5", "nothing", `{"GITHUB_TOKEN":"canary-arg-41","api-key":"canary-arg-42"}`),
		call("6", "echo", `{"text":"canary-arg-41 canary-arg-42"}`),
		`{"jsonrpc":"2.0","id":7,"method":"rpc.handshake","params":{"auth_token":"canary-rpc-13"}}`,
		`{"type":"TASK_DISPATCH","protocol_version":"2.0","auth_token":"canary-fleet-14","task":{"task_id":"t"},"brief":"x"}`,
		call("9", "echo", confidential[0]),
		call("10", "echo", `{"text":"bearer `+
			`canary-51 canary-52 canary-53 canary-54 canary-56 canary-61 canary-63 canary-64"}`),
		`{"type":"handshake/req","id":"8","auth_token":"canary-half-15`,
		`{"type":"x","id":"9","clientSecret" : "canary-half-16`,
		`canary-env-21 is not a message, nor is canary-right-12`,
	}
	for i, text := range confidential {
		lines = append(lines, call(fmt.Sprint("c", i), "echo",
			string(protocol.AppendString([]byte(`{"text":`), text))+"}"))
	}
	env := []string{"TOKEN_OF_HOST=canary-right-12", "SOME_SECRET=canary-env-21"}
	served(t, dir, env, strings.Join(lines, "\n"), "serve", "--record", "r.ndjson")
	text := string(must.Get(os.ReadFile(filepath.Join(dir, "r.ndjson")))(t))
	for line := range strings.Lines(text) {
		assert.That(t, !inClear.MatchString(line), "a secret is in %s", line)
	}
	all := entriesOf(t, filepath.Join(dir, "r.ndjson"))
	assert.Equal(t, len(side(all, record.In)), len(lines), "lines")
	assert.Contains(t, text, `{"text":"[redacted] [redacted] [redacted] [redacted]"}`)
	assert.Contains(t, text, `{"text":"bearer`+strings.Repeat(" [redacted]", 8)+`"}`)
}

// TestRecordLeavesOtherFilesAlone: a record never replaces another file, and an earlier record is kept.
func TestRecordLeavesOtherFilesAlone(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	must.OK(t, os.WriteFile(at("notes.txt"), []byte("mine"), 0o644), os.Symlink("elsewhere", at("link")),
		os.Mkdir(at("folder"), 0o755))
	for name, says := range map[string]string{
		"notes.txt": "not a record", "link": "not a regular file",
		"folder": "not a regular file", "no/such": "no such file",
	} {
		cmd := command(t, dir, "./a2e", "serve", "--record", name)
		out, err := cmd.CombinedOutput()
		assert.That(t, exitCode(err) == 3 && strings.Contains(string(out), says), "--record %s: %v\n%s", name, err, out)
	}
	assert.Equal(t, string(must.Get(os.ReadFile(at("notes.txt")))(t)), "mine", "the file")
	for _, id := range []string{"first", "second"} {
		served(t, dir, nil, `{"type":"ping","id":"`+id+`"}`, "serve", "--record", "r.ndjson")
	}
	for name, id := range map[string]string{"r.ndjson": "second", "r.ndjson.1": "first"} {
		assert.Contains(t, side(entriesOf(t, at(name)), record.In)[0], id, "%s", name)
	}
}

// TestRecordCutsLongLines: of a line above the limit, which the host refuses, the record has the head and the size.
func TestRecordCutsLongLines(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	writeConfig(t, dir, "limits: {max_line_bytes: 70000}\n")
	long := call("1", "echo", `{"text":"`+strings.Repeat("ä", 50_000)+`"}`)
	served(t, dir, nil, long+"\n"+strings.Repeat("?", 69_000)+"\n"+`{"type":"ping","id":"2"}`, "serve", "--record",
		"r.ndjson")
	all := entriesOf(t, filepath.Join(dir, "r.ndjson"))
	lines := side(all, record.In)
	must.Equal(t, len(lines), 3, "lines that came")
	assert.Equal(t, len(lines[1]), 4096, "the head of a line that is not JSON")
	// The answer to a line that is too long may come before the end of the line.
	first := slices.IndexFunc(all, func(e *record.Entry) bool { return e.Dir == record.In })
	whole := all[first].Cut && len(lines[0]) > 1000 && len(lines[0]) <= 4096
	assert.That(t, whole && strings.HasPrefix(long, lines[0]), "the head is %q", lines[0])
	assert.Contains(t, lines[2], `"ping"`)
	assert.Contains(t, string(must.Get(os.ReadFile(filepath.Join(dir, "r.ndjson")))(t)),
		fmt.Sprintf(`"cut":true,"size":%d}`, len(long)+1))
}

// recorded makes a record of lines and returns its path. Each group is sent when all groups before are answered.
func recorded(t *testing.T, dir string, groups ...[]string) string {
	t.Helper()
	host := start(t, dir, "serve", "--record", "r.ndjson")
	for _, lines := range groups {
		host.send(lines...)
		for _, line := range lines {
			var m struct {
				ID string `json:"id"`
			}
			must.OK(t, json.Unmarshal([]byte(line), &m))
			host.answer(m.ID)
		}
	}
	must.OK(t, host.stdin.Close())
	_, _ = io.Copy(io.Discard, host.stdout)
	assert.Equal(t, host.exit(), 0, "the host ends with")
	return filepath.Join(dir, "r.ndjson")
}

// replayed plays a record, checks the exit status, and returns what is printed.
func replayed(t *testing.T, dir string, code int, args ...string) (stdout, stderr string) {
	t.Helper()
	cmd := command(t, dir, "./a2e", append([]string{"replay", "r.ndjson"}, args...)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	assert.That(t, exitCode(err) == code, "replay %q ends with %v, should be %d\n%s%s", args, err, code, out.String(),
		errs.String())
	return out.String(), errs.String()
}

// TestReplayOfASession: the replay of a session has the recorded answers. Its requests name the ids that the host
// makes now, and it waits for the end of a process before the request that asks for the status.
func TestReplayOfASession(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	host := start(t, dir, "serve", "--record", "r.ndjson")
	host.send(`{"type":"handshake/req","id":"h","agent_caps":["proc","planning"]}`,
		`{"type":"planning/plan/create","id":"p","name":"release"}`,
		`{"type":"proc/spawn/req","id":"s","cmd":["echo","one"]}`)
	plan, proc := "", ""
	for ended := false; plan == "" || proc == "" || !ended; {
		m := host.next()
		switch data, _ := m["data"].(map[string]any); {
		case m["req_id"] == "p":
			must.Equal(t, m["type"], any("planning/plan/create/resp"))
			plan = fmt.Sprint(m["plan_id"])
		case m["type"] == "proc/spawn/resp":
			proc = fmt.Sprint(m["proc_id"])
		default:
			ended = data["code"] != nil
		}
	}
	host.send(`{"type":"planning/plan/board","id":"g","plan_id":"` + plan + `"}`)
	host.answer("g")
	host.send(`{"type":"proc/status/req","id":"q","proc_id":"` + proc + `"}`)
	host.answer("q")
	must.OK(t, host.stdin.Close())
	host.exit()
	out, notes := replayed(t, dir, 0)
	assert.Equal(t, out+notes, "5 requests, all answered as recorded\n")
	out, _ = replayed(t, dir, 0, "--json")
	assert.That(t, jsontext.Value(out).IsValid() && strings.Contains(out, `"same": 5`), "the report:\n%s", out)
}

// TestReplayTellsDifferences: replay names the field of each answer that differs, and --ignore leaves fields out.
func TestReplayTellsDifferences(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	file := filepath.Join(dir, "f.txt")
	must.OK(t, os.WriteFile(file, []byte("before"), 0o644))
	recorded(t, dir, []string{hello}, []string{
		call("1", "read_file", `{"path":"f.txt"}`),
		call("2", "echo", `{"text":"same"}`),
	})
	must.OK(t, os.WriteFile(file, []byte("behind"), 0o644))
	out, notes := replayed(t, dir, 1)
	assert.Equal(t, out,
		"entry 3, tool/call/req read_file (id 1)\n  data.data.content: was \"before\", is now \"behind\"\n")
	assert.Contains(t, notes, "1 of 3 requests answered differently")
	replayed(t, dir, 0, "--ignore", "data.data.content")
	replayed(t, dir, 0, "--ignore", "content")
	_, notes = replayed(t, dir, 1, "--ignore", "data.text")
	assert.Contains(t, notes, "--ignore data.text: nothing differs there")
	must.OK(t, os.Remove(file))
	out, _ = replayed(t, dir, 1)
	assert.Contains(t, out, `  answer: was "tool/call/resp", is now "error tool_error: `)
}

// A host that dies, says nothing or cannot be started ends a replay in bounded time.
func TestReplayAgainstHostsThatFail(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	recorded(t, dir, []string{hello}, []string{call("1", "echo", `{"text":"a"}`)},
		[]string{call("2", "echo", `{"text":"b"}`)})
	for _, c := range []struct {
		says string
		args []string
	}{
		{"no answer; the host ended with exit code 3", []string{"--", "sh", "-c", "read line; exit 3"}},
		{"no answer within 50ms", []string{"--timeout", "0.05", "--", "sh", "-c", "cat >/dev/null"}},
		{"no answer within 50ms", []string{"--timeout", "0.05", "--", "sh", "-c", "while :; do echo noise; done"}},
	} {
		out, _ := replayed(t, dir, 1, c.args...)
		assert.Contains(t, out, c.says, "%q", c.args)
	}
	_, notes := replayed(t, dir, 1, "--", "./no-such-host")
	assert.Contains(t, notes, "no-such-host")
}

// TestReplayOfDamagedRecords: a record that was cut off is played as far as it can be read. A file that is not a
// record is refused.
func TestReplayOfDamagedRecords(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	file := recorded(t, dir, []string{hello}, []string{call("1", "echo", `{"text":"a"}`)})
	whole := must.Get(os.ReadFile(file))(t)
	must.OK(t, os.WriteFile(file, whole[:len(whole)-20], 0o600))
	out, notes := replayed(t, dir, 0)
	assert.Equal(t, out, "1 request, all answered as recorded\n")
	for _, want := range []string{"1 lines of the record cannot be read", "1 requests have no answer in the record"} {
		assert.Contains(t, notes, want)
	}
	for text, says := range map[string]string{
		"": "not a record", "{}\n": "not a record",
		`{"a2e_record":9,"version":"v9"}`: "has the format 9",
	} {
		must.OK(t, os.WriteFile(file, []byte(text), 0o600))
		_, notes := replayed(t, dir, 1)
		assert.Contains(t, notes, says)
	}
}

// TestReplayBringsTheToken: a record does not hold the token of the handshake. The replay sends the token of the
// config instead, in each protocol.
func TestReplayBringsTheToken(t *testing.T) {
	t.Parallel()
	const initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18",` +
		`"capabilities":{},"clientInfo":{"name":"t","version":"1"},"_meta":{"a2e/auth_token":"canary-token-1"}}}`
	const modern = `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{` +
		`"a2e/auth_token":"canary-token-1",` +
		`"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{},` +
		`"io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"}}}}`
	for _, line := range []string{
		`{"type":"handshake/req","id":"1","agent_caps":["tools"],"auth_token":"canary-token-1"}`,
		`{"jsonrpc":"2.0","id":1,"method":"rpc.handshake","params":{"auth_token":"canary-token-1"}}`,
		`{"type":"TASK_DISPATCH","protocol_version":"2.0","auth_token":"canary-token-1","brief":"x",` +
			`"task":{"task_id":"t"}}`,
		initialize, modern,
	} {
		dir := workDir(t)
		writeConfig(t, dir, "auth_token: canary-token-1\n")
		served(t, dir, nil, line, "serve", "--record", "r.ndjson")
		text := string(must.Get(os.ReadFile(filepath.Join(dir, "r.ndjson")))(t))
		for _, part := range []string{"canary", "unauthorized"} {
			assert.That(t, !strings.Contains(text, part), "%s is in the record\n%s", part, text)
		}
		out, _ := replayed(t, dir, 0)
		assert.Equal(t, out, "1 request, all answered as recorded\n", "%s", line)
	}
}

const recordHead = `{"a2e_record":1,"version":"1.0.0","started":1795440000,"workspace":"/work"}` + "\n"

// TestReplayFillsNoOtherField: the replay puts the token only into handshakes. In a record that others wrote, a
// member of the same name elsewhere could pass the token on.
func TestReplayFillsNoOtherField(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	writeConfig(t, dir, "auth_token: canary-token-1\n")
	const shell = `"cmd":["sh","-c","echo \"$auth_token\" >> stolen"],"env":{"auth_token":"[redacted]"}`
	lines := []string{
		`{"type":"handshake/req","id":"1","agent_caps":["tools","proc"],"x":{"auth_token":"[redacted]"},` +
			`"auth_token":"[redacted]"}`,
		`{"type":"proc/spawn/req","id":"2",` + shell + `,"auth_token":"[redacted]"}`,
		`{"type":"tool/call/req","id":"3","tool_name":"write_file","arguments":{"path":"x","auth_token":"[redacted]"}}`,
		`{"type":"tool/call/req","id":"4","tool_name":"run_command","arguments":{` +
			strings.ReplaceAll(shell, "cmd", "command") + `}}`,
	}
	record := recordHead
	add := func(dir, format string, args ...any) {
		record += fmt.Sprintf(`{"ts":1795440000,"dir":"`+dir+`","msg":`+format+"}\n", args...)
	}
	for i, line := range lines {
		add("in", "%s", line)
		add("out", `{"type":"x","id":"r","req_id":"%d"}`, i+1)
		if i == 1 { // the replay waits for this event, so the program ends before the next one runs
			add("out", `{"type":"proc/read/event","req_id":"2","data":{"code":0}}`)
		}
	}
	must.OK(t, os.WriteFile(filepath.Join(dir, "r.ndjson"), []byte(record), 0o600))
	out, _ := replayed(t, dir, 1)
	assert.Contains(t, out, `"handshake/resp"`)
	assert.Equal(t, string(must.Get(os.ReadFile(filepath.Join(dir, "stolen")))(t)), "[redacted]\n[redacted]\n")
}

// TestInspectRunsAHost: the page of `a2e inspect` shows the host that it starts, but not the secrets. A signal ends
// both.
func TestInspectRunsAHost(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	writeConfig(t, dir, "auth_token: canary-token-1\n")
	cmd := command(t, dir, "./a2e", "inspect")
	cmd.Env = append(cmd.Env, "MY_SECRET=canary-env-2")
	page := startCommand(t, cmd)
	line := must.Get(page.stdout.ReadString('\n'))(t)
	url, _, _ := strings.Cut(line, " ")
	must.That(t, strings.HasPrefix(url, "http://127.0.0.1:") && strings.Contains(line, "Ctrl+C"), "the address is %q",
		line)
	post := func(body string) {
		resp := must.Get(http.Post(url+"api/send", "application/json", strings.NewReader(body)))(t)
		must.OK(t, resp.Body.Close())
		assert.Equal(t, resp.StatusCode, 204, "status")
	}
	resp := must.Get(http.Get(url + "api/stream"))(t)
	defer resp.Body.Close()
	stream := bufio.NewReader(resp.Body)
	await := func(part string) {
		t.Helper()
		for text := ""; !strings.Contains(text, part); {
			text = must.Get(stream.ReadString('\n'))(t)
			assert.That(t, !strings.Contains(text, "canary"), "a secret is in %s", text)
		}
	}
	post(`{"type":"handshake/req","id":"1","agent_caps":["tools"],"auth_token":"canary-token-1"}`)
	await(`"ok":true`)
	post(call("2", "echo", `{"text":"canary-token-1 canary-env-2"}`))
	await(`"req_id":"2"`)
	must.OK(t, page.cmd.Process.Signal(os.Interrupt))
	begun := time.Now()
	assert.Equal(t, page.exit(), 0, "inspect ends with")
	t.Logf("it took %v", time.Since(begun))
	hosttest.Eventually(t, "the host has ended", func() bool { return processes(t, dir) == 0 })
}

// TestInspectOpensThePageInPrivate: --open passes the secret address to the browser in a private file, as every user
// of the machine can read the arguments of a program. The file is removed once the page was seen, or when the command
// ends.
func TestInspectOpensThePageInPrivate(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	must.OK(t, os.WriteFile(filepath.Join(dir, "r.ndjson"), []byte(recordHead), 0o600))
	const browser = "#!/bin/sh\necho \"$@\" > arguments.tmp\nmv arguments.tmp arguments\n"
	must.OK(t, os.Mkdir(filepath.Join(dir, "bin"), 0o755), os.Mkdir(filepath.Join(dir, "tmp"), 0o755))
	for _, name := range []string{"xdg-open", "open"} {
		must.OK(t, os.WriteFile(filepath.Join(dir, "bin", name), []byte(browser), 0o755))
	}
	for _, seen := range []bool{true, false} {
		cmd := command(t, dir, "./a2e", "inspect", "--open", "r.ndjson")
		cmd.Env = append(cmd.Env, "PATH="+dir+"/bin:"+os.Getenv("PATH"), "TMPDIR="+filepath.Join(dir, "tmp"))
		page := startCommand(t, cmd)
		url, _, _ := strings.Cut(must.Get(page.stdout.ReadString('\n'))(t), " ")
		_, secret, _ := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(url, "http://"), "/"), "/")
		hosttest.Eventually(t, "the browser is started", func() bool { return exists(filepath.Join(dir, "arguments")) })
		given := string(must.Get(os.ReadFile(filepath.Join(dir, "arguments")))(t))
		assert.That(t, len(secret) > 20 && !strings.Contains(given, secret), "the browser is given %s", given)
		file := strings.TrimSpace(given)
		for path, mode := range map[string]os.FileMode{file: 0o600, filepath.Dir(file): 0o700} {
			assert.Equal(t, must.Get(os.Stat(path))(t).Mode().Perm(), mode, "who may read %s", path)
		}
		assert.Contains(t, string(must.Get(os.ReadFile(file))(t)), `content="0; url=`+url+`"`)
		if seen {
			resp := must.Get(http.Get(url))(t)
			must.OK(t, resp.Body.Close())
			assert.That(t, !exists(filepath.Dir(file)), "the page was seen, and %s is left", file)
		}
		must.OK(t, page.cmd.Process.Signal(os.Interrupt))
		assert.Equal(t, page.exit(), 0, "inspect ends with")
		assert.That(t, !exists(filepath.Dir(file)), "%s is left", file)
		must.OK(t, os.Remove(filepath.Join(dir, "arguments")))
	}
}
