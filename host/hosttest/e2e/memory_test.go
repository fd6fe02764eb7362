package e2e_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// keysOf returns the ids of the entries that a command with --json prints.
func keysOf(t *testing.T, out outcome) []string {
	t.Helper()
	var entries []struct {
		Key struct {
			ID string `json:"id"`
		} `json:"key"`
		Content   string   `json:"content"`
		Tier      string   `json:"tier"`
		Tags      []string `json:"tags"`
		UpdatedAt float64  `json:"updated_at"`
	}
	err := json.Unmarshal([]byte(out.stdout), &entries)
	must.That(t, err == nil && out.code == 0, "%v in %+v", err, out)
	keys := []string{}
	for _, e := range entries {
		assert.That(t, e.Content != "" && e.Tier != "" && e.Tags != nil && !(e.UpdatedAt < 1e9), "%+v lacks something",
			e)
		keys = append(keys, e.Key.ID)
	}
	return keys
}

// memories fills a store: three entries of agent a2e, one of w1, one in another
// namespace and one in a scope.
func memories(t *testing.T) string {
	t.Helper()
	dir := stateDir(t)
	remember(t, dir, "a2e", entry("deploy", "episodic", "how to deploy the web server", "ops"),
		entry("lunch", "episodic", "the cook makes soup on Mondays", "food"),
		entry("rule", "semantic", "never deploy on Fridays", "ops", "rules"))
	remember(t, dir, "w1", entry("own", "episodic", "what w1 alone has seen"))
	rememberIn(t, dir, "a2e", `{"namespace":"shop"}`, entry("shop", "episodic", "a refund takes three days"))
	rememberIn(t, dir, "a2e", `{"namespace":"shop","scope":{"user":"u7","team":"a=b;c"}}`,
		entry("scoped", "semantic", "u7 pays by card"))
	return dir
}

func TestMemoryListAndSearch(t *testing.T) {
	t.Parallel()
	dir := memories(t)
	for _, c := range []struct {
		args string
		want []string
	}{
		{"list", []string{"rule", "lunch", "deploy"}},
		{"list --limit 1", []string{"rule"}},
		{"list --tier episodic", []string{"lunch", "deploy"}},
		{"list --tier semantic", []string{"rule"}},
		{"list --tag ops", []string{"rule", "deploy"}},
		{"list --tag rules --tag food", []string{"rule", "lunch"}},
		{"list --tag rules,food", []string{}},
		{"list --all-tag rules --all-tag ops", []string{"rule"}},
		{"list --since 1h --source none", []string{}},
		{"list --until 1h", []string{}},
		{`list --filter {"id":{"exists":false}} --limit 1`, []string{"rule"}},
		{"list --namespace sho --below", []string{}},
		{"list --namespace shop --below", []string{"shop"}},
		{`history {"id":"rule"}`, []string{"rule"}},
		{"list --agent w1", []string{"own", "rule"}},
		{"list --agent w1 --tier episodic", []string{"own"}},
		{"list --namespace shop", []string{"shop"}},
		{"list --namespace shop --scope user=u7 --scope team=a=b;c", []string{"scoped"}},
		{"list --namespace shop --scope user=u8", []string{}},
		{"search soup --limit 1", []string{"lunch"}},
		{"search deploy --tier semantic --limit 1", []string{"rule"}},
		{"search refund --namespace shop --limit 1", []string{"shop"}},
		{"search deploy,fridays --limit 2", []string{"rule", "deploy"}},
		{"search deploy,fridays --min-score 0.9", []string{"rule"}},
		{"search soup --tag rules --min-score 1", []string{}},
	} {
		out := run(t, dir, nil, append(append([]string{"memory"}, strings.Fields(c.args)...), "--json")...)
		assert.Slice(t, keysOf(t, out), c.want, "memory %s finds", c.args)
	}
}

