package e2e_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// TestPlanByHand: a person can make, change and delete a plan and its tasks by commands, and mistakes are refused.
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
	write := do("task", "add", "release", "write\x1b it", "--priority", "high", "--due", "2030-01-01", "--estimate",
		"2h", "--assignee", "ada")
	ship := do("task", "add", plan, "ship", "--after", write)
	rows := func(args ...string) string { // without the header and the padding of the columns
		_, table, _ := strings.Cut(do(args...), "\n")
		return regexp.MustCompile("  +").ReplaceAllString(table, "  ")
	}
	assert.Equal(t, rows("list"), plan+"  0 of 2 done  release")
	assert.Equal(t, rows("show", "release"), write+"  open  high  2030-01-01T23:59:59Z  write\\x1b it @ada\n"+ship+"  open  normal  ship")
	refused(1, "is ready for a2e plan: 2 not done", "task", "claim", "release")
	assert.Equal(t, do("task", "claim", "release", "--owner", "ada", "--lease", "600"), write+" write\\x1b it")
	assert.Contains(t, do("show", "release"), "claimed by")
	assert.Equal(t, do("show", "release", "--ready"), "")
	refused(1, "ada has claimed it", "task", "set", "release", write, "--status", "shut")
	do("task", "renew", "release", write, "--owner", "ada")
	do("task", "release", "release", write, "--owner", "ada")
	refused(1, "cannot be done before those that it waits for: "+write, "task", "set", "release", ship, "--status",
		"shut")
	do("task", "set", "release", write, "--status", "shut", "--title", "wrote it", "--clear", "due", "--comment",
		"easy", "--if-version", "4")
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
	refused(1, "the plan "+plan+" has 1 claimed task", "delete", plan)
	do("delete", plan, "--force")
	assert.Equal(t, strings.Count(do("list"), "\n"), 1, "lines of what is left: a header, and a plan")
}
