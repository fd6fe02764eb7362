package planning

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/stores"
	"a2e/host/state/store"
	"a2e/protocol"
)

// clock is a time that only the test moves.
type clock struct{ at atomic.Int64 }

func (c *clock) now() time.Time           { return time.UnixMicro(c.at.Load()) }
func (c *clock) forward(by time.Duration) { c.at.Add(by.Microseconds()) }

// newTimed opens a host with the time of the returned clock.
func newTimed(t *testing.T, path string) (*stage, *clock) {
	c := &clock{}
	c.at.Store(1_900_000_000_000_000)
	s := &stage{t: t, store: openStore(t, path)}
	s.Pair = hosttest.New(t, host.Options{Plugins: []host.Plugin{newPlugin(t, "plans", s.store, c.now)}})
	s.Handshake(protocol.CapPlanning)
	return s, c
}

// changed is the answer to an update.
type changed struct {
	Success   bool   `json:"success"`
	TaskID    string `json:"task_id"`
	Error     string `json:"error"`
	Task      row    `json:"task"`
	Remaining *int   `json:"remaining"`
}

// try sends an update of a task, and returns the answer.
func (s *stage) try(plan, task string, more ...any) (resp changed) {
	s.t.Helper()
	if task != "" {
		more = append(more, "task_id", task)
	}
	s.ask(protocol.TypeTaskUpdateReq, fields(s.t, append([]any{"plan_id", plan}, more...)...), &resp)
	return resp
}

// declined sends an update that must be declined, for a reason with these words.
func (s *stage) declined(words, plan, task string, more ...any) changed {
	s.t.Helper()
	resp := s.try(plan, task, more...)
	assert.That(s.t, !resp.Success && strings.Contains(resp.Error, words), "%v: %+v; want %q", more, resp, words)
	return resp
}

func TestClaim(t *testing.T) {
	s, clock := newTimed(t, newFile(t))
	plan := s.plan()
	a := s.task(plan, "a")
	b := s.task(plan, "b", "deps", []string{a})
	claimed := s.try(plan, a, "action", "claim", "owner", "w1", "lease", 60, "status", "in_progress")
	must.That(t, claimed.Success && claimed.Task.ClaimedBy == "w1" && claimed.Task.Until == 1_900_000_060 &&
		claimed.Task.Status == "in_progress" && claimed.Task.Version == 2, "%+v", claimed)
	for _, who := range []string{"w1", "w2"} { // also an owner of the same name
		s.declined("w1 has claimed it until 2030-03-17T17:47:40Z", plan, a, "action", "claim", "owner", who)
	}
	s.declined("waits for others: "+a, plan, b, "action", "claim", "owner", "w2")
	for _, more := range [][]any{
		{"status", "done"},
		{"title", "mine"},
		{"action", "delete"},
		{"action", "renew"},
		{"action", "release"},
		{"status", "done", "comment", "c"},
	} {
		left := s.declined("w1 has claimed it", plan, a, append(more, "owner", "w2")...)
		assert.That(t, left.Task.Version == 2 && left.Task.TaskID == a, "%+v", left)
	}
	s.update(plan, a, "comment", "how is it going?", "owner", "w2")
	clock.forward(30 * time.Second)
	s.update(plan, a, "action", "renew", "owner", "w1", "lease", 60)
	clock.forward(59 * time.Second)
	s.declined("w1 has claimed it", plan, a, "action", "claim", "owner", "w2")
	clock.forward(time.Second)
	assert.Equal(t, s.titles("ready", true), "[a]", "after the lease there is")
	s.update(plan, a, "action", "renew", "owner", "w1", "lease", 1) // no other has claimed it meanwhile
	clock.forward(time.Second)
	s.update(plan, a, "action", "claim", "owner", "w2")
	s.declined("w2 has claimed it", plan, a, "status", "done", "owner", "w1")
	s.declined("w2 has claimed it", plan, a, "action", "renew", "owner", "w1")
	s.update(plan, a, "action", "release", "owner", "w2")
	s.declined("nobody has claimed it", plan, a, "status", "done", "owner", "w2")
	s.update(plan, a, "action", "claim", "owner", "w3")
	s.update(plan, a, "status", "done", "owner", "w3")
	s.declined("is done already", plan, a, "action", "claim", "owner", "w1")
	got := s.list("task_id", a)[0]
	assert.That(t, got.ClaimedBy == "" && got.Until == 0 && len(got.Comments) == 1 && got.Comments[0].Author == "w2",
		"%+v", got)
	s.update(plan, b, "action", "claim", "owner", "w1")
	s.update(plan, b, "action", "claim", "owner", "w2", "force", true)
	consistent(t, s.store)
}