func TestMemoryTable(t *testing.T) {
	t.Parallel()
	dir := memories(t)
	out := run(t, dir, nil, "memory", "list", "--limit", "2").want(t, 0, "2 of 3 entries")
	lines := strings.Split(strings.TrimSuffix(out.stdout, "\n"), "\n")
	want := []string{
		`^SCORE  TIER      WRITTEN      KEY             TAGS       FOLDER +CONTENT$`,
		`^\d\.\d\d   semantic  \d\d-\d\d \d\d:\d\d  \{"id":"rule"\}   ops,rules  /\S+  never deploy on Fridays$`,
		`^\d\.\d\d   episodic  \d\d-\d\d \d\d:\d\d  \{"id":"lunch"\}  food       /\S+  the cook makes soup on Mondays$`,
	}
	must.Equal(t, len(lines), len(want), "… lines, want …:\n%s", out.stdout)
	for i, line := range lines {
		assert.That(t, regexp.MustCompile(want[i]).MatchString(line), "%q does not look like %s", line, want[i])
	}
	_, cursor, _ := strings.Cut(out.stderr, "--cursor ")
	next := run(t, dir, nil, "memory", "list", "--json", "--cursor", strings.Fields(cursor)[0])
	assert.Slice(t, keysOf(t, next), []string{"deploy"}, "the next ones are")
	out = run(t, dir, nil, "memory", "history", `{"id":"rule"}`).want(t, 0, "")
	ok, err := regexp.MatchString(`^VERSION +TIER .*\n1 +semantic `, out.stdout)
	assert.That(t, ok, "the history is %s %v", out.stdout, err)
	out = run(t, dir, nil, "memory", "namespaces").want(t, 0, "")
	assert.Equal(t, out.stdout, "ENTRIES  NAMESPACE\n3        default\n1        shop\n", "the namespaces are")
	out = run(t, dir, nil, "memory", "list", "--namespace", "empty").want(t, 0, "no entry")
	assert.Equal(t, out.stdout, "", "of no entry it prints")
}

// TestMemoryPrintsNothingThatATerminalObeys: an agent writes an entry and a person reads it at a terminal, so control
// characters are not printed.
func TestMemoryPrintsNothingThatATerminalObeys(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	const evil = "\x1b]0;title\x07\x1b[2J\u009b31mred\r\nnext\x7f\u202eturned\x00"
	raw := must.Get(json.Marshal(map[string]any{
		"key": map[string]string{"id": evil}, "tier": "semantic",
		"content": evil, "tags": []string{evil},
	}))(t)
	remember(t, dir, "a2e", string(raw), entry("more", "semantic", "an object"))
	for _, args := range [][]string{{"list"}, {"search", "title"}, {"list", "--json"}, {"search", "title", "--json"}} {
		out := run(t, dir, nil, append([]string{"memory"}, args...)...).want(t, 0, "")
		assert.Contains(t, out.stdout, "title", "%v prints", args)
		i := strings.IndexAny(out.stdout+out.stderr, "\x1b\x07\r\x00\x7f\u009b\u202e")
		assert.That(t, i < 0, "%v prints raw, at %d: %q", args, i, out.stdout)
	}
	out := run(t, dir, nil, "memory", "list", "--json", "--limit", "2").want(t, 0, "")
	assert.Slice(t, keysOf(t, out), []string{"more", evil}, "the JSON says something else")
}

