package worker

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"a2e/host/agent"
	"a2e/host/hosttest"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/sandboxtest"
	"a2e/host/sandbox"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// roleVar is the variable that makes this test binary a worker.
const roleVar = "WORKER_TEST_ROLE"

// patience is how long a test waits for something that should happen at once.
const patience = 60 * time.Second

func TestMain(m *testing.M) {
	sandbox.MaybeRunLauncher() // children start through this test binary
	if role := os.Getenv(roleVar); role != "" {
		os.Exit(play(role))
	}
	goleak.VerifyTestMain(m)
}

// stage is a pool of workers in a workspace of its own.
type stage struct {
	*Pool
	t   testing.TB
	dir string
	log *hosttest.Log
}

// newStage returns a stage whose workers are not confined, so that they start faster.
func newStage(t testing.TB, workers ...Worker) *stage {
	t.Helper()
	return stageIn(t, sandbox.Off, workers)
}

// confinedStage returns a stage whose workers are confined as on a real host.
func confinedStage(t testing.TB, workers ...Worker) *stage {
	t.Helper()
	return stageIn(t, sandbox.BestEffort, workers)
}

func stageIn(t testing.TB, mode sandbox.Mode, workers []Worker) *stage {
	t.Helper()
	s := &stage{t: t, dir: t.TempDir(), log: &hosttest.Log{}}
	s.Pool = must.Get(NewPool(Options{Workers: workers}, Env{
		Workspace: s.dir, StateDir: t.TempDir(), Log: zerolog.New(s.log), Launcher: sandboxtest.For(t,
			sandbox.Options{Workspace: s.dir, Mode: mode}),
	}))(t)
	t.Cleanup(func() { must.OK(t, s.Close(context.Background())) })
	return s
}

// shell is a oneshot worker that runs a script. The script's stdin has only the task.
func shell(name, script string) Worker {
	return Worker{Name: name, Command: []string{"sh", "-c", script}, Contract: new(bool)}
}

// fake is a worker of mode fleet: this test binary.
func fake(t testing.TB, name string, args ...string) Worker {
	t.Helper()
	self := must.Get(os.Executable())(t)
	return Worker{
		Name: name, Mode: ModeFleet, Command: append([]string{self}, args...),
		Env: map[string]string{roleVar: "fleet"}, MaxTasks: 4,
	}
}

// brief returns a task with an id and a text.
func brief(id, text string) agent.WorkerTask {
	var t agent.WorkerTask
	t.Task.TaskID, t.Brief = id, text
	return t
}

// do runs a task, which must have a result, and checks the result.
func (s *stage) do(task agent.WorkerTask) *fleet.Result {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	res, err := s.RunTask(ctx, task)
	must.That(s.t, err == nil, "task %s: %v\n%s", task.Task.TaskID, err, s.log)
	checkResult(s.t, res, task.Task.TaskID)
	return res
}

// late runs a task with a short deadline until its result is want. It doubles the time left at each try, because a slow
// machine may need more.
func (s *stage) late(task agent.WorkerTask, want string) *fleet.Result {
	s.t.Helper()
	for left := 100 * time.Millisecond; ; left *= 2 {
		task.Deadline = time.Now().Add(left).Format(time.RFC3339Nano)
		if res := s.do(task); describe(res) == want || left > patience/2 {
			return res
		}
	}
}

// checkResult checks the rules that hold for every result.
func checkResult(t testing.TB, res *fleet.Result, id string) {
	t.Helper()
	line, err := protocol.AppendJSON(nil, res)
	switch {
	case err != nil:
		t.Errorf("result of %s: %v", id, err)
	case res.TaskID != id || res.Type != fleet.TypeResult || res.ProtocolVersion != fleet.Version:
		t.Errorf("result of %s is %s", id, line)
	case res.NextSteps == nil || res.Artifacts.FilesChanged == nil:
		t.Errorf("a list is nil: %s", line)
	case (res.Status == fleet.StatusBlocked) != (res.BlockedReason != nil):
		t.Errorf("blocked_reason of %s", line)
	case (res.Status == fleet.StatusError) != (res.Error != "") && res.Error == "":
		t.Errorf("an error without a text: %s", line)
	}
}

// notes returns the lines of a file in the workspace, or none if there is no such file.
func (s *stage) notes(name string) []string {
	text, err := os.ReadFile(filepath.Join(s.dir, name))
	if err != nil && !os.IsNotExist(err) {
		s.t.Fatal(err)
	}
	lines := strings.Split(string(text), "\n")
	return lines[:len(lines)-1]
}

// await waits until a file has this many lines.
func (s *stage) await(name string, lines int) {
	s.t.Helper()
	hosttest.Eventually(s.t, name, func() bool { return len(s.notes(name)) >= lines })
}

// touch makes an empty file in the workspace.
func (s *stage) touch(name string) {
	s.t.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, name), nil, 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// info returns the state of a worker.
func (s *stage) info(name string) agent.WorkerInfo {
	s.t.Helper()
	for _, info := range s.Workers() {
		if info.Name == name {
			return info
		}
	}
	s.t.Fatalf("no worker %s", name)
	return agent.WorkerInfo{}
}

// heard collects what a worker prints.
type heard struct {
	mu    sync.Mutex
	lines []string // guarded by mu
}

func (h *heard) take(stream, line string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lines = append(h.lines, stream+": "+line)
}

func (h *heard) all() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]string{}, h.lines...)
}

func mkdir(t testing.TB, dir, name string) {
	t.Helper()
	must.OK(t, os.Mkdir(filepath.Join(dir, name), 0o700))
}
