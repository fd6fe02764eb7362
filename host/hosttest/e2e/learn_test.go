package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// learned returns a folder whose host has called tools, got feedback and experiences, and adapted the weights.
func learned(t *testing.T) string {
	t.Helper()
	dir := stateDir(t)
	l := start(t, dir)
	ask := func(typ, fields string) map[string]any {
		t.Helper()
		l.send(fmt.Sprintf(`{"type":%q,"id":%q,%s}`, typ, typ+fields, fields))
		m := l.answer(typ + fields)
		must.That(t, m["type"] != "error", "%s: %v", typ, m)
		return m
	}
	ask("handshake/req", `"agent_id":"w1","agent_caps":["learning","tools"]`)
	for i := range 12 {
		ask("tool/call/req", fmt.Sprintf(`"tool_name":"echo","arguments":{"text":"%d"}`, i))
	}
	ask("tool/call/req", `"tool_name":"run_command","arguments":{"command":["cat","none"]}`)
	ask("learn/feedback/req", `"feedbacks":[`+strings.Join([]string{
		`{"feedback_id":"f1","polarity":"corrective","score":-0.5,"confidence":0.5,"dimension":"tone","correction":"Guten Tag","rated_turn":{"prompt":"greet \u001b[2J","response":"Hallo","model":"m1"}}`,
		`{"feedback_id":"f2","polarity":"corrective","score":-1,"correction":"ö","correction_span":[1,3],"rated_turn":{"prompt":"p","response":"Möeglich","model":"<b>\u202e&v"}}`,
		`{"feedback_id":"f3","polarity":"corrective","score":0,"correction":"x","correction_span":[1,30],"rated_turn":{"prompt":"p","response":"r","model":"m1"}}`,
		`{"feedback_id":"f4","polarity":"corrective","score":0,"correction":"r","rated_turn":{"prompt":"p","response":"r","model":"m1"}}`,
		`{"feedback_id":"f5","polarity":"corrective","score":0.5,"correction":"no turn"}`,
		`{"feedback_id":"f6","polarity":"positive","score":1,"rated_turn":{"prompt":"p","response":"r","model":"echo"}}`,
	}, ",")+`]`)
	ask("learn/experience/req", `"experiences":[{"experience_id":"x1","state":{"s":12345678901234567890},"action":{"component_name":"echo"},"reward":0.5,"next_state":{},"done":true,"episode_id":"e","step":3}]`)
	ask("learn/adapt/req", `"strategy":"ucb1"`)
	ask("learn/refinement/apply/req", `"proposal":{"component":"echo","kind":"tool","rationale":"it \u001b[2J works","edits":[{"target":"weight","to":1.75},{"target":"text","to":"Give text back."}]}`)
	l.stdin.Close()
	if code := l.exit(); code != 0 {
		t.Fatalf("exit status %d: %s", code, l.stderr.String())
	}
	return dir
}