func TestMemoryForget(t *testing.T) {
	t.Parallel()
	dir := memories(t)
	for _, c := range []struct {
		args []string
		want int
		left []string // of agent a2e in the default namespace
	}{
		{[]string{"--key", `{"id":"nothing"}`}, 0, []string{"rule", "lunch", "deploy"}},
		// the entry is of another tier
		{[]string{"--key", `{"id":"rule"}`, "--tier", "episodic"}, 0, []string{"rule", "lunch", "deploy"}},
		{[]string{"--key", `{"id":"rule"}`, "--tag", "food"}, 0, []string{"rule", "lunch", "deploy"}},
		{[]string{"--all-tag", "ops", "--all-tag", "food"}, 0, []string{"rule", "lunch", "deploy"}},
		{[]string{"--filter", `{"x":{"exists":true}}`}, 0, []string{"rule", "lunch", "deploy"}},
		{[]string{"--until", "24h"}, 0, []string{"rule", "lunch", "deploy"}},
		{[]string{"--key", `{"id":"deploy"}`, "--agent", "w1"}, 0, []string{"rule", "lunch", "deploy"}},
		{[]string{"--tag", "ops", "--namespace", "shop"}, 0, []string{"rule", "lunch", "deploy"}},
		{[]string{"--key", `{"id":"deploy"}`, "--key", `{ "id" : "lunch" }`}, 2, []string{"rule"}},
		{[]string{"--all", "--yes"}, 1, []string{}},
	} {
		out := run(t, dir, nil, append([]string{"memory", "forget"}, c.args...)...).want(t, 0, "")
		want := fmt.Sprintf("%d deleted\n", c.want)
		assert.Equal(t, out.stdout, want, "forget %q prints", c.args)
		assert.Slice(t, keysOf(t, run(t, dir, nil, "memory", "list", "--json")), c.left, "forget %q leaves", c.args)
	}
	out := run(t, dir, nil, "memory", "forget", "--key", `{"id":"scoped"}`, "--tier", "semantic", "--namespace", "shop",
		"--scope", "user=u7", "--scope", "team=a=b;c").want(t, 0, "")
	assert.Equal(t, out.stdout, "1 deleted\n", "of a scope")
}

func TestMemoryUsage(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"forget"}, 2, "say what to forget"},
		{[]string{"forget", "--tier", "semantic"}, 2, "say what to forget"},
		{[]string{"forget", "--all"}, 2, "--all --yes"},
		{[]string{"forget", "--all", "--yes", "--tag", "a"}, 2, "or what to forget, not both"},
		{[]string{"forget", "--filter", `{"a":{"gtt":1}}`}, 1, `did you mean "gt"`},
		{[]string{"list", "--filter", `[1]`}, 2, `--filter: a JSON object should be here, such as {"key":"value"}`},
		{[]string{"list", "--since", "yesterday"}, 2, "--since: should be a time after 1970 such as 2026-01-31"},
		{[]string{"list", "--cursor", "cx"}, 1, "--cursor"},
		{[]string{"history", "x"}, 2, "not valid JSON"},
		{[]string{"forget", "--key", `[1]`}, 2, "--key: a JSON object should be here"},
		{[]string{"forget", "--key", `{"a":`}, 2, "not valid JSON"},
		{[]string{"forget", "--key", `{}`, "--tier", "working"}, 2, "working"},
		{[]string{"search"}, 2, "query"},
		{[]string{"search", " "}, 2, "memory list"},
		{[]string{"search", "x", "--min-score", "1.5"}, 2, "from 0 to 1"},
		{[]string{"search", "x", "--min-score", "NaN"}, 2, "out of range"},
		{[]string{"list", "--limit", "0"}, 2, "1 or more"},
		{[]string{"list", "--tier", "nonsense"}, 2, "nonsense"},
		{[]string{"list", "--scope", "novalue"}, 2, "novalue"},
	} {
		out := run(t, dir, nil, append([]string{"memory"}, c.args...)...).want(t, c.code, c.says)
		assert.Equal(t, out.stdout, "", "%q prints", c.args)
	}
	writeConfig(t, dir, stateConfig+"plugins: [{name: t, type: tools}]\n")
	run(t, dir, nil, "memory", "list").want(t, 3, "no plugin of the config provides memory")
	writeConfig(t, dir, "state_dri: x\n")
	run(t, dir, nil, "memory", "list").want(t, 3, "state_dri")
}

// TestMemoryTellsOfOthers: a list says which agents and namespaces have entries that it does not show.
func TestMemoryTellsOfOthers(t *testing.T) {
	t.Parallel()
	dir := memories(t)
	run(t, dir, nil, "memory", "list").want(t, 0, "other entries, which --agent and --namespace show: a2e (1 in "+
		"shop), w1 (1 in default)")
	run(t, dir, nil, "memory", "list", "--agent", "w1", "--json").want(t, 0, "a2e (2 in default), a2e (1 in shop)")
}

// planner is a host, and an agent that plans with it.
type planner struct {
	*live
	asked int
}

