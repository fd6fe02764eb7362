package e2e_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/postgres"
	"a2e/protocol/fleet"
)

// byTask returns the results of a dispatch by task; each task must have one.
func byTask(t *testing.T, text string) map[string]*fleet.Result {
	t.Helper()
	all := make(map[string]*fleet.Result)
	for _, r := range resultsIn(t, []byte(text)) {
		assert.That(t, all[r.TaskID] == nil, "two results of %s", r.TaskID)
		all[r.TaskID] = r
	}
	return all
}

// workersReady waits until a fleet has n workers.
func workersReady(t *testing.T, dir, url string, n int) {
	t.Helper()
	hosttest.Eventually(t, "the workers are there", func() bool {
		return strings.Count(run(t, dir, nil, "fleet", "ls", "--json", "--fleet", url).stdout, `"state": "ready"`) == n
	})
}

// TestQueue: `a2e dispatch` and a child agent of a host send tasks over the server to workers elsewhere, and the
// results have the files that the workers changed.
func TestQueue(t *testing.T) {
	t.Parallel()
	server := postgres.Start(t)
	url := strings.Replace(server.URL(postgres.Superuser), "postgres@", "postgres:hunter2hunter2@", 1) +
		"&fleet=team&lease=2s"
	repo, dir := workDir(t), workDir(t)
	wallGit(t, repo, "init", "-q", "-b", "main")
	put(t, repo, block{mark: "with: a.txt", text: "one\n"})
	wallGit(t, repo, "add", "a.txt")
	wallGit(t, repo, "commit", "-q", "-m", "first")
	worker := start(t, repo, "worker", "--fleet", url, "--agent-id", "there", "--max-tasks", "2", "--no-contract", "--",
		"sh", "-s")
	workersReady(t, dir, url, 1)

	put(t, dir, block{mark: "with: tasks.ndjson", text: `{"task_id":"in place","brief":"echo two > b.txt; echo did"}
{"task_id":"apart","brief":"echo two >> a.txt","isolation":"worktree"}
{"task_id":"unfit","brief":"echo no","required_mcp":["nowhere"],"deadline":"` + time.Now().Add(3*time.Second).Format(time.RFC3339) + "\"}\n"})
	out := run(t, dir, nil, "dispatch", "tasks.ndjson", "--fleet", url).want(t, 1, "1 of 3 tasks not done")
	all := byTask(t, out.stdout)
	placed := all["in place"]
	must.That(t, len(all) == 3 && placed.Summary == "did" && len(placed.Artifacts.Files) == 1, "results: %s",
		out.stdout)
	assert.Equal(t, placed.Artifacts.Files[0].Path+" "+string(placed.Artifacts.Files[0].Content), "b.txt two\n")
	assert.Contains(t, all["apart"].Artifacts.Patch, "+two")
	unfit := all["unfit"]
	late := unfit.BlockedReason != nil && strings.HasPrefix(*unfit.BlockedReason,
		"the deadline ") // on a busy machine the dispatch began after the deadline
	assert.That(t, late || unfit.Error == "deadline", "results: %s", out.stdout)

	writeConfig(t, dir, "plugins: {multi_agent: {workers: [{name: team, fleet: \""+url+"\"}]}}\n")
	h := start(t, dir)
	h.send(`{"type":"handshake/req","id":"h","agent_id":"test","agent_caps":["multi_agent"]}`,
		`{"type":"multi_agent/spawn","id":"s","name":"ann"}`)
	h.answer("s")
	h.send(`{"type":"multi_agent/delegate","id":"d","subagent_id":"ann","task_name":"","instruction":"echo from afar; echo three > c.txt"}`)
	h.answer("d")
	h.send(`{"type":"multi_agent/await","id":"a","subagent_id":"ann"}`)
	result := fmt.Sprint(h.answer("a")["result"])
	assert.That(t, strings.Contains(result, "from afar") && strings.Contains(result, "dGhyZWUK"),
		"the result of the child: %s", result)
	h.stdin.Close()
	assert.Equal(t, h.exit(), 0, h.stderr.String())

	shown := run(t, dir, nil, "fleet", "show", "apart", "--fleet", url).stdout +
		run(t, dir, nil, "fleet", "ls", "--fleet", url).stdout
	assert.Contains(t, shown, `"state": "done"`)
	run(t, dir, nil, "fleet", "drain", "there", "--fleet", url).want(t, 0, "")
	assert.Equal(t, worker.exit(), 0, worker.stderr.String())
	server.Crash()
	away := run(t, dir, nil, "dispatch", "tasks.ndjson", "--fleet", url).want(t, 4, "cannot be used now")
	assert.That(t, !strings.Contains(shown+away.stderr+out.stderr+worker.stderr.String(), "hunter2"),
		"the password is shown")
	server.Begin(t)
}