// TestLearnFromOneKindOfEvidence: each kind of evidence that moves weights, as the public client says, does so alone:
// feedback, experiences, and the rewards of environments.
func TestLearnFromOneKindOfEvidence(t *testing.T) {
	t.Parallel()
	turn := func(polarity, score, model string) string {
		return fmt.Sprintf(`{"polarity":%q,"score":%s,"rated_turn":{"prompt":"p","response":"r","model":%q,"environment":null,"version":null}}`, polarity, score, model)
	}
	type ask func(typ, fields string) map[string]any
	for name, c := range map[string]struct {
		act        func(ask)
		good, less string
	}{
		"feedback": {func(ask ask) {
			ask("learn/feedback/req", `"feedbacks":[`+turn("positive", "0.9", "sql")+","+turn("negative", "-0.4",
				"web")+`]`)
		}, "sql", "web"},
		"experiences": {func(ask ask) {
			ask("learn/experience/req", `"experiences":[{"state":{"count":0},"action":{"component_name":"inc"},"reward":1.0,"next_state":{"count":1},"done":false},{"action":{"component_name":"dec"},"reward":-1.0}]`)
		}, "inc", "dec"},
		"steps": {func(ask ask) {
			for env, action := range map[string]string{"counter": "inc", "gridworld": "up"} {
				id := ask("env/reset/req", fmt.Sprintf(`"env_name":%q,"seed":1`,
					env))["obs"].(map[string]any)["episode_id"]
				for range 5 {
					ask("env/step/req", fmt.Sprintf(`"episode_id":%q,"action":{"type":%q}`, id, action))
				}
			}
		}, "counter", "gridworld"},
	} {
		dir := workDir(t)
		writeConfig(t, dir, "plugins:\n  - {name: learning, type: learning}\n  - {type: env, name: one, metadata: "+
			"{env: counter}}\n  - {type: env, name: two, metadata: {env: gridworld}}\n")
		l := start(t, dir, "--config", "a2e.yaml")
		n := 0
		ask := func(typ, fields string) map[string]any {
			n++
			l.send(fmt.Sprintf(`{"type":%q,"id":"%d",%s}`, typ, n, fields))
			return l.answer(fmt.Sprint(n))
		}
		ask("handshake/req", `"agent_id":"x","agent_caps":["learning","env"]`)
		for range 3 { // before the third, epsilon_greedy only explores
			c.act(ask)
		}
		for _, strategy := range []string{"thompson", "ppo", "ucb1", "epsilon_greedy", "softmax"} {
			weights := map[any]float64{}
			updated, _ := ask("learn/adapt/req", fmt.Sprintf(`"strategy":%q`, strategy))["updated"].([]any)
			for _, r := range updated {
				weights[r.(map[string]any)["component_name"]] = r.(map[string]any)["routing_weight"].(float64)
			}
			assert.That(t, len(weights) == 2 && weights[c.good] > 1 && weights[c.less] < 1,
				"%s alone, %s: the weights are %v", name, strategy, weights)
		}
		l.stdin.Close()
		l.exit()
	}
}

func TestLearnStats(t *testing.T) {
	t.Parallel()
	dir := learned(t)
	out := run(t, dir, nil, "learn", "stats").want(t, 0, "")
	rows := strings.Split(strings.TrimSpace(out.stdout), "\n")
	must.That(t, len(rows) == 5 && strings.HasPrefix(rows[0], "KIND"), "%s", out.stdout)
	if r := strings.Fields(rows[3]); r[0] != "tool" || r[1] != "12" || r[2] != "100%" || r[5] != "0.5" ||
		r[6] != "(1)" || r[7] != "+1.00" || r[8] != "(1)" || r[9] != "1.75" || r[len(r)-1] != "echo" {
		t.Errorf("%q", rows[3])
	}
	if r := strings.Fields(rows[4]); r[2] != "0%" || r[len(r)-1] != "run_command" {
		t.Errorf("%q", rows[4])
	}
	assert.Contains(t, rows[1], `<b>\u202e&v`, "a name that turns the terminal around")
	var records []struct {
		Name   string  `json:"component_name"`
		Calls  int     `json:"calls_total"`
		Weight float64 `json:"routing_weight"`
	}
	out = run(t, dir, nil, "learn", "stats", "echo", "--json").want(t, 0, "")
	err := json.Unmarshal([]byte(out.stdout), &records)
	assert.That(t, err == nil && len(records) == 1 && records[0].Name == "echo" && records[0].Calls == 12 &&
		records[0].Weight == 1.75, "%v, %s", err, out.stdout)
	out = run(t, dir, nil, "learn", "history").want(t, 0, "")
	for _, says := range []string{
		`: it \x1b[2J works`, "  tool echo: routing_weight, version 1: ", " to 1.75\n", "  tool echo: description, " +
			"version 1\n    --- version 0\n", "\n    -Return the text that was sent.\n    +Give text back.\n",
		"  tool echo: measuring; 12 of 12 calls (score +1.00 of 1 rating) before, 0 of 0 calls since\n",
	} {
		assert.That(t, strings.Contains(out.stdout, says), "%q is not in\n%s", says, out.stdout)
	}
	if out = run(t, dir, nil, "learn", "history", "echo", "--json").want(t, 0, ""); !strings.Contains(out.stdout,
		`"refinement_id"`) {
		t.Errorf("%s", out.stdout)
	}
	run(t, dir, nil, "learn", "history", "grep").want(t, 0, "nothing was refined of grep")
	run(t, dir, nil, "learn", "stats", "ecko").want(t, 1,
		`did you mean "echo"? there are: <b>\u202e&v, echo, m1, run_command`)
}

