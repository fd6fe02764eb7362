package worker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/agent"
	"a2e/host/config"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/state/store"
	"a2e/plugins/memory"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// remember lets an agent store a memory in a state folder, and scope it for children. It returns the id of the memory,
// and a function that ends the agent's session.
func remember(t *testing.T, dir, entry string, scopes map[string]protocol.MemoryScope) (id string, end func()) {
	t.Helper()
	st := must.Get(store.Open(t.Context(), filepath.Join(dir, store.FileName),
		store.Options{Parts: []store.Part{memory.Part()}}))(t)
	plugin := must.Get(memory.New("memory", memory.DefaultOptions(),
		host.Env{Store: func(context.Context) (store.Store, error) { return st, nil }, Log: zerolog.Nop()}))(t)
	s := &hosttest.Probe{Do: func(ctx context.Context) (err error) {
		for child, scope := range scopes {
			err = errors.Join(err, host.First[agent.MemoryScoper](host.ServicesOf(ctx)).ScopeMemory(ctx, child, scope))
		}
		return err
	}}
	p := hosttest.Start(t, host.Options{Plugins: []host.Plugin{s, plugin}})
	p.Call(protocol.TypeHandshakeReq, `{"agent_id":"parent","agent_caps":["memory"]}`)
	var made protocol.MemoryInitResponse
	p.Call(protocol.TypeMemoryInitReq, `{}`).Decode(t, &made)
	m := p.Call(protocol.TypeMemoryStoreReq, fmt.Sprintf(`{"memory_id":%q,"entries":[%s]}`, made.MemoryID, entry))
	must.Equal(t, m.Code, "", "%v", m)
	p.Call(hosttest.TypeProbe, `{}`)
	must.OK(t, s.Err)
	return made.MemoryID, func() {
		p.Close()
		must.OK(t, st.Close())
	}
}

// TestSharedState: a host that a worker starts serves the child agent of the task. The child sees the memory that it
// was given, if the state is shared, and has only the tools that it was given.
func TestSharedState(t *testing.T) {
	t.Parallel()
	binary, state := hosttest.Program(t, "a2e"), filepath.Join(t.TempDir(), "state")
	id, end := remember(t, state, `{"key":{"n":1},"content":"the code is blue","tier":"episodic"}`,
		map[string]protocol.MemoryScope{"sharing": protocol.MemoryShared, "alone": protocol.MemoryIsolated})
	piping := Worker{
		Name: "shares", Command: []string{"sh", "-c", `cat | "$0"`, binary},
		Read: []string{filepath.Dir(binary)}, ShareState: true,
	}
	apart := piping
	apart.Name, apart.ShareState = "apart", false
	s := confinedStage(t, piping, apart)
	s.stateDir = state
	if err := os.WriteFile(filepath.Join(s.dir, "a2e.yaml"), []byte("max_parallel: 1\n"),
		0o600); err != nil { // the host handles one line after the other
		t.Fatal(err)
	}
	for i, test := range []struct {
		worker, agent string
		knows         bool
	}{{"shares", "sharing", true}, {"shares", "alone", false}, {"apart", "sharing", false}, {
		"shares", "sharing",
		false,
	}} {
		if i == 3 { // the end of the parent's session ends its children's access to the memory
			end()
		}
		task := brief(fmt.Sprint(i), strings.Join([]string{
			`{"type":"handshake/req","id":"h","agent_id":"parent","agent_caps":["memory","tools"]}`,
			`{"type":"memory/init/req","id":"i"}`,
			fmt.Sprintf(`{"type":"memory/retrieve/req","id":"m","memory_id":%q,"tier":"episodic"}`, id),
			`{"type":"tool/call/req","id":"e","tool_name":"echo","arguments":{"text":"hi"}}`,
			`{"type":"tool/call/req","id":"w","tool_name":"write_file","arguments":{"path":"x","content":"y"}}`,
			`{"type":"tool/call/req","id":"r","tool_name":"run_command","arguments":{"command":["sh","-c","echo $A2E_AGENT"]}}`,
		}, "\n")+"\n")
		task.Worker = test.worker
		task.Agent = &fleet.Agent{
			AgentID: test.agent, MemoryScope: protocol.MemoryShared,
			ToolScope: protocol.ToolsRestricted, Capabilities: []string{"echo", "run_command"},
		}
		res := s.do(task)
		if got := strings.Contains(res.Summary, "the code is blue"); got != test.knows ||
			res.Status != fleet.StatusDone {
			t.Errorf("%s at %s knows of the memory: %t\n%s", test.agent, test.worker, got, describe(res))
		}
		answers := make(map[string]string)
		for line := range strings.Lines(res.Summary) {
			for _, id := range []string{"h", "m", "i", "e", "w", "r"} {
				if strings.Contains(line, `"req_id":"`+id+`"`) {
					answers[id] += line
				}
			}
		}
		if !strings.Contains(answers["m"], `"memory/retrieve/resp"`) || !strings.Contains(answers["e"],
			`"success":true`) || !strings.Contains(answers["w"], `"code":"tool_denied"`) || len(answers) != 6 {
			t.Errorf("%s at %s: %q", test.agent, test.worker, answers)
		}
		if text := `{\"agent_id\":\"` + test.agent + `\"`; !strings.Contains(answers["r"], text) {
			t.Errorf("%s at %s: a program that it runs does not know whom it works for: %s", test.agent, test.worker,
				answers["r"])
		}
	}
	_, err := os.Stat(filepath.Join(s.dir, "x"))
	assert.That(t, err != nil, "the tool that was denied has written")
}