// TestQueueKilled kills workers one after the other: each task is done and reported once. A2E_SOAK_QUEUE=10000 sends
// as many tasks.
func TestQueueKilled(t *testing.T) {
	t.Parallel()
	tasks := hosttest.Soak(t, "A2E_SOAK_QUEUE", 60)
	workers, every := 3, 300*time.Millisecond
	if tasks >= 1000 {
		workers, every = 16, time.Second
	}
	server := postgres.Start(t)
	url := server.URL(postgres.Superuser) + "&lease=2s"
	dir := workDir(t)
	begin := func() *live {
		return start(t, dir, "worker", "--fleet", url, "--no-contract", "--", "sh", "-c",
			`read n; echo "did $n"; sleep 0.05`)
	}
	fleetOf := make([]*live, workers)
	for i := range fleetOf {
		fleetOf[i] = begin()
	}
	workersReady(t, dir, url, workers)
	var file bytes.Buffer
	for i := range tasks {
		fmt.Fprintf(&file, "{\"task_id\":\"t%d\",\"brief\":\"%d\",\"retries\":50}\n", i, i)
	}
	must.OK(t, os.WriteFile(filepath.Join(dir, "tasks.ndjson"), file.Bytes(), 0o600))
	over := make(chan outcome, 1)
	begun := time.Now()
	go func() { over <- run(t, dir, nil, "dispatch", "tasks.ndjson", "--fleet", url) }()
	random, killed, clock := rand.New(rand.NewPCG(20261123, 2)), 0, time.NewTicker(every)
	defer clock.Stop()
	var out outcome
	for out.stdout == "" {
		select {
		case out = <-over:
		case <-clock.C:
			i := random.IntN(workers)
			_ = fleetOf[i].cmd.Process.Signal(syscall.SIGKILL)
			_ = fleetOf[i].cmd.Wait()
			fleetOf[i] = begin()
			killed++
		}
	}
	took := time.Since(begun)
	out.want(t, 0, "")
	all := byTask(t, out.stdout)
	for i := range tasks {
		r := all[fmt.Sprint("t", i)]
		must.That(t, r != nil && r.Status == fleet.StatusDone && r.Summary == fmt.Sprint("did ", i), "task %d: %+v", i,
			r)
	}
	assert.Equal(t, server.Exec(t, "SELECT count(*) FROM a2e_fleet_main.tasks WHERE state = 2 AND status = 'done'"),
		fmt.Sprint(tasks))
	t.Logf("%d tasks in %s (%.0f/s), %d workers of %d killed; lost with a task: %s; from taken to ended p50, p99: %s",
		tasks, took, float64(tasks)/took.Seconds(), killed, workers,
		server.Exec(t, "SELECT sum(losses) FROM a2e_fleet_main.tasks"),
		server.Exec(t, "SELECT percentile_cont(ARRAY[0.5, 0.99]) WITHIN GROUP (ORDER BY extract(epoch FROM ended - "+
			"taken)) FROM a2e_fleet_main.tasks"))
}
