//go:build linux

package cli_test

import (
	"bytes"
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol/fleet"
)

// The fleet of the chaos test.
const (
	chaosWorkers = 4
	chaosPlaces  = 2 // of each worker
	chaosSeed    = 20261121
	soakFleet    = "A2E_SOAK_FLEET" // how many tasks, where it is set
)

// chaosTask is a task of the chaos test, and what may become of it.
type chaosTask struct {
	id       string
	blocked  bool
	deadline time.Duration // 0 = none
	brief    string
	done     string // the summary, where it is done
}

// chaosFleet is a host with its workers, and what it said.
type chaosFleet struct {
	*live
	dir   string
	ended chan struct{} // closed when it says no more

	mu      sync.Mutex
	results map[string][]*fleet.Result // guarded by mu until it has ended
}

// TestFleetChaos has one host give tasks to four others, which are killed and stopped at
// random meanwhile. Each task has one result, and nothing is left behind. A2E_SOAK_FLEET=2000
// gives it so many tasks.
func TestFleetChaos(t *testing.T) {
	t.Parallel()
	tasks := hosttest.Soak(t, soakFleet, 300)
	random := rand.New(rand.NewPCG(chaosSeed, 1))
	all := make([]chaosTask, tasks)
	for i := range all {
		all[i] = drawTask(random, i)
	}
	dir := workDir(t)
	f := startChaos(t, dir, 10+tasks/500)
	begin := time.Now()
	for _, c := range all {
		f.dispatch(t, c)
	}
	stop := make(chan struct{})
	hurt := make(chan [2]int)
	go func() { hurt <- f.wreck(random, stop) }()
	f.await(t, "all results", func() bool { return len(f.results) == tasks })
	took := time.Since(begin)
	close(stop)
	harm := <-hurt
	f.stdin.Close()
	if code := f.exit(); code != 0 {
		t.Errorf("exit status %d; stderr: %s", code, f.stderr.String())
	}
	<-f.ended
	counts := f.judge(t, all)
	t.Logf("%d tasks in %s; %d workers killed, %d stopped; %v", tasks, took.Round(time.Millisecond), harm[0], harm[1], counts)
	assert.That(t, counts["done"] >= tasks/4 && harm[0] != 0, "too little was done: %v, or harmed: %v", counts, harm)
	hosttest.Eventually(t, "the end of all processes", func() bool { return len(processesIn(dir)) == 0 })
}

// chaosConfig writes the config of the host: four workers, each an a2e with a state of its
// own that does a task by a shell, within so many seconds.
func chaosConfig(t *testing.T, dir string, timeout int) {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "state_dir: state\nfleet: {agent_id: main, max_tasks: %d}\nplugins:\n  - name: agents\n    type: multi_agent\n    metadata:\n      workers:\n", chaosWorkers*chaosPlaces)
	for i := range chaosWorkers {
		state := filepath.Join(dir, "state-of", strconv.Itoa(i))
		must.OK(t, os.MkdirAll(state, 0o700))
		fmt.Fprintf(&b, "        - {name: w%d, mode: fleet, max_tasks: %d, timeout: %d, env: {A2E_STATE_DIR: %q, A2E_CONFIG: %q}, command: [./a2e, worker, --agent-id, w%d, --max-tasks, '%d', --no-contract, --, sh, -s]}\n",
			i, chaosPlaces, timeout, state, filepath.Join(dir, "worker.yaml"), i, chaosPlaces)
	}
	writeConfig(t, dir, b.String())
	put(t, dir, block{mark: "with: worker.yaml", text: "plugins:\n  - {name: tools, type: tools}\n"})
}

// drawTask draws a task that the shell can do, cannot do in time, or nobody may begin.
func drawTask(random *rand.Rand, i int) chaosTask {
	c := chaosTask{id: fmt.Sprint("t", i), done: fmt.Sprint("did ", i)}
	c.brief = "echo " + c.done
	switch n := random.IntN(100); {
	case n < 20:
		c.blocked = true
	case n < 30:
		c.brief = "sleep 0.1; echo " + c.done
	case n < 32:
		c.brief, c.deadline = "sleep 1000", time.Duration(500+random.IntN(1500))*time.Millisecond
	case n < 50:
		c.deadline = time.Duration(random.IntN(5000)) * time.Millisecond
	case n < 60:
		c.deadline = time.Hour
	}
	return c
}

// startChaos starts the host and reads what it says to its end. Its workers do a task within
// so many seconds.
func startChaos(t *testing.T, dir string, timeout int) *chaosFleet {
	t.Helper()
	chaosConfig(t, dir, timeout)
	f := &chaosFleet{dir: dir, live: start(t, dir), results: make(map[string][]*fleet.Result), ended: make(chan struct{})}
	go func() {
		defer close(f.ended)
		for {
			line, err := f.stdout.ReadBytes('\n')
			if err != nil {
				return
			}
			r := new(fleet.Result)
			if err := json.Unmarshal(line, r); err != nil {
				t.Errorf("%v in %s", err, line)
			}
			if r.Type != fleet.TypeResult {
				continue
			}
			f.mu.Lock()
			f.results[r.TaskID] = append(f.results[r.TaskID], r)
			f.mu.Unlock()
		}
	}()
	return f
}

