package cli_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// The life of a plan by hand, and what goes wrong with it.
func TestPlanByHand(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	do := func(args ...string) string {
		t.Helper()
		return strings.TrimSpace(run(t, dir, nil, append([]string{"plan"}, args...)...).want(t, 0, "").stdout)
	}
	refused := func(code int, says string, args ...string) {
		t.Helper()
		run(t, dir, nil, append([]string{"plan"}, args...)...).want(t, code, says)
	}
	plan := do("add", "release", "--column", "open", "--column", "shut")
	write := do("task", "add", "release", "write\x1b it", "--priority", "high", "--due", "2030-01-01", "--estimate", "2h", "--assignee", "ada")
	ship := do("task", "add", plan, "ship", "--after", write)
	rows := func(args ...string) string { // without the header, and what fills the columns
		_, table, _ := strings.Cut(do(args...), "\n")
		return regexp.MustCompile("  +").ReplaceAllString(table, "  ")
	}
	assert.Equal(t, rows("list"), plan+"  0 of 2 done  release")
	assert.Equal(t, rows("show", "release"), write+"  open  high  2030-01-01T23:59:59Z  write\\x1b it @ada\n"+ship+"  open  normal  ship")
	refused(1, "is ready for a2e plan: 2 are not done", "task", "claim", "release")
	assert.Equal(t, do("task", "claim", "release", "--owner", "ada", "--lease", "600"), write+" write\\x1b it")
	assert.Contains(t, do("show", "release"), "claimed by")
	assert.Equal(t, do("show", "release", "--ready"), "")
	refused(1, "ada has claimed it", "task", "set", "release", write, "--status", "shut")
	do("task", "renew", "release", write, "--owner", "ada")
	do("task", "release", "release", write, "--owner", "ada")
	refused(1, "cannot be done before those that it waits for: "+write, "task", "set", "release", ship, "--status", "shut")
	do("task", "set", "release", write, "--status", "shut", "--title", "wrote it", "--clear", "due", "--comment", "easy", "--if-version", "4")
	refused(1, "has version 5 by now, not 4", "task", "set", "release", write, "--title", "x", "--if-version", "4")
	assert.Equal(t, rows("show", "release", "--ready"), ship+"  open  normal  ship")
	assert.Contains(t, do("show", "release", "--json", "--status", "shut"), `"text": "easy"`)
	do("export", "release", "--output", "PLAN.md")
	page := string(must.Get(os.ReadFile(filepath.Join(dir, "PLAN.md")))(t))
	assert.That(t, strings.Contains(page, "- [x] wrote it `"+write+"` · priority high · takes 2h · assigned to ada\n") && strings.HasSuffix(do("export", plan, "--mermaid"), "color:#555"), "%s", page)
	refused(1, "others wait for the task "+write+": "+ship, "task", "delete", "release", write)
	do("task", "delete", "release", write, "--force")
	do("add", "release")
	refused(2, "2 plans have the name", "show", "release")
	refused(1, `there is no plan with the id or name "releas"`, "export", "releas")
	refused(1, "should be one of urgent, high, normal, low", "task", "add", plan, "t", "--priority", "p1")
	refused(2, "1 or more", "task", "claim", plan, "--lease=0")
	do("task", "claim", plan, ship)
	refused(1, "1 tasks of the plan "+plan+" are claimed", "delete", plan)
	do("delete", plan, "--force")
	assert.Equal(t, strings.Count(do("list"), "\n"), 1, "lines of what is left: a header, and a plan")
}

// claimAll claims tasks of a plan and finishes them until none is left, and returns how often it finished each.
func claimAll(h *durableHost, plan, owner string) (done map[string]int, err error) {
	done = make(map[string]int)
	for h.t.Context().Err() == nil {
		var got protocol.TaskUpdateResponse
		req := &protocol.TaskUpdateRequest{PlanID: plan, Action: protocol.TaskClaim, Owner: owner, Lease: 60}
		if err := h.Call(h.t.Context(), protocol.TypeTaskUpdateReq, req, &got); err != nil {
			return done, err
		}
		switch {
		case !got.Success && got.Remaining != nil && *got.Remaining == 0:
			return done, nil
		case !got.Success && got.Remaining != nil:
			continue // others have the rest
		case !got.Success:
			return done, fmt.Errorf("%+v", got)
		}
		end := protocol.TaskUpdateResponse{}
		req = &protocol.TaskUpdateRequest{PlanID: plan, TaskID: got.TaskID, Status: "done", Owner: owner}
		if err := h.Call(h.t.Context(), protocol.TypeTaskUpdateReq, req, &end); err != nil || !end.Success {
			return done, fmt.Errorf("%s: %+v, %w", got.TaskID, end, err)
		}
		done[got.TaskID]++
	}
	return done, context.Cause(h.t.Context())
}

// TestFourHostsClaimTasks: hosts on one file share the tasks of a plan; each is done once, also that of
// a host which was killed. A2E_SOAK_CLAIMS=10000 takes as many tasks.
func TestFourHostsClaimTasks(t *testing.T) {
	t.Parallel()
	const hosts = 4
	tasks := hosttest.Soak(t, "A2E_SOAK_CLAIMS", 120)
	dir := durableDir(t)
	var all []*durableHost
	for range hosts {
		all = append(all, durableStart(t, dir))
	}
	var plan protocol.PlanCreateResponse
	must.OK(t, all[0].Call(t.Context(), protocol.TypePlanCreateReq, &protocol.PlanCreateRequest{Name: "p"}, &plan))
	var last protocol.TaskAddResponse
	for i := range tasks {
		req := &protocol.TaskAddRequest{PlanID: plan.PlanID, Title: fmt.Sprint(i)}
		if i%10 == 9 {
			req.Deps = []string{last.TaskID}
		}
		must.OK(t, all[0].Call(t.Context(), protocol.TypeTaskAddReq, req, &last))
	}
	dead := durableStart(t, dir)
	must.OK(t, dead.Call(t.Context(), protocol.TypeTaskUpdateReq, &protocol.TaskUpdateRequest{PlanID: plan.PlanID, Action: protocol.TaskClaim, Owner: "dead", Lease: 1}, nil))
	dead.kill()
	start := time.Now()
	var group sync.WaitGroup
	done, errs := make([]map[string]int, hosts), make([]error, hosts)
	for i, h := range all {
		group.Go(func() { done[i], errs[i] = claimAll(h, plan.PlanID, fmt.Sprint("w", i)) })
	}
	group.Wait()
	took := time.Since(start)
	times := make(map[string]int)
	for i := range all {
		must.OK(t, errs[i])
		for id, n := range done[i] {
			times[id] += n
		}
		all[i].end()
	}
	for id, n := range times {
		assert.Equal(t, n, 1, "times that %s was done", id)
	}
	assert.Equal(t, len(times), tasks, "tasks done")
	t.Logf("%d tasks claimed and done by %d hosts in %s: %.0f a second", tasks, hosts, took, float64(tasks)/took.Seconds())
}
