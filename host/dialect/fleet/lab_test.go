package fleet_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/agent"
	front "a2e/host/dialect/fleet"
	"a2e/host/guard/auth"
	"a2e/host/hosttest"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/sandboxtest"
	"a2e/host/hosttest/stores"
	"a2e/host/sandbox"
	"a2e/host/state/store"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

func TestMain(m *testing.M) { sandboxtest.Main(m) }

// pool is a plugin with one worker. A test decides when its tasks end and what they do.
type pool struct {
	mu         sync.Mutex
	started    []string
	hold       chan struct{}      // each task takes one token; nil = tasks do not wait
	deaf       bool               // a held task does not end with its context
	extensions []string           // extensions that the worker announces
	workers    []agent.WorkerInfo // nil = one worker with the tools of the host
	act        func(task agent.WorkerTask) (*fleet.Result, error)
}

func (p *pool) Info() host.PluginInfo {
	return host.PluginInfo{Name: "workers", Capability: protocol.CapMultiAgent}
}
func (p *pool) Routes() []host.Route        { return nil }
func (p *pool) Close(context.Context) error { return nil }
func (p *pool) Workers() []agent.WorkerInfo {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.workers != nil {
		return p.workers
	}
	return []agent.WorkerInfo{{
		Name: "w", Model: "m1", ModelTier: "small", ContextWindow: 1000, MaxTasks: 9,
		Healthy: true, HostTools: true, Tools: []string{}, Extensions: slices.Clone(p.extensions),
	}}
}

func (p *pool) RunTask(ctx context.Context, task agent.WorkerTask) (*fleet.Result, error) {
	p.mu.Lock()
	p.started = append(p.started, task.Task.TaskID)
	p.mu.Unlock()
	ended := ctx.Done()
	if p.deaf {
		ended = nil
	}
	if p.hold != nil {
		select {
		case <-p.hold:
		case <-ended:
			return nil, context.Cause(ctx)
		}
	}
	if p.act != nil {
		return p.act(task)
	}
	return did(task), nil
}

// did returns the result of a task that was done.
func did(task agent.WorkerTask) *fleet.Result {
	r := fleet.NewResult(task.Task.TaskID, fleet.StatusDone)
	r.Summary = "did " + task.Brief
	return r
}

// order returns the ids of the tasks that were started, in order.
func (p *pool) order() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.started, " ")
}

// awaitStart waits until exactly these tasks were started, in this order.
func (p *pool) awaitStart(t testing.TB, order string) {
	t.Helper()
	hosttest.Eventually(t, "the start of "+order, func() bool { return p.order() == order })
}

// kit is a plugin with one tool and three MCP servers: "down", "off" and "up", whose state the test can set.
type kit struct {
	mu sync.Mutex
	up map[string]any
}

func newKit() *kit { return &kit{up: map[string]any{"status": "ready", "state": "connected"}} }

// set changes the state of the server "up".
func (k *kit) set(status, state string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.up = map[string]any{"status": status, "state": state}
}

func (*kit) Info() host.PluginInfo {
	return host.PluginInfo{Name: "kit", Capability: protocol.CapTools, Also: []protocol.Capability{
		protocol.CapMCP,
		protocol.CapToolkits,
	}}
}
func (*kit) Close(context.Context) error { return nil }
func (k *kit) Routes() []host.Route {
	return []host.Route{
		host.Handle(protocol.TypeToolListReq, func(ctx context.Context, _ *protocol.ToolListRequest,
			_ host.Emitter,
		) (*protocol.ToolListResponse, error) {
			return &protocol.ToolListResponse{Tools: []protocol.ToolDefinition{{Name: "lift"}}}, ctx.Err()
		}),
		host.Handle(protocol.TypeToolkitListReq, func(context.Context, *protocol.ToolkitListRequest,
			host.Emitter,
		) (*protocol.ToolkitListResponse, error) {
			return &protocol.ToolkitListResponse{Toolkits: []protocol.ToolkitDefinition{{
				Name:       "crane",
				Configured: true,
			}, {Name: "drill"}}}, nil
		}),
		host.Handle(protocol.TypeMCPServerListReq, func(context.Context, *protocol.MCPServerListRequest,
			host.Emitter,
		) (*protocol.MCPServerListResponse, error) {
			k.mu.Lock()
			defer k.mu.Unlock()
			return &protocol.MCPServerListResponse{Servers: []map[string]any{
				{"server_id": "up", "status": k.up["status"], "state": k.up["state"]},
				{"server_id": "down", "status": "error", "state": "failed"},
				{"server_id": "off", "status": "disconnected", "state": "disabled"},
			}}, nil
		}),
	}
}

// lab is a host that speaks fleet, with its plugin kit.
type lab struct {
	*hosttest.Pair
	kit *kit
}

// Times that a Front waits in tests.
const (
	shortly = 20 * time.Millisecond
	long    = time.Hour
)

// open starts a host that speaks fleet.
func open(t testing.TB, p *pool, opts front.Options) *hosttest.Pair {
	t.Helper()
	return openLab(t, p, opts, shortly, long, long).Pair
}

