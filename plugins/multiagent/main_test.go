package multiagent

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/go-json-experiment/json"
	"go.uber.org/goleak"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/sandboxtest"
	"a2e/host/sandbox"
	"a2e/plugins/multiagent/worker"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// roleVar makes this test binary a worker that speaks the fleet protocol.
const roleVar = "MULTIAGENT_TEST_ROLE"

func TestMain(m *testing.M) {
	sandbox.MaybeRunLauncher() // children start through this test binary
	if os.Getenv(roleVar) != "" {
		os.Exit(play())
	}
	goleak.VerifyTestMain(m)
}

// play is a fleet worker that takes texts. It writes each dispatch to a file, and sends the result of a task when a
// text for the task arrives.
func play() int {
	fmt.Println(`{"type":"SESSION_ANNOUNCE","protocol_version":"2.0","worker":{"agent_id":"f","model":"big","model_tier":"top","context_window":9},"capabilities":{"tools":[],"mcp_servers":[],"extensions":["steer"]},"mcp_health":{},"session":{"context_id":"c","active_tasks":0,"repo_state":null,"session_fresh":true}}`)
	in := bufio.NewReader(os.Stdin)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return 0
		}
		var m struct {
			fleet.Dispatch
			TaskID string `json:"task_id"`
			Text   string `json:"text"`
		}
		if err := json.Unmarshal(line, &m); err != nil {
			return 4
		}
		if m.Type == fleet.TypeDispatch {
			if os.WriteFile("dispatch", line, 0o600) != nil || os.Rename("dispatch", "dispatched") != nil {
				return 5
			}
			continue
		}
		text, _ := json.Marshal("heard: " + m.Text)
		fmt.Printf(`{"type":"TASK_RESULT","protocol_version":"2.0","task_id":%q,"status":"done","tokens_spent":7,"summary":%s}`+"\n", m.TaskID, text)
	}
}

// stage is a host with a multi_agent plugin and a session.
type stage struct {
	*hosttest.Pair
	t   testing.TB
	dir string // the workspace
}

// newPlugin returns a plugin whose workers run in a folder.
func newPlugin(t testing.TB, dir string, opts Options, env Env) *Plugin {
	t.Helper()
	env.Workspace, env.Launcher = dir, sandboxtest.For(t, sandbox.Options{Workspace: dir})
	p := must.Get(New("agents", opts, env))(t)
	t.Cleanup(func() { must.OK(t, p.Close(context.Background())) })
	return p
}

// newStage returns a host with the workers of opts, and with further plugins.
func newStage(t testing.TB, opts Options, more ...host.Plugin) *stage {
	return newStageWith(t, opts, Env{}, host.Options{Plugins: more})
}

func newStageWith(t testing.TB, opts Options, env Env, hostOpts host.Options) *stage {
	t.Helper()
	s := &stage{t: t, dir: t.TempDir()}
	hostOpts.Plugins = append(hostOpts.Plugins, newPlugin(t, s.dir, opts, env))
	s.Pair = hosttest.New(t, hostOpts)
	s.Handshake()
	return s
}

// options returns the default options with some workers.
func options(workers ...worker.Worker) Options {
	opts := DefaultOptions()
	opts.Workers = workers
	return opts
}

// shell is a oneshot worker that runs a script. The script's stdin has only the task.
func shell(name, script string) worker.Worker {
	return worker.Worker{Name: name, Command: []string{"sh", "-c", script}, Contract: new(bool), MaxTasks: 8}
}

// fleetWorker is a worker of mode fleet: this test binary.
func fleetWorker(t testing.TB, name string) worker.Worker {
	t.Helper()
	self := must.Get(os.Executable())(t)
	return worker.Worker{
		Name: name, Mode: worker.ModeFleet, Command: []string{self},
		Env: map[string]string{roleVar: "fleet"}, MaxTasks: 4,
	}
}

// ask sends a request and returns its response, which must not be an error.
func ask[Resp any](s *stage, typ protocol.Type, fields string) *Resp {
	s.t.Helper()
	return answered[Resp](s, typ, s.Go(typ, fields))
}

// answered waits for the response to a request that was sent, and returns it.
func answered[Resp any](s *stage, typ protocol.Type, id string) *Resp {
	s.t.Helper()
	m := s.Answer(id)
	must.That(s.t, m.Type == responseOf(typ), "%s was answered by %.1000s", typ, m.Line)
	resp := new(Resp)
	m.Decode(s.t, resp)
	return resp
}

func responseOf(typ protocol.Type) protocol.Type {
	info, _ := protocol.Lookup(typ)
	return info.Response
}

// spawn starts a child with the long form of the request, and returns its id. config has further fields.
func (s *stage) spawn(name, parent, config string) string {
	s.t.Helper()
	resp := ask[protocol.SubagentSpawnResponse](s, protocol.TypeSubagentSpawnReq,
		fmt.Sprintf(`{"agent":{"name":%q,"model":"default"%s},"parent_agent_id":%q}`, name, config, parent))
	must.That(s.t, fleet.IsChildID(resp.SubagentID) && len(resp.SubagentID) == 36 &&
		resp.Status == protocol.SubagentReady, "%+v", resp)
	return resp.SubagentID
}

// delegate gives a child a task, which it must accept.
func (s *stage) delegate(id, instruction string) protocol.SubagentStatus {
	s.t.Helper()
	accepted, status := s.try(id, instruction)
	must.That(s.t, accepted, "%s did not take the task: it is %s", id, status)
	return status
}

func (s *stage) try(id, instruction string) (bool, protocol.SubagentStatus) {
	s.t.Helper()
	resp := ask[protocol.SubagentDelegateResponse](s, protocol.TypeSubagentDelegateReq,
		fmt.Sprintf(`{"subagent_id":%q,"task":{"name":"t","instruction":%q}}`, id, instruction))
	return resp.Accepted, resp.Status
}

// await waits for a child's result.
func (s *stage) await(id string) *protocol.SubagentAwaitResponse {
	s.t.Helper()
	return ask[protocol.SubagentAwaitResponse](s, protocol.TypeSubagentAwaitReq, fmt.Sprintf(`{"subagent_id":%q}`, id))
}

// status returns the status of a child from the list; "" = it is not in the list.
func (s *stage) status(id string) protocol.SubagentStatus {
	s.t.Helper()
	for _, info := range ask[protocol.SubagentListResponse](s, protocol.TypeSubagentListReq, `{}`).Subagents {
		if info.SubagentID == id {
			return info.Status
		}
	}
	return ""
}

// refused sends a request that must fail with a code, and returns the error message.
func (s *stage) refused(code protocol.ErrorCode, typ protocol.Type, fields string) hosttest.Message {
	s.t.Helper()
	m := s.Call(typ, fields)
	must.That(s.t, m.Code == code, "%s %.300s was answered by %.1000s", typ, fields, m.Line)
	return m
}

// event waits for an event of a child.
func (s *stage) event(id, event string) hosttest.Message {
	s.t.Helper()
	return s.Wait("event "+event, func(m hosttest.Message) bool {
		return m.Type == protocol.TypeSubagentEvent && m.Get("/subagent_id") == id && m.Get("/event") == event
	})
}

// touch makes an empty file in the workspace.
func (s *stage) touch(name string) {
	s.t.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, name), nil, 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// file waits for a file in the workspace and returns its text.
func (s *stage) file(name string) string {
	s.t.Helper()
	var text []byte
	hosttest.Eventually(s.t, name, func() bool {
		var err error
		text, err = os.ReadFile(filepath.Join(s.dir, name))
		return err == nil
	})
	return string(text)
}