// TestLearnWithoutAStore: before a host has run there is nothing to read, and no store is made.
func TestLearnWithoutAStore(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"stats"}, {"history"}, {"export"}} {
		dir := stateDir(t)
		run(t, dir, nil, append([]string{"learn"}, args...)...).want(t, 1,
			"does not exist yet: nothing was kept so far")
		if got := files(t, dir); len(got) != 3 { // the binary, the config and the list of what is trusted
			t.Errorf("%v left %v", args, got)
		}
	}
}

func TestLearnOfAnEmptyStore(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	remember(t, dir, "w1", entry("a", "episodic", "text"))
	run(t, dir, nil, "learn", "stats").want(t, 0, "no call was recorded yet")
	out := run(t, dir, nil, "learn", "stats", "--json").want(t, 0, "")
	assert.Equal(t, strings.TrimSpace(out.stdout), "[]", "%q", out.stdout)
	run(t, dir, nil, "learn", "stats", "x").want(t, 1, `there is no record of a component "x"; there are: none`)
	run(t, dir, nil, "learn", "export").want(t, 0, "there are no preference pairs")
	run(t, dir, nil, "learn", "export", "--format", "rewards").want(t, 0, "there are no reward samples")
}

// jsonLines reads lines of JSON objects.
func jsonLines(t *testing.T, text string) (all []map[string]any) {
	t.Helper()
	for line := range strings.Lines(text) {
		var m map[string]any
		err := json.Unmarshal([]byte(line), &m)
		must.That(t, err == nil, "%v in %s", err, line)
		all = append(all, m)
	}
	return all
}

func TestLearnExportOfPreferencePairs(t *testing.T) {
	t.Parallel()
	dir := learned(t)
	out := run(t, dir, nil, "learn", "export").want(t, 0, "1 feedback left out: no rated_turn")
	out.want(t, 0, "1 feedback left out: the correction_span lies outside the response")
	out.want(t, 0, "1 feedback left out: the correction changes nothing")
	pairs := jsonLines(t, out.stdout)
	must.Equal(t, len(pairs), 2, "%s", out.stdout)
	for i, want := range []string{
		"greet \x1b[2J|Guten Tag|Hallo|tone|m1|0.5|human|m1|f1",
		"p|Möglich|Möeglich|helpfulness|<b>\u202e&v|1|human|<b>\u202e&v|f2",
	} {
		var got []string
		for _, key := range []string{
			"prompt", "chosen", "rejected", "dimension", "model_version", "confidence",
			"source", "component_name", "feedback_id",
		} {
			got = append(got, fmt.Sprint(pairs[i][key]))
		}
		assert.Equal(t, strings.Join(got, "|"), want, "pair %d is %q", i, got)
	}
	run(t, dir, nil, "learn", "export", "-o", "pairs.jsonl").want(t, 0, "")
	text, err := os.ReadFile(filepath.Join(dir, "pairs.jsonl"))
	assert.That(t, err == nil && string(text) == out.stdout, "%v, %s", err, text)
	run(t, dir, nil, "learn", "export", "-o", storeFile).want(t, 2, "that is the store itself")
	run(t, dir, nil, "learn", "export", "--format", "csv").want(t, 2, "dpo")
}

func TestLearnExportOfRewards(t *testing.T) {
	t.Parallel()
	out := run(t, learned(t), nil, "learn", "export", "--format", "rewards").want(t, 0, "1 feedback left out: no "+
		"rated_turn")
	samples := jsonLines(t, out.stdout)
	if len(samples) != 6 || !strings.Contains(out.stdout,
		`"state":{"s":12345678901234567890},"action":{"component_name":"echo"},"reward":0.5,"next_state":{},"done":true,"episode_id":"e","step":3,"experience_id":"x1"`) {
		t.Fatalf("%s", out.stdout)
	}
	if !strings.Contains(out.stdout, `{"state":{"prompt":"p"},"action":{"component_name":"echo","response":"r"},"reward":1,"weight":1,"dimension":"helpfulness","source":"human","feedback_id":"f6"}`) {
		t.Errorf("%s", out.stdout)
	}
}