// TestSharedStateNeedsOne: share_state without a state folder is refused.
func TestSharedStateNeedsOne(t *testing.T) {
	t.Parallel()
	w := shell("w", "true")
	w.ShareState = true
	_, err := NewPool(Options{Workers: []Worker{w}}, Env{Launcher: noLauncher})
	assert.That(t, err != nil && err.Error() == `worker "w": share_state needs a host with a state_dir`, "%v", err)
}

// TestResultIn: a result is found wherever it may stand in the output of a worker, and other text is not taken for a
// result.
func TestResultIn(t *testing.T) {
	t.Parallel()
	const pretty = "{\n  \"status\": \"done\",\n  \"artifacts\": {\n    \"files_changed\": []\n  }\n}"
	for name, test := range map[string]struct{ text, want string }{
		"a line":            {`{"status":"done"}`, `{"status":"done"}`},
		"a byte order mark": {"\ufeff" + `{"status":"done"}`, `{"status":"done"}`},
		"pretty":            {"so:\r\n" + pretty + "\r\nbye", pretty},
		"fenced":            {"so:\n```json\n" + pretty + "\n```\nI hope this helps.", pretty},
		"the last one":      {pretty + "\n{\"status\":\"partial\"}\nand\n{\"x\":1}", `{"status":"partial"}`},
		"none":              {"{\"x\":1}\n{\n[{\"status\":\"done\"}]", ""},
		"within a line":     {`I say {"status":"done"}` + "\n" + `{"status":"done"} I say`, ""},
		"part of an object": {"{\"steps\":[\n{\"status\":\"done\"}\n]}", ""},
		"part of a list":    {"[\n{\"status\":\"done\"},\n{\"status\":\"error\"}\n]", ""},
		"its parts": {
			"{\"status\":\"partial\",\"remaining\":\n{\"status\":\"done\"}\n}",
			"{\"status\":\"partial\",\"remaining\":\n{\"status\":\"done\"}\n}",
		},
		"after one that breaks":   {"{\n\"a\": 1,\n" + pretty, pretty},
		"in one that never ends":  {"{\"a\": [\n" + pretty, pretty},
		"in one that breaks":      {"{\"a\":\n" + pretty + "\noops }", pretty},
		"after an open text":      {"{\"a\": \"b\n" + pretty, pretty},
		"a key twice":             {`{"status":"done","status":"error"}`, ""},
		"a foreign status":        {"{\"status\":200}\nserved", ""},
		"a foreign status at end": {"{\"status\":\"fine\"}\n```\n", `{"status":"fine"}`},
	} {
		if obj, ok := resultIn([]byte(test.text)); ok != (test.want != "") || ok && string(obj.Raw()) != test.want {
			t.Errorf("%s: %t, %s", name, ok, obj.Raw())
		}
	}
}

// TestResultInHostileOutput: hostile output costs about as much as other output. A quadratic search would take minutes
// here.
func TestResultInHostileOutput(t *testing.T) {
	t.Parallel()
	for _, piece := range []string{
		"{", "{\n", "{\"a\":", "{\"a\":\n", "{\"a\":[\n", "{}\n", "{\"a\":\"",
		"{\"status\":\n", "{\"a\":1,\n", "[{\n", "\n ", "{\"status\":\"done\"},\n", "{\"\n",
	} {
		text := strings.Repeat(piece, maxResult/4/len(piece)) + "\n{\"status\":\"done\"}\n"
		_, ok := resultIn([]byte(text))
		assert.That(t, ok, "no result behind many %q", piece)
	}
}

// TestWallSecretsAreHiddenEverywhere: neither a result nor the announcement of a worker shows a secret that the worker
// was given.
func TestWallSecretsAreHiddenEverywhere(t *testing.T) {
	t.Parallel()
	const token = "s3cret-t0ken"
	f := fake(t, "f", `{"type":"SESSION_ANNOUNCE","protocol_version":"2.0","worker":{"model":"m `+token+`","model_tier":"`+token+`"},"capabilities":{"tools":["`+token+`"],"mcp_servers":["`+token+`"]}}`)
	f.AuthToken = config.NewSecret(token)
	s := newStage(t, f)
	res := s.do(brief("t", `result "status":"partial","summary":"`+token+`","remaining":{"at":["`+token+`"]},"next_steps":["`+token+`"],"artifacts":{"pr":"https://me:`+token+`@host/1","files_changed":["a/`+token+`"]}`))
	line, err := protocol.AppendJSON(nil, res)
	assert.That(t, err == nil && !strings.Contains(string(line), token) && strings.Count(string(line),
		"[redacted]") == 5,
		"%s, %v", line, err)
	infos, err := protocol.AppendJSON(nil, s.Workers())
	assert.That(t, err == nil && !strings.Contains(string(infos), token) && strings.Contains(string(infos), "redacted"),
		"%s, %v", infos, err)
}

// TestSecretOfSeveralLines: each line of a secret of several lines is hidden.
func TestSecretOfSeveralLines(t *testing.T) {
	t.Parallel()
	w := shell("w", `echo "$API_KEY"; echo "$API_KEY" >&2; exit 1`)
	w.Env = map[string]string{"API_KEY": "first line of it\nsecond line of it"}
	s := newStage(t, w)
	var h heard
	task := brief("t", "")
	task.Output = h.take
	line, _ := protocol.AppendJSON(nil, s.do(task))
	for _, text := range append(h.all(), string(line)) {
		assert.That(t, !strings.Contains(text, "line of it"), "%s", text)
	}
}
