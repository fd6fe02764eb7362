package cli

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/plugins/multiagent/worker"
	"a2e/protocol/fleet"
)

// wrote writes a file of tasks and returns its path.
func wrote(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	must.OK(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestDispatchFile(t *testing.T) {
	t.Parallel()
	const whole = `{"type":"TASK_DISPATCH","protocol_version":"2.0","task":{"task_id":"w","priority":"high","token_budget":9},"brief":"all",` +
		`"requirements":{"required_mcp":["m"]},"deadline":"2026-11-21T15:04:05Z"}`
	for _, c := range []struct{ name, text, want string }{
		{
			"t.ndjson", "{\"brief\":\"a\"}\r\n\n  " +
				"{\"brief\":\"b\",\"task_id\":\"own\",\"priority\":\"low\",\"reply_schema\":\"json\"}",
			"line-1 1 normal prose a; own 3 low json b",
		},
		{"t.ndjson", "\xef\xbb\xbf" + whole + "\n", "w 1 high prose all"},
		{
			"t.txt", `[{"brief":"a"},` + "\n\n" + `{"brief":"b"}, {"brief":"c","task_id":"c"},` + "\n" + whole + "]\n",
			"line-1 1 normal prose a; line-3 3 normal prose b; c 3 normal prose c; w 4 high prose all",
		},
		{"t.json", "\n[\n{\n\"brief\":\"a\"\n}\n]", "line-3 3 normal prose a"},
		{"t.yaml", "# tasks\n- brief: |\n    a\n  priority: urgent\n- {brief: b, deadline: 2026-11-21T15:04:05Z, " +
			"required_capabilities: [x]}\n", "line-2 2 urgent prose a; line-5 5 normal prose b"},
		{"t.yml", `{"brief":"a"}`, `t.yml: should be a list of tasks (- brief: …), or have one as a JSON object on each line`},
		{"t.ndjson", `{"brief":"TASK DISPATCH (inline)\npriority: high\ntask_id: i\n\nBrief: a"}`, "i 1 high prose a"},
		{"t", "- brief: a\n", "line-1 1 normal prose a"},
	} {
		tasks, problems, err := readTasks(wrote(t, c.name, c.text), nil, "run", []string{"coder"})
		must.OK(t, err)
		var got []string
		for _, p := range problems {
			got = append(got, filepath.Base(p))
		}
		for _, k := range tasks {
			got = append(got, fmt.Sprint(k.id, " ", k.line, " ", k.Task.Priority, " ", k.Task.ReplySchema, " ",
				strings.TrimSpace(k.Brief)))
			if want := k.id; strings.HasPrefix(k.id, "line-") && k.Task.TaskID != want+"-run" ||
				!strings.HasPrefix(k.id, "line-") && k.Task.TaskID != want {
				t.Errorf("the worker knows %s as %s", k.id, k.Task.TaskID)
			}
		}
		text := strings.Join(got, "; ")
		assert.Equal(t, text, c.want, "%s of %q", c.name, c.text)
	}
}

// TestDispatchFileThatIsWrong: all mistakes of a file are reported, each with its line.
func TestDispatchFileThatIsWrong(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, text, want string }{
		{"t.ndjson", `{"brief":" ","priority":"asap"}
{"brief":"x","task_id":"a"}
nonsense
{"breif":"x"}
{"brief":"x","task_id":"a"}
{"type":"TASK_RESULT","task":{"task_id":"b"}}
{"task":{"task_id":5},"brief":"x"}
{"brief":"x","required_mcp":"y"}
{"brief":"x","deadline":"tomorrow","token_budget":-1,"task_id":"line-10"}
{"brief":"x"}
{"protocol_version":"1.0","task":{"task_id":"c","reply_schema":"xml"},"brief":"x"}
{"task":{"task_id":"d","reply_schema":"xml"},"brief":"x"}
{"priority":"low"}
{"task_id":"` + strings.Repeat("x", 257) + `","brief":"x"}
[1]
{"type":"TASK_DISPATCH","brief":"x"}
{"task":{"task_id":"e","further":2},"brief":"x","priority":"high","required_mcp":["y"],"further":1}
{"brief":"x","worker":"nobody","retries":-1}
{"brief":"x","worker":"codr","requirements":{"mcp":[]}}
{"brief":"x","worker":"codr"}
{"brief":"x","retries":"2"}
{"brief":"x","fallback":1}
{"brief":"TASK DISPATCH (inline)\npriority: asap\n\nx"}`, `1: brief: is empty
1: priority: is "asap"; should be low, normal, high or urgent
3: not valid JSON
4: breif: is not known; there are: brief, deadline,
5: task_id "a" is already used in line 2
6: type: is "TASK_RESULT"; should be TASK_DISPATCH
7: task/task_id: is a JSON number; should be string
8: required_mcp: is a JSON string; should be array
9: token_budget: is -1
9: deadline: "tomorrow" is not an RFC 3339 time
11: protocol_version: is "1.0"; should be 2.x
12: task/reply_schema: is "xml"; should be prose, structured or json
13: brief: is required
14: task_id: has 257 bytes
15: a JSON object should be here
16: task: is required
17: priority: belongs in task
17: required_mcp: belongs in requirements
17: further: is not known; there are: brief, deadline, requirements, type,
17: task/further: is not known; there are: task_id, priority,
18: retries: is -1; should be between 0 and 100
19: requirements/mcp: is not known; there are: required_mcp, required_capabilities
20: worker: there is no worker of the config "codr"; did you mean "coder"? there are: coder
21: retries: is a JSON string; should be
22: fallback: is a JSON number; should be boolean
23: the inline dispatch cannot be understood: priority is "asap"; should be low, normal, high or urgent`},
		{
			"t.ndjson", `{"brief":"x","task_id":"line-2"}` + "\n" + `{"brief":"x"}`,
			`2: task_id "line-2" is already used in line 1`,
		},
		{"t.json", "[{\"brief\":\"a\"},\n\n {\"task_id\":7}, 5,\n {\"brief\":\"c\",}]", "3: brief: is required\n3: " +
			"a JSON object should be here\n4: not valid JSON"},
		{"t.json", "[{\"brief\":\"a\"}\n] x", " there is text after the list"},
		{"t.json", "[{\"brief\":\"a\"},\n", "2: not valid JSON"},
		{"t.yaml", "- brief: a\n- brief: b\n  priority: hi\n- 5\n", "3: priority: is \"hi\"\n4: a JSON object " +
			"should be here"},
		{"t.yaml", "- brief: [\n", " line 2: not valid YAML"},
		{"t.ndjson", " \n", " no task in it"},
		{"t.ndjson", `{"brief":"a","\u001b[2J":1}`, `1: \x1b[2J: is not known`},
	} {
		path := wrote(t, c.name, c.text)
		_, problems, err := readTasks(path, nil, "run", []string{"coder"})
		must.OK(t, err)
		want := strings.Split(c.want, "\n")
		for i, p := range problems {
			assert.That(t, i < len(want) && strings.HasPrefix(p, path+":"+want[i]),
				"%q: problem %d is %q", c.text, i, strings.TrimPrefix(p, path))
		}
		assert.That(t, len(problems) >= len(want), "%q: %d problems; want\n%s", c.text, len(problems), c.want)
	}
	_, _, err := readTasks(filepath.Join(t.TempDir(), "none"), nil, "", nil)
	assert.That(t, err != nil, "a file that is not there was read")
}

// TestDispatchBoard: the last bar sums up the bars of the workers, and a running task shows its own time.
func TestDispatchBoard(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	var out bytes.Buffer
	b := newDispatchBoard(newBoard(&out, func() time.Time { return now }, 80), []string{
		"worker-1", "worker-2",
		"worker-3",
	}, 10, 2)
	tasks := make([]*dispatchTask, 10)
	for i := range tasks {
		tasks[i] = &dispatchTask{id: fmt.Sprintf("t%d", i)}
	}
	end := func(i int, worker string, status fleet.Status) {
		b.placed(tasks[i], worker)
		res := fleet.NewResult("", status)
		res.TokensSpent = 1000 * i
		b.ended(tasks[i], res)
	}
	end(0, "worker-1", fleet.StatusDone)
	end(1, "worker-1", fleet.StatusError)
	end(2, "worker-2", fleet.StatusDone)
	end(3, "worker-3", fleet.StatusPartial)
	b.ended(tasks[4], fleet.NewResult("", fleet.StatusBlocked)) // no worker took it
	b.placed(tasks[5], "worker-1")
	now = now.Add(1500 * time.Millisecond)
	tasks[5].Brief = "mend\nthe tests"
	b.placed(tasks[5], "worker-2") // worker-1 did not do it
	b.placed(tasks[6], "worker-2")
	b.placed(tasks[7], "worker-1")
	b.ended(tasks[7], nil) // stopped
	now = now.Add(time.Second)
	b.close()
	want := []string{
		"worker-1  ███░░░░░░░░░░░░░  1 done, 1 failed, 1.0k tokens",
		"worker-2  █░░░░░░░░░░░░░░░  1 done, 2.0k tokens  ▶ t5 1s mend the tests, +1",
		"… and 1 worker more",
		"all       ████████░░░░░░░░  2 of 10 done, 1 failed, 1 blocked, 1 partial, 6.0k…",
	}
	got := strings.Split(strings.TrimSpace(screen(out.String())), "\n")
	assert.That(t, slices.Equal(got, want), "it shows\n%s\nshould be\n%s", strings.Join(got, "\n"),
		strings.Join(want, "\n"))
	if got, want := b.progress(), "2 of 10 done, 1 failed, 1 blocked, 1 partial, 6.0k tokens, ETA 3s, 2 running, 1 "+
		"tried again, 2.0/s"; got != want {
		t.Errorf("%q, should be %q", got, want)
	}
	assert.That(t, strings.Contains(out.String(), "\x1b[32m███\x1b[31m█████\x1b[0m\x1b[2m░░░░░░░░\x1b[0m"),
		"no bar shows what is done and what is not: %q", out.String())
}

// TestDispatchBoardMakesRoom: a line that another writes to the same terminal stands above the board.
func TestDispatchBoardMakesRoom(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	b := newDispatchBoard(newBoard(&out, time.Now, 80), []string{"w"}, 1, 2)
	b.shared = true
	task := &dispatchTask{id: "t"}
	b.placed(task, "w")
	b.ended(task, fleet.NewResult("", fleet.StatusDone))
	must.OK(t, b.write(func() error { _, err := out.WriteString("a line\n"); return err }))
	b.close()
	text := out.String()
	_, after, ok := strings.Cut(text, "\x1b[2A\r\x1b[Ja line\n\r\x1b[2Kw ")
	assert.That(t, ok && strings.Contains(after, "\x1b[2A\r\x1b[2Kw "), "it shows %q", text)
}

func TestDispatchRate(t *testing.T) {
	t.Parallel()
	for perSecond, want := range map[float64]string{
		12.34: "12/s", 9.87: "9.9/s", 1: "1.0/s", 0.5: "30.0/min",
		0.001: "0.1/min",
	} {
		assert.Equal(t, rate(perSecond), want, "%v", perSecond)
	}
}

// TestDispatchFileOfProblems: a large file in which everything is wrong is not read to its end.
func TestDispatchFileOfProblems(t *testing.T) {
	t.Parallel()
	_, problems, err := readTasks(wrote(t, "t.ndjson", strings.Repeat("{}\n", 3*maxProblems)), nil, "run",
		[]string{"coder"})
	assert.That(t, err == nil && len(problems) == maxProblems, "%d problems (%v)", len(problems), err)
}

// TestDispatchTimeout: a time limit that is out of range is refused.
func TestDispatchTimeout(t *testing.T) {
	t.Parallel()
	for seconds, fits := range map[int]bool{
		-1: false, 0: true, 3600: true, maxTaskTime: true, maxTaskTime + 1: false,
		10_000_000_000: false,
	} {
		d := dispatchCmd{Workers: 1, File: "-", Out: "-", Timeout: seconds}
		err := d.check()
		assert.Equal(t, (err == nil), fits, "--timeout %d: %v", seconds, err)
	}
}

// TestDispatchArgv: workers are started with the arguments that were given, also if these look like flags.
func TestDispatchArgv(t *testing.T) {
	t.Parallel()
	work := workFlags{llmFlags: llmFlags{Model: "-m"}, Contract: true}
	d := dispatchRun{
		dispatchCmd: dispatchCmd{workFlags: work, Command: []string{"x", "--", "-y"}},
		cmd:         &commands{globals: globals{Config: "-c.yaml"}},
	}
	want := []string{
		"self", "--log-level", "warn", "--config=-c.yaml", "worker", "--agent-id=-w", "--max-tasks", "2",
		"--only=-o", "--model=-m", "--", "x", "--", "-y",
	}
	assert.Slice(t, d.argv("self", &worker.Worker{Name: "-w", MaxTasks: 2}, "-o"), want)
}
