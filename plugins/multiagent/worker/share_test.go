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
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/store"
	"a2e/plugins/memory"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// remember has an agent store a memory in a state folder and scope it for children. It gives
// the id of the memory.
func remember(t *testing.T, dir, entry string, scopes map[string]protocol.MemoryScope) string {
	t.Helper()
	st := must.Get(store.Open(t.Context(), filepath.Join(dir, store.FileName), store.Options{Parts: []store.Part{memory.Part()}}))(t)
	plugin := must.Get(memory.New("memory", memory.DefaultOptions(), host.Env{Store: func(context.Context) (store.Store, error) { return st, nil }, Log: zerolog.Nop()}))(t)
	s := &hosttest.Probe{Do: func(ctx context.Context) (err error) {
		for child, scope := range scopes {
			err = errors.Join(err, host.ServicesOf(ctx).Memory().ScopeMemory(ctx, child, scope))
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
	p.Close()
	if err := st.Close(); err != nil || s.Err != nil {
		t.Fatal(err, s.Err)
	}
	return made.MemoryID
}

// A host that a worker starts serves the child agent that the task is for: with the memory
// that it was given, where state is shared, and with no more tools than it was given.
func TestSharedState(t *testing.T) {
	t.Parallel()
	binary, state := hosttest.Program(t, "a2e"), filepath.Join(t.TempDir(), "state")
	id := remember(t, state, `{"key":{"n":1},"content":"the code is blue","tier":"episodic"}`,
		map[string]protocol.MemoryScope{"sharing": protocol.MemoryShared, "alone": protocol.MemoryIsolated})
	piping := Worker{Name: "shares", Command: []string{"sh", "-c", `cat | "$0"`, binary}, Read: []string{filepath.Dir(binary)}, ShareState: true}
	apart := piping
	apart.Name, apart.ShareState = "apart", false
	s := confinedStage(t, piping, apart)
	s.stateDir = state
	if err := os.WriteFile(filepath.Join(s.dir, "a2e.yaml"), []byte("max_parallel: 1\n"), 0o600); err != nil { // one line after the other
		t.Fatal(err)
	}
	for i, test := range []struct {
		worker, agent string
		knows         bool
	}{{"shares", "sharing", true}, {"shares", "alone", false}, {"apart", "sharing", false}} {
		task := brief(fmt.Sprint(i), strings.Join([]string{
			`{"type":"handshake/req","id":"h","agent_id":"parent","agent_caps":["memory","tools"]}`,
			`{"type":"memory/init/req","id":"i"}`,
			fmt.Sprintf(`{"type":"memory/retrieve/req","id":"m","memory_id":%q,"tier":"episodic"}`, id),
			`{"type":"tool/call/req","id":"e","tool_name":"echo","arguments":{"text":"hi"}}`,
			`{"type":"tool/call/req","id":"w","tool_name":"write_file","arguments":{"path":"x","content":"y"}}`,
			`{"type":"tool/call/req","id":"r","tool_name":"run_command","arguments":{"command":["sh","-c","echo $A2E_AGENT"]}}`,
		}, "\n")+"\n")
		task.Worker = test.worker
		task.Agent = &fleet.Agent{AgentID: test.agent, MemoryScope: protocol.MemoryShared, ToolScope: protocol.ToolsRestricted, Capabilities: []string{"echo", "run_command"}}
		res := s.do(task)
		if got := strings.Contains(res.Summary, "the code is blue"); got != test.knows || res.Status != fleet.StatusDone {
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
		if !strings.Contains(answers["m"], `"memory/retrieve/resp"`) || !strings.Contains(answers["e"], `"success":true`) || !strings.Contains(answers["w"], `"code":"tool_denied"`) || len(answers) != 6 {
			t.Errorf("%s at %s: %q", test.agent, test.worker, answers)
		}
		if text := `{\"agent_id\":\"` + test.agent + `\"`; !strings.Contains(answers["r"], text) {
			t.Errorf("%s at %s: a program that it runs does not know whom it works for: %s", test.agent, test.worker, answers["r"])
		}
	}
	_, err := os.Stat(filepath.Join(s.dir, "x"))
	assert.That(t, err != nil, "the tool that was denied has written")
}

// Without a state folder there is nothing to share.
func TestSharedStateNeedsOne(t *testing.T) {
	t.Parallel()
	w := shell("w", "true")
	w.ShareState = true
	_, err := NewPool(Options{Workers: []Worker{w}}, Env{Launcher: noLauncher})
	assert.That(t, err != nil && err.Error() == `worker "w": share_state needs a host with a state_dir`, "%v", err)
}