// plans starts a planner in dir.
func plans(t *testing.T, dir string) *planner {
	t.Helper()
	p := &planner{live: start(t, dir)}
	p.send(`{"type":"handshake/req","id":"h","agent_id":"test","agent_caps":["planning"]}`)
	m := p.answer("h")
	must.That(t, m["ok"] == true, "%v", m)
	return p
}

// ask sends a request and returns one field of its answer.
func (p *planner) ask(typ, field, fields string) string {
	p.t.Helper()
	p.asked++
	id := fmt.Sprint("p", p.asked)
	p.send(fmt.Sprintf(`{"type":%q,"id":%q,%s}`, typ, id, fields))
	m := p.answer(id)
	must.That(p.t, m["success"] == true, "%s: %v", typ, m)
	return m[field].(string)
}

func TestPlanBoard(t *testing.T) {
	dir := stateDir(t)
	t.Setenv("COLUMNS", "20") // has no effect, as stdout is a pipe
	run(t, dir, nil, "plan", "board").want(t, 0, "there is no plan yet")
	if out := run(t, dir, nil, "plan", "board", "--json").want(t, 0, ""); out.stdout != "[]\n" {
		t.Errorf("without plans: %q", out.stdout)
	}
	p := plans(t, dir)
	release := p.ask("planning/plan/create", "plan_id",
		`"name":"release","description":"Ship it.","columns":["todo","doing","done"]`)
	first := p.ask("planning/task/add", "task_id",
		fmt.Sprintf(`"plan_id":%q,"title":"write \u001b[31mthe docs","assignee":"bob","metadata":{"n":12345678901234567890}`, release))
	p.ask("planning/task/add", "task_id", fmt.Sprintf(`"plan_id":%q,"title":"test them on every machine that there is in the house","status":"doing","deps":[%q]`, release, first))
	other := p.ask("planning/plan/create", "plan_id", `"name":"other"`)
	again := p.ask("planning/plan/create", "plan_id", `"name":"other"`)

	out := run(t, dir, nil, "plan", "board", "release").want(t, 0, "") // the host still runs
	want := fmt.Sprintf(`release  %s  2 tasks
Ship it.

todo (1)
- write \x1b[31mthe docs @bob

doing (1)
- test them on every machine that there is in the house

done (0)
`, release)
	assert.Equal(t, out.stdout, want)
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
		for line := range strings.Lines(run(t, dir, nil, append([]string{"plan", "board"}, tc.args...)...).want(t, 0,
			"").stdout) {
			if strings.Contains(line, " task") && !strings.HasPrefix(line, "-") {
				got = append(got, strings.Fields(line)[1])
			}
		}
		assert.Equal(t, fmt.Sprint(got), fmt.Sprint(tc.want), "%q shows %v, should be %v", tc.args, got, tc.want)
	}
	out = run(t, dir, nil, "plan", "board", "releas\x1b").want(t, 1, `releas\x1b`)
	for _, name := range []string{release + " release", other + " other", again + " other"} {
		assert.Contains(t, out.stderr, name, "… is not offered")
	}
	run(t, dir, nil, "plan", "board", "release", "--status", "todo", "--status", "backlog").want(t, 1,
		`there is no column "backlog"; there are: doing, done, todo`)
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
		err := json.Unmarshal([]byte(out.stdout), &boards)
		must.That(t, err == nil && len(boards) == 1 && boards[0].PlanID == plan, "%v in %s", err, out.stdout)
		if err := boards[0].Tasks.Compact(); err != nil || !strings.Contains(string(boards[0].Tasks), tc.lanes) {
			t.Errorf("%q: %v, %s", tc.args, err, boards[0].Tasks)
		}
		assert.That(t, (!strings.Contains(tc.lanes, `"a"`) || strings.Contains(out.stdout,
			`"n": 12345678901234567890`)) && !strings.Contains(out.stdout, "\u009b"), "%q: %s", tc.args, out.stdout)
	}
}

func TestPlanBoardWithoutPlugin(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	writeConfig(t, dir, "plugins: [{name: e, type: env}]\n")
	run(t, dir, nil, "plan", "board").want(t, 3, "no plugin of the config provides planning")
}