// openLab is open with the times that a Front waits: for a late result, for a first connection, and between looks for
// changes.
func openLab(t testing.TB, p *pool, opts front.Options, late, connect, watch time.Duration) lab {
	t.Helper()
	opts.Worker.AgentID = "w1"
	opts.Log = zerolog.Nop()
	f := front.New(opts)
	f.Hurry(late, connect, watch)
	f.HurryGit(long) // long, because git may be slow on a busy machine
	f.HurryStore(long)
	k := newKit()
	return lab{hosttest.New(t, host.Options{Plugins: []host.Plugin{p, k}, Dialects: []host.Dialect{f}}), k}
}

// dispatch returns the line of a task; more has further members of it.
func dispatch(id, priority string, more string) string {
	return fmt.Sprintf(`{"type":"TASK_DISPATCH","protocol_version":"2.0","task":{"task_id":%q,"priority":%q},"requirements":{"required_mcp":[],"required_capabilities":[]},"brief":"work"%s}`, id, priority, more)
}

// needing returns the line of a task with requirements.
func needing(id, requirements, more string) string {
	return fmt.Sprintf(`{"type":"TASK_DISPATCH","protocol_version":"2.0","task":{"task_id":%q},"requirements":%s,"brief":"work"%s}`, id, requirements, more)
}

// result waits for the result of a task.
func result(p *hosttest.Pair, id string) hosttest.Message {
	return p.Wait("the result of "+id, func(m hosttest.Message) bool {
		return m.Type == fleet.TypeResult && m.Get("/task_id") == id
	})
}

// results returns the results of a task so far.
func results(p *hosttest.Pair, id string) (all []hosttest.Message) {
	for _, m := range p.Messages() {
		if m.Type == fleet.TypeResult && m.Get("/task_id") == id {
			all = append(all, m)
		}
	}
	return all
}

// resultNo waits for the nth result of a task, counted from 1.
func resultNo(t testing.TB, p *hosttest.Pair, id string, n int) hosttest.Message {
	t.Helper()
	return p.Wait(fmt.Sprintf("result %d of %s", n, id), func(m hosttest.Message) bool {
		if m.Type == fleet.TypeResult && m.Get("/task_id") == id {
			n--
		}
		return n == 0
	})
}

// announced waits for the first announce.
func announced(p *hosttest.Pair) hosttest.Message {
	return p.Wait("an announce", func(m hosttest.Message) bool { return m.Type == fleet.TypeAnnounce })
}

// announces returns the announces that the host has sent so far.
func announces(p *hosttest.Pair) (all []hosttest.Message) {
	for _, m := range p.Messages() {
		if m.Type == fleet.TypeAnnounce {
			all = append(all, m)
		}
	}
	return all
}

// do sends a task and waits for its result.
func do(p *hosttest.Pair, line, id string) hosttest.Message {
	p.SendRaw(line + "\n")
	return result(p, id)
}

// check compares values in a message with the expected ones. want alternates between pointers and values. A pointer
// that ends with ~ means that the value has to contain the text.
func check(t testing.TB, m hosttest.Message, want ...string) {
	t.Helper()
	for i := 0; i < len(want); i += 2 {
		pointer, part := strings.CutSuffix(want[i], "~")
		is := m.Get(pointer)
		if part && !strings.Contains(is, want[i+1]) || !part && is != want[i+1] {
			t.Errorf("%s is %q, should be %q, in %s", want[i], is, want[i+1], m.Line)
		}
	}
}

// newState opens the store in a folder and returns an opener for it.
func newState(t testing.TB, dir string) store.Opener {
	t.Helper()
	s := stores.Open(t, filepath.Join(dir, store.FileName), front.Part())
	return func(context.Context) (store.Store, error) { return s, nil }
}

// inRepo returns the options of a Front that can run git in a folder.
func inRepo(t testing.TB, dir string) front.Options {
	t.Helper()
	launcher := must.Get(sandbox.New(sandbox.Options{Workspace: dir, Launcher: hosttest.Launcher(t)}))(t)
	t.Cleanup(func() { launcher.Close() })
	return front.Options{Workspace: dir, Launcher: func() (*sandbox.Launcher, error) { return launcher, nil }}
}

func tokens(text string) auth.Tokens { return auth.Tokens{auth.New(text, "")} }

func put(t testing.TB, dir, name, text string) {
	t.Helper()
	file := filepath.Join(dir, name)
	must.OK(t, os.MkdirAll(filepath.Dir(file), 0o755))
	must.OK(t, os.WriteFile(file, []byte(text), 0o644))
}

func git(t testing.TB, dir string, args ...string) {
	t.Helper()
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=T", "GIT_AUTHOR_EMAIL=t@example.com", "GIT_COMMITTER_NAME=T",
		"GIT_COMMITTER_EMAIL=t@example.com")
	out, err := cmd.CombinedOutput()
	must.That(t, err == nil, "git %v: %v\n%s", args, err, out)
}
