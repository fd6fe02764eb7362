package cli_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// planner is a host that an agent plans with.
type planner struct {
	*live
	asked int
}

// plans starts one in dir.
func plans(t *testing.T, dir string) *planner {
	t.Helper()
	p := &planner{live: start(t, dir)}
	p.send(`{"type":"handshake/req","id":"h","agent_id":"test","agent_caps":["planning"]}`)
	if m := p.answer("h"); m["ok"] != true {
		t.Fatalf("%v", m)
	}
	return p
}

// ask sends a request and gives one field of its answer.
func (p *planner) ask(typ, field, fields string) string {
	p.t.Helper()
	p.asked++
	id := fmt.Sprint("p", p.asked)
	p.send(fmt.Sprintf(`{"type":%q,"id":%q,%s}`, typ, id, fields))
	m := p.answer(id)
	if m["success"] != true {
		p.t.Fatalf("%s: %v", typ, m)
	}
	return m[field].(string)
}

func TestPlanBoard(t *testing.T) {
	dir := stateDir(t)
	t.Setenv("COLUMNS", "60")
	run(t, dir, nil, "plan", "board").want(t, 0, "there is no plan yet")
	if out := run(t, dir, nil, "plan", "board", "--json").want(t, 0, ""); out.stdout != "[]\n" {
		t.Errorf("without plans: %q", out.stdout)
	}
	p := plans(t, dir)
	release := p.ask("planning/plan/create", "plan_id", `"name":"release","description":"Ship it.","columns":["todo","doing","done"]`)
	first := p.ask("planning/task/add", "task_id", fmt.Sprintf(`"plan_id":%q,"title":"write \u001b[31mthe docs","assignee":"bob","metadata":{"n":12345678901234567890}`, release))
	p.ask("planning/task/add", "task_id", fmt.Sprintf(`"plan_id":%q,"title":"test them on every machine that there is in the house","status":"doing","deps":[%q]`, release, first))
	other := p.ask("planning/plan/create", "plan_id", `"name":"other"`)
	again := p.ask("planning/plan/create", "plan_id", `"name":"other"`)

	out := run(t, dir, nil, "plan", "board", "release").want(t, 0, "") // the host still runs
	want := fmt.Sprintf(`release  %s  2 tasks
Ship it.

todo (1)                  doing (1)                 done (0)
------------------------  ------------------------  --------
- write \x1b[31mthe docs  - test them on every
  @bob                      machine that there is
                            in the house
`, release)
	if out.stdout != want {
		t.Errorf("it shows\n%sshould be\n%s", out.stdout, want)
	}
	for _, tc := range []struct {
		args []string
		want []string
	}{
		{nil, []string{release, other, again}},
		{[]string{"other"}, []string{other, again}},
		{[]string{again}, []string{again}},
		{[]string{"--status", "doing"}, []string{release}},
		{[]string{"--status", "done"}, []string{release, other, again}},
		{[]string{"--status", "doing", "--status", "backlog"}, []string{release, other, again}},
	} {
		var got []string
		for line := range strings.Lines(run(t, dir, nil, append([]string{"plan", "board"}, tc.args...)...).want(t, 0, "").stdout) {
			if strings.Contains(line, " task") && !strings.HasPrefix(line, "-") {
				got = append(got, strings.Fields(line)[1])
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(tc.want) {
			t.Errorf("%q shows %v, should be %v", tc.args, got, tc.want)
		}
	}
	out = run(t, dir, nil, "plan", "board", "releas\x1b").want(t, 1, `releas\x1b`)
	for _, name := range []string{release + " release", other + " other", again + " other"} {
		if !strings.Contains(out.stderr, name) {
			t.Errorf("%q is not offered: %s", name, out.stderr)
		}
	}
	run(t, dir, nil, "plan", "board", "release", "--status", "todo", "--status", "backlog").want(t, 1, `there is no column "backlog"; there are: doing, done, todo`)
}

func TestPlanBoardAsJSON(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	p := plans(t, dir)
	plan := p.ask("planning/plan/create", "plan_id", `"name":"n","columns":["z","a"]`)
	p.ask("planning/task/add", "task_id", fmt.Sprintf(`"plan_id":%q,"title":"t \u009b2J","status":"a","metadata":{"n":12345678901234567890}`, plan))
	for _, tc := range []struct {
		args  []string
		lanes string
	}{
		{nil, `"z":[],"a":[{`},
		{[]string{"n", "--status", "a"}, `{"a":[{`},
		{[]string{"--status", "z"}, `{"z":[]}`},
	} {
		out := run(t, dir, nil, append([]string{"plan", "board", "--json"}, tc.args...)...).want(t, 0, "")
		var boards []struct {
			PlanID  string         `json:"plan_id"`
			Columns []string       `json:"columns"`
			Tasks   jsontext.Value `json:"tasks"`
		}
		if err := json.Unmarshal([]byte(out.stdout), &boards); err != nil || len(boards) != 1 || boards[0].PlanID != plan {
			t.Fatalf("%v in %s", err, out.stdout)
		}
		if err := boards[0].Tasks.Compact(); err != nil || !strings.Contains(string(boards[0].Tasks), tc.lanes) {
			t.Errorf("%q: %v, %s", tc.args, err, boards[0].Tasks)
		}
		if strings.Contains(tc.lanes, `"a"`) && !strings.Contains(out.stdout, `"n": 12345678901234567890`) || strings.Contains(out.stdout, "\u009b") {
			t.Errorf("%q: %s", tc.args, out.stdout)
		}
	}
}

func TestPlanBoardWithoutPlugin(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	writeConfig(t, dir, "plugins: [{name: e, type: env}]\n")
	run(t, dir, nil, "plan", "board").want(t, 3, "no plugin of the config provides planning")
}