// TestClaimOfTheSession: a request without an owner belongs to the session's agent, so that a client
// that does not know owners can change the tasks that it has claimed.
func TestClaimOfTheSession(t *testing.T) {
	s := newStage(t, newFile(t))
	plan := s.plan()
	a := s.task(plan, "a")
	s.update(plan, a, "action", "claim")
	s.update(plan, a, "status", "done")
	assert.Equal(t, s.titles("status", "done"), "[a]", "done")
}

// TestClaimTheNext: the next task is the most urgent one that is ready and not assigned to another
// owner.
func TestClaimTheNext(t *testing.T) {
	s, clock := newTimed(t, newFile(t))
	plan := s.plan()
	s.task(plan, "low", "priority", "low")
	first := s.task(plan, "first")
	s.task(plan, "waits", "priority", "urgent", "deps", []string{first})
	s.task(plan, "second")
	s.task(plan, "late", "due", "2031-01-02")
	s.task(plan, "early", "due", "2031-01-01T12:00:00Z")
	s.task(plan, "hers", "priority", "high", "assignee", "she")
	s.task(plan, "high", "priority", "high")
	s.task(plan, "old", "priority", "urgent", "status", "done")
	assert.Equal(t, s.titles("plan_id", plan, "ready", true), "[hers high early late first second low]", "ready")
	assert.Equal(t, s.titles("plan_id", plan, "ready", true, "limit", 2), "[hers high]", "the first two")
	assert.Equal(t, s.titles("assignee", "she"), "[hers]", "hers")
	var order []string
	for i := range 7 {
		got := s.try(plan, "", "action", "claim", "owner", "w", "lease", 100)
		must.That(t, got.Success && got.TaskID == got.Task.TaskID, "%d: %+v", i, got)
		order = append(order, got.Task.Title)
		if got.TaskID == first {
			s.update(plan, first, "status", "done", "owner", "w")
		}
	}
	assert.Equal(t, fmt.Sprint(order), "[high early late first waits second low]", "order")
	none := s.declined("no task of the plan "+plan+" is ready for w: 7 not done", plan, "", "action", "claim", "owner",
		"w")
	assert.That(t, none.Remaining != nil && *none.Remaining == 7, "%+v", none)
	assert.Equal(t, s.try(plan, "", "action", "claim", "owner", "she").Task.Title, "hers", "for her")
	clock.forward(100 * time.Second)
	assert.Equal(t, s.try(plan, "", "action", "claim", "owner", "w").Task.Title, "waits", "after the leases")
}

func TestVersion(t *testing.T) {
	s := newStage(t, newFile(t))
	plan := s.plan()
	a := s.task(plan, "a")
	s.update(plan, a, "title", "b", "if_version", 1)
	left := s.declined("has version 2 by now, not 1", plan, a, "title", "c", "if_version", 1, "force", true)
	assert.That(t, left.Task.Version == 2 && left.Task.Title == "b", "%+v", left)
	s.update(plan, a, "title", "b", "if_version", 2) // changes nothing, so the version stays
	s.update(plan, a, "title", "c", "if_version", 2)
}

func TestDoneAfterDeps(t *testing.T) {
	s := newStage(t, newFile(t))
	plan := s.plan("columns", []string{"open", "shut", "dropped"}, "done_column", "shut")
	a := s.task(plan, "a")
	b := s.task(plan, "b", "deps", []string{a})
	s.declined("cannot be done before those that it waits for: "+a, plan, b, "status", "shut", "title",
		"nothing of it is kept")
	var added protocol.TaskAddResponse
	s.ask(protocol.TypeTaskAddReq, fields(t, "plan_id", plan, "title", "c", "status", "shut", "deps", []string{b}),
		&added)
	assert.That(t, !added.Success && strings.Contains(added.Error, b), "%+v", added)
	s.update(plan, b, "status", "dropped")
	s.update(plan, a, "status", "shut")
	s.update(plan, b, "status", "shut")
	assert.Equal(t, s.titles("status", "shut"), "[a b]", "done")
	s.update(plan, a, "status", "open")
	s.update(plan, b, "title", "stays done")
	s.update(plan, s.task(plan, "c", "deps", []string{a}), "status", "shut", "force", true)
	consistent(t, s.store)
}