// dispatch sends a task.
func (f *chaosFleet) dispatch(t *testing.T, c chaosTask) {
	t.Helper()
	d := fleet.Dispatch{Type: fleet.TypeDispatch, ProtocolVersion: fleet.Version, Brief: c.brief}
	d.Task = fleet.Task{TaskID: c.id, Priority: fleet.PriorityNormal}
	if c.blocked {
		d.Requirements.RequiredCapabilities = []string{"flying"}
	}
	if c.deadline > 0 {
		d.Deadline = time.Now().Add(c.deadline).Format(time.RFC3339Nano)
	}
	line := must.Get(json.Marshal(&d))(t)
	f.send(string(line))
}

// await waits for a condition on the results.
func (f *chaosFleet) await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Minute); ; time.Sleep(5 * time.Millisecond) {
		over := time.Now().After(deadline)
		select {
		case <-f.ended:
			over = true
		default:
		}
		f.mu.Lock()
		there := ok()
		n := len(f.results)
		f.mu.Unlock()
		switch {
		case there:
			return
		case over:
			_, _ = f.cmd.Process.Kill(), f.cmd.Wait() // its stderr is complete then
			t.Fatalf("waited in vain for %s; there are results of %d tasks; stderr: %s", what, n, f.stderr.String())
		}
	}
}

// judge checks the results and counts them by their status.
func (f *chaosFleet) judge(t *testing.T, all []chaosTask) map[fleet.Status]int {
	t.Helper()
	counts := make(map[fleet.Status]int)
	for _, c := range all {
		got := f.results[c.id]
		if len(got) != 1 {
			t.Errorf("%s has %d results", c.id, len(got))
			continue
		}
		r := got[0]
		counts[r.Status]++
		switch {
		case r.NextSteps == nil || r.Artifacts.FilesChanged == nil || (r.BlockedReason == nil) != (r.Status != fleet.StatusBlocked) || (r.Error == "") != (r.Status != fleet.StatusError):
			t.Errorf("%s: %+v", c.id, r)
		case c.blocked && strings.HasPrefix(r.Error, "timeout: "): // a worker that is stopped refuses nothing
		case c.blocked && (r.Status != fleet.StatusBlocked || !strings.Contains(*r.BlockedReason, "flying") || r.TokensSpent != 0 && len(r.NextSteps) == 0): // a worker may have died of it before
			t.Errorf("%s needs what is not there: %+v", c.id, r)
		case r.Status == fleet.StatusDone && r.Summary != c.done:
			t.Errorf("%s: the summary %q is another task's; should be %q", c.id, r.Summary, c.done)
		case r.Status == fleet.StatusBlocked && !c.blocked && c.deadline == 0:
			t.Errorf("%s is blocked by %s", c.id, *r.BlockedReason)
		case r.Error == "deadline" && c.deadline == 0:
			t.Errorf("%s has no deadline", c.id)
		}
	}
	return counts
}

// wreck kills and stops workers at random until it is told to stop, and tells how many. It
// waits for some results each time, or for long: a slow machine has hardly more of them hurt.
func (f *chaosFleet) wreck(random *rand.Rand, stop <-chan struct{}) (harm [2]int) {
	hurt := time.Now()
	for turn, next := 0, 0; ; {
		select {
		case <-stop:
			return harm
		case <-time.After(10 * time.Millisecond):
		}
		f.mu.Lock()
		soon := len(f.results) < next
		f.mu.Unlock()
		if soon && time.Since(hurt) < 2*time.Second {
			continue
		}
		workers := workersUnder(f.cmd.Process.Pid)
		if len(workers) == 0 {
			continue
		}
		turn, next, hurt = turn+1, next+10+random.IntN(20), time.Now()
		pid := workers[random.IntN(len(workers))]
		if turn%6 == 3 {
			if syscall.Kill(pid, syscall.SIGSTOP) == nil {
				harm[1]++
			}
		} else if syscall.Kill(pid, syscall.SIGKILL) == nil {
			harm[0]++
		}
	}
}

// workersUnder finds the processes of workers among the descendants of a host.
func workersUnder(host int) (pids []int) {
	parents := make(map[int]int)
	files, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is right
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if parent, err2 := strconv.Atoi(fields[1]); cmp.Or(err, err2) == nil {
			parents[pid] = parent
		}
	}
	for pid := range parents {
		words, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // it may have ended
		if !bytes.Contains(words, []byte("\x00worker\x00--agent-id\x00")) {
			continue
		}
		for up := parents[pid]; up > 1; up = parents[up] {
			if up == host {
				pids = append(pids, pid)
				break
			}
		}
	}
	slices.Sort(pids)
	return pids
}

// processesIn finds the processes that work in a folder.
func processesIn(dir string) (left []string) {
	links, _ := filepath.Glob("/proc/[0-9]*/cwd") // the pattern is right
	for _, link := range links {
		if at, err := os.Readlink(link); err == nil && (at == dir || strings.HasPrefix(at, dir+"/")) {
			words, _ := os.ReadFile(filepath.Join(filepath.Dir(link), "cmdline")) // it may have ended
			left = append(left, filepath.Dir(link)+": "+string(bytes.ReplaceAll(words, []byte{0}, []byte(" "))))
		}
	}
	return left
}