func TestDelete(t *testing.T) {
	s := newStage(t, newFile(t))
	plan := s.plan("name", "p")
	a, c := s.task(plan, "a"), s.task(plan, "c")
	b := s.task(plan, "b", "deps", []string{a, c})
	s.declined("others wait for the task "+a+": "+b, plan, a, "action", "delete")
	s.update(plan, a, "action", "delete", "force", true)
	assert.Equal(t, s.titles(), "[c b]", "left")
	assert.Equal(t, fmt.Sprint(s.list("task_id", b)[0].Deps), fmt.Sprint([]string{c}), "deps of b")
	s.declined("there is no task", plan, a, "status", "done")
	s.declined("no task is named", plan, "", "action", "delete") // and the plan is not deleted
	s.update(plan, c, "action", "claim", "owner", "w")
	drop := func(more ...any) (resp protocol.PlanCreateResponse) {
		s.ask(protocol.TypePlanCreateReq, fields(t, append([]any{"delete", true}, more...)...), &resp)
		return resp
	}
	assert.Contains(t, drop().Error, `there is no plan ""`)
	assert.Contains(t, drop("plan_id", absent).Error, "there is no plan")
	assert.Contains(t, drop("plan_id", plan).Error, "the plan "+plan+" has 1 claimed task")
	consistent(t, s.store)
	gone := drop("plan_id", plan, "force", true)
	assert.That(t, gone.Success && gone.PlanID == plan && s.boards("") == "[]" && s.titles() == "[]", "%+v", gone)
	path, _ := s.refused(protocol.TypePlanCreateReq, fields(t, "plan_id", plan))
	assert.Equal(t, path, "/plan_id")
}

// TestClaimsOfTwoHosts: if two hosts claim the same task at once, exactly one gets it.
func TestClaimsOfTwoHosts(t *testing.T) {
	path := newFile(t)
	hosts := []*stage{newStage(t, path), newStage(t, path)}
	plan := hosts[0].plan()
	for range 20 {
		task := hosts[0].task(plan, "t")
		onlyOne(hosts, func(int) string {
			return fields(t, "plan_id", plan, "task_id", task, "action", "claim", "owner", "same")
		})
	}
}

// TestOlderFile: a file of the former version is upgraded: tasks in the last column are done.
func TestOlderFile(t *testing.T) {
	path := newFile(t)
	old := stores.Older(t, Part(), 1)
	s := must.Get(store.Open(t.Context(), path, store.Options{Parts: []store.Part{old}}))(t)
	put(t, s, `INSERT INTO planning_plans (id, created_at, size, tasks, tasks_size, name, columns, description)
		VALUES ('00000000000a', 1, 10, 2, 22, 'n', '["open","shut"]', '')`)
	put(t, s, `INSERT INTO planning_tasks (id, plan_id, created_at, place, updated_at, status, assignee, title, deps,
		description, metadata) VALUES ('00000000000b', '00000000000a', 1, 0, 1, 'shut', '', 'done', '[]', '', '{}'),
		('00000000000c', '00000000000a', 1, 1, 1, 'open', '', 'open', '["00000000000b"]', '', '{}')`)
	must.OK(t, s.Close())
	now := newStage(t, path)
	assert.Equal(t, now.titles("ready", true), "[open]", "ready")
	now.Call(protocol.TypePlanListReq, `{}`).Has(t, "/plans/0/done", "1", "/plans/0/done_column", "shut")
}

// TestFolders: plans have the folder in which they were made, and can be listed by it. Plans of the
// former version have no folder.
func TestFolders(t *testing.T) {
	path := newFile(t)
	old := stores.Older(t, Part(), 3)
	s := stores.Open(t, path, old)
	put(t, s, `INSERT INTO planning_plans (id, created_at, size, name, columns, done_column, description)
		VALUES ('00000000000a', 1, 10, 'old', '["open"]', 'open', '')`)
	must.OK(t, s.Close())
	kept, top := openStore(t, path), t.TempDir()
	in := func(folder string) *stage {
		env := host.Env{
			Store:     func(context.Context) (store.Store, error) { return kept, nil },
			Workspace: filepath.Join(top, folder),
		}
		at := &stage{t: t, store: kept}
		at.Pair = hosttest.New(t, host.Options{Plugins: []host.Plugin{must.Get(New("plans", Options{}, env))(t)}})
		at.Handshake(protocol.CapPlanning)
		return at
	}
	a, b := in("a"), in("b")
	a.plan("name", "of a")
	b.plan("name", "of b")
	for _, c := range [][2]string{
		{`{}`, "old  , of a a, of b b"},
		{`{"folder":""}`, "old  , of a a, of b b"},
		{`{"folder":"."}`, "of a a"},
		{`{"folder":"../b"}`, "of b b"},
		{fmt.Sprintf(`{"folder":%q}`, filepath.Join(top, "b")), "of b b"},
		{`{"folder":"c"}`, ""},
	} {
		var list struct {
			Plans []struct {
				Name   string `json:"name"`
				Folder string `json:"folder"`
			} `json:"plans"`
		}
		a.ask(protocol.TypePlanListReq, c[0], &list)
		var told []string
		for _, p := range list.Plans {
			name := " "
			if p.Folder != "" {
				name = filepath.Base(p.Folder)
			}
			told = append(told, p.Name+" "+name)
		}
		assert.Equal(t, strings.Join(told, ", "), c[1], "%s", c[0])
	}
}

// text returns the export of a plan in a format.
func (s *stage) text(plan, format string) string {
	s.t.Helper()
	var resp protocol.PlanBoardResponse
	s.ask(protocol.TypePlanBoardReq, fields(s.t, "plan_id", plan, "format", format), &resp)
	return resp.Text
}

func TestExportAsText(t *testing.T) {
	s, _ := newTimed(t, newFile(t))
	plan := s.plan("name", "release *1*", "description", "for all\n\x01# of <us>", "columns", []string{"open", "shut"})
	a := s.task(plan, "1. a \"b\"\nc%%{", "status", "shut")
	b := s.task(plan, "\x02- x\u202e [y]", "deps", []string{a}, "priority", "high", "due", "2031-01-02", "estimate",
		"36h", "assignee", "she", "description", "one\n\ntwo")
	s.update(plan, b, "comment", "well\n> done", "owner", "he")
	s.task(plan, strings.Repeat("long ", 20))
	want := strings.NewReplacer("A1", a, "B1", b, "'", "`").Replace(`# release \*1\*

for all
\# of \<us\>

## open

- [ ] \- x \[y\] 'B1' · priority high · due 2031-01-02T23:59:59Z · takes 36h · assigned to she · after 'A1'

  one

  two

  > he, 2030-03-17T17:46:40Z: well
  > \> done
`)
	got := s.text(plan, "markdown")
	assert.That(t, strings.HasPrefix(got, want), "%s", got)
	flow := fmt.Sprintf("flowchart TD\n  t%s[\"1. a #quot;b#quot; c#37;#37;{\"]:::done\n  t%s[\"- x [y]\"]\n  t%s "+
		"--> t%s\n  classDef done fill:#ddd,stroke:#999,color:#555\n", a, b, a, b)
	assert.That(t, strings.HasSuffix(got, "\n## shut\n\n- [x] 1\\. a \"b\" c%%{ `"+a+"`\n\n## Dependencies\n\n```mermaid\n"+flow+"```\n"), "%s", got)
	assert.Equal(t, s.text(plan, "mermaid"), flow)
	assert.Equal(t, s.text(absent, "markdown"), "")
	for want, more := range map[string][]any{
		"/format":  {"plan_id", plan, "format", "html"},
		"/plan_id": {"format", "markdown"},
	} {
		path, _ := s.refused(protocol.TypePlanBoardReq, fields(t, more...))
		assert.Equal(t, path, want)
	}
}
