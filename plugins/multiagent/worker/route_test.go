package worker

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"a2e/host/agent"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/sandbox"
	"a2e/protocol/fleet"
)

func noLauncher() (*sandbox.Launcher, error) { return nil, errors.New("no programs here") }

// announces makes r a worker that runs and has announced these tools and servers.
func announces(r *runner, tools, servers []string, health map[string]fleet.Health) {
	r.child = &peer{met: true}
	r.health.announced = &fleet.Announce{
		Worker: fleet.Worker{Model: "told", ModelTier: "told-tier"}, Capabilities: fleet.Capabilities{
			Tools:      tools,
			MCPServers: servers,
		}, MCPHealth: health,
	}
}

// changed makes r a worker that has announced whether its repository is clean.
func changed(r *runner, clean bool) {
	announces(r, nil, nil, nil)
	r.health.announced.Session.RepoState = &fleet.RepoState{Clean: clean}
}

// routeTest has three workers of mode fleet, which never start.
type routeTest struct {
	change func(a, b, c *runner)
	task   func(*agent.WorkerTask)
	weight map[string]float64
	lost   string // workers that died of the task before
	want   string // the workers that the task waits for, best first, or the error
}

func TestRoute(t *testing.T) {
	t.Parallel()
	bad := errors.New("broken")
	for name, test := range map[string]routeTest{
		"the first is the default": {want: "a b c"},
		"by name":                  {task: func(t *agent.WorkerTask) { t.Worker = "c" }, want: "c"},
		"by model": {
			change: func(_, b, _ *runner) { b.Model = "m" },
			task:   func(t *agent.WorkerTask) { t.Model = "m" }, want: "b",
		},
		"a model that was announced": {
			change: func(_, b, _ *runner) { announces(b, nil, nil, nil) },
			task:   func(t *agent.WorkerTask) { t.Model = "told" }, want: "b",
		},
		"a model that there is not": {
			change: func(a, b, _ *runner) {
				a.Model, a.ModelTier = "m",
					"small"
				announces(b, nil, nil, nil)
			}, task: func(t *agent.WorkerTask) { t.Model = "x" },
			want: `schema_violation: no worker has the model "x": a has the model "m" of tier "small", b has the model "told" of tier "told-tier", c has not announced itself; ask for what there is, or set fallback to true for any`,
		},
		"or another one": {
			change: func(_, b, _ *runner) { b.Model = "m" },
			task:   func(t *agent.WorkerTask) { t.Model, t.Fallback = "x", true }, want: "a b c",
		},
		"if it has to be": {
			change: func(_, b, _ *runner) { b.Model = "m" },
			task:   func(t *agent.WorkerTask) { t.Model, t.Fallback = "m", true }, want: "b",
		},
		"no worker tells a model": {task: func(t *agent.WorkerTask) { t.Model = "x" }, want: "a b c"},
		"model and tier": {
			change: func(a, b, c *runner) {
				a.Model, b.Model, b.ModelTier,
					c.ModelTier = "m", "m", "s", "s"
			}, task: func(t *agent.WorkerTask) { t.Model, t.Tier = "m", "s" },
			want: "b",
		},
		"no model is the default's": {change: func(_, b, c *runner) { b.Model, c.Model = "m", "n" }, want: "a"},
		"any model": {
			change: func(_, b, c *runner) { b.Model, c.Model = "m", "n" },
			task:   func(t *agent.WorkerTask) { t.Model = "auto" }, weight: map[string]float64{"c": 2}, want: "c a b",
		},
		"a model of that name": {
			change: func(_, b, _ *runner) { b.Model = "auto" },
			task:   func(t *agent.WorkerTask) { t.Model = "auto" }, want: "b",
		},
		"unless another is preferred": {change: func(_, b, c *runner) { b.Model, b.Priority = "m", 1 }, want: "b"},
		"tier": {
			change: func(_, b, _ *runner) { b.ModelTier = "strong" },
			task:   func(t *agent.WorkerTask) { t.Tier = "strong" }, want: "b",
		},
		"a tier that was announced": {
			change: func(_, b, _ *runner) { announces(b, nil, nil, nil) },
			task:   func(t *agent.WorkerTask) { t.Tier = "told-tier" }, want: "b",
		},
		"a tier that there is not": {
			task: func(t *agent.WorkerTask) { t.Tier = "strong" },
			want: `schema_violation: no worker has a model of tier "strong"`,
		},
		"tasks under way": {change: func(a, b, c *runner) {
			a.MaxTasks, b.MaxTasks, a.active,
				b.active = 9, 9, 2, 1
		}, want: "c b a"},
		"tasks of others": {change: func(a, _, _ *runner) {
			announces(a, nil, nil,
				nil)
			a.child.others = 3
		}, want: "b c a"},
		"uncommitted changes": {
			change: func(a, b, _ *runner) { changed(a, false); changed(b, true) },
			want:   "b c a",
		},
		"clean before weight": {
			change: func(a, b, _ *runner) { changed(a, false); changed(b, true) },
			weight: map[string]float64{"a": 3, "c": 2}, want: "c b a",
		},
		"where it did not die": {task: func(t *agent.WorkerTask) { t.Worker = "" }, lost: "a a b", want: "c"},
		"free places":          {change: func(a, b, _ *runner) { a.active, b.active = 1, 1 }, want: "c a b"},
		"priority": {
			change: func(_, b, c *runner) { b.Priority, c.Priority = 1, 2 },
			want:   "c b a",
		},
		"free places before priority": {change: func(_, b, c *runner) { c.Priority, c.active = 2, 1 }, want: "a b c"},
		"weight":                      {weight: map[string]float64{"b": 1.5, "c": 2}, want: "c b a"},
		"priority before weight": {
			change: func(a, _, _ *runner) { a.Priority = 1 },
			weight: map[string]float64{"a": 0, "b": 2}, want: "a b c",
		},
		"health": {change: func(a, _, _ *runner) {
			a.health.lost(time.Now(), bad, 0, false,
				false, longestRest)
		}, want: "b c"},
		"health before tier": {
			change: func(a, _, _ *runner) {
				a.ModelTier = "s"
				a.health.lost(time.Now(),
					bad, 0, false, false, longestRest)
			}, task: func(t *agent.WorkerTask) { t.Tier, t.Fallback = "s", true },
			want: "b c",
		},
		"one that rests, if no other": {change: func(a, _, _ *runner) {
			a.health.lost(time.Now(), bad, 0, false,
				false, longestRest)
		}, task: func(t *agent.WorkerTask) { t.Worker = "a" }, want: "a"},
		"one that is down, if no other": {
			change: func(a, _, _ *runner) { down(a, bad) },
			task:   func(t *agent.WorkerTask) { t.Worker = "a" }, want: "broken; it is tried again in",
		},
		"all are down": {
			change: func(a, b, c *runner) { down(a, bad); down(b, bad); down(c, bad) },
			want:   "broken; it is tried again in",
		},
	} {
		t.Run(name, test.run)
	}
}

func TestRouteByNeeds(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]routeTest{
		"MCP server": {change: func(a, b, _ *runner) {
			announces(a, nil, nil, nil)
			announces(b, nil, []string{"db"},
				nil)
		}, task: needs("db", ""), want: "b c"},
		"its health": {change: func(a, b, _ *runner) {
			announces(a, nil, []string{"db"}, map[string]fleet.Health{"db": fleet.HealthError})
			announces(b, nil, []string{"db"}, map[string]fleet.Health{"db": fleet.HealthOK})
		}, task: needs("db", ""), want: "b c"},
		"a child that has ended": {
			change: func(a, _, _ *runner) { announces(a, nil, nil, nil); a.child = nil },
			task:   needs("db", ""), want: "a b c",
		},
		"a child that does not tell": {change: func(a, b, c *runner) {
			a.child, b.child, c.child = &peer{late: true}, &peer{late: true}, &peer{late: true}
		}, task: needs("db", ""), want: `worker a did not announce itself within 5s, and so not the MCP server "db"`},
		"a word of the protocol": {change: func(a, b, _ *runner) {
			announces(a, []string{"grep"}, nil, nil)
			announces(b, []string{"read_file", "write_file"}, nil, nil)
		}, task: needs("", "file"), want: "b"},
		"a folder of the task": {
			change: func(_, b, _ *runner) { b.Mode = ModeOneshot },
			task:   func(t *agent.WorkerTask) { t.Workspace = "/x" }, want: "b",
		},
		"MCP server of the config": {change: func(a, b, _ *runner) {
			a.Mode, a.Capabilities = ModeOneshot, []string{"x"}
			announces(b, nil, nil, nil)
			b.Capabilities = []string{"db"}
		}, task: needs("db", ""), want: "b c"},
		"a oneshot worker has all": {change: func(a, b, c *runner) {
			b.Mode = ModeOneshot
			announces(a, nil, nil,
				nil)
			announces(c, nil, nil, nil)
		}, task: needs("db", ""), want: "b"},
		"or what it lists": {change: func(a, b, c *runner) {
			a.Mode, b.Mode, c.Mode = ModeOneshot, ModeOneshot, ModeOneshot
			a.Capabilities, b.Capabilities = []string{"x"}, []string{"y", "x"}
		}, task: needs("", "y"), want: "b c"},
		"a capability that is named": {change: func(_, b, c *runner) {
			announces(b, []string{"y"}, nil,
				nil)
			announces(c, []string{"x"}, nil, nil)
		}, task: needs("", "y"), want: "b"},
		"a capability that none names": {task: needs("", "y"), want: "a b c"},
		"nobody": {
			change: func(a, b, c *runner) {
				announces(a, nil, nil, nil)
				announces(b, nil, nil, nil)
				c.Mode, c.Capabilities = ModeOneshot, []string{}
			}, task: needs("db", ""),
			want: `worker a has no MCP server "db"; worker b has no MCP server "db"; worker c has no MCP server "db"`,
		},
	} {
		t.Run(name, test.run)
	}
}

func (test routeTest) run(t *testing.T) {
	t.Parallel()
	w := Worker{Mode: ModeFleet, Command: []string{"x"}}
	all := []Worker{w, w, w}
	all[0].Name, all[1].Name, all[2].Name = "a", "b", "c"
	p := idlePool(t, all...)
	given := brief("t", "")
	if test.task != nil {
		test.task(&given)
	}
	if test.change != nil {
		test.change(p.runners[0], p.runners[1], p.runners[2])
	}
	task := must.Get(p.newTask(context.Background(), given))(t)
	task.weigh = func(name string) float64 {
		if w, ok := test.weight[name]; ok {
			return w
		}
		return 1
	}
	for name := range strings.FieldsSeq(test.lost) {
		task.losses = append(task.losses, setback{at: p.runner(name)})
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	best, err := p.bestLocked(task)
	var got []string
	for _, r := range best {
		got = append(got, r.Name)
	}
	if err != nil {
		got = []string{err.Error()}
	}
	text := strings.Join(got, " ")
	assert.That(t, text == test.want || err != nil && strings.HasPrefix(text, test.want), "got %q, want %q", text,
		test.want)
}

func down(r *runner, err error) {
	for range triesBeforeDown {
		r.health.lost(time.Now(), err, 0, false, false, longestRest)
	}
}

func needs(server, capability string) func(*agent.WorkerTask) {
	return func(t *agent.WorkerTask) {
		if server != "" {
			t.Requirements.RequiredMCP = []string{server}
		}
		if capability != "" {
			t.Requirements.RequiredCapabilities = []string{capability}
		}
	}
}

// TestBlockedGoesOn: after a worker that answers that it is blocked, the others are tried, each once.
func TestBlockedGoesOn(t *testing.T) {
	t.Parallel()
	blocked := func(name, reason string) Worker {
		return shell(name, `echo `+name+` >>tried; echo '{"status":"blocked","tokens_spent":1,"blocked_reason":"`+reason+`"}'`)
	}
	able := shell("c", `echo c >>tried; echo '{"status":"done","tokens_spent":5}'`)
	missing := Worker{Name: "m", Command: []string{"no-such-program-here"}}
	tests := map[string]struct {
		workers []Worker
		task    func(*agent.WorkerTask)
		want    string
		tried   string
	}{
		"until one is able": {
			[]Worker{blocked("a", "no db"), missing, blocked("b", "no gpu"), able},
			nil, `done 7`,
			"a b c",
		},
		"none is able": {
			[]Worker{blocked("a", "no db"), blocked("b", "no gpu")},
			nil,
			`blocked 2 reason="a: no db; b: no gpu"`, "a b",
		},
		"only one": {[]Worker{blocked("a", "no db")}, nil, `blocked 1 reason="no db"`, "a"},
		"none starts": {
			[]Worker{missing, blocked("b", "no gpu")},
			nil,
			`error 1 error="worker m was not started: …`, "b",
		},
		"by name": {
			[]Worker{blocked("a", "no db"), able},
			func(t *agent.WorkerTask) { t.Worker = "a" },
			`blocked 1 reason="no db"`, "a",
		},
		"by model": {
			[]Worker{model(blocked("a", "no db"), "m"), model(blocked("b", "no gpu"), "m"), able},
			func(t *agent.WorkerTask) { t.Model = "m" }, `blocked 2 reason="a: no db; b: no gpu"`, "a b",
		},
		"another model": {[]Worker{blocked("a", "no db"), model(able, "m")}, nil, `done 6`, "a c"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, test.workers...)
			task := brief("t", "")
			if test.task != nil {
				test.task(&task)
			}
			got := describe(s.do(task))
			want, isPrefix := strings.CutSuffix(test.want, "…")
			assert.That(t, got == want || isPrefix && strings.HasPrefix(got, want), "got %s, want %s", got, test.want)
			tried := strings.Join(s.notes("tried"), " ")
			assert.Equal(t, tried, test.tried, "tried")
		})
	}
}

func model(w Worker, name string) Worker {
	w.Model = name
	return w
}

// play makes this test binary a worker that speaks the fleet protocol. Its arguments say what it announces. Each brief
// says what to do with the task, such as "note; sleep 5ms; done".
func play(role string) int {
	if role != "fleet" {
		return 2
	}
	a := &actor{out: bufio.NewWriter(os.Stdout)}
	appendLine("starts", "start")
	if len(os.Args) == 1 || os.Args[1] == "stays" {
		a.write(`{"type":"SESSION_ANNOUNCE"}`)
	}
	for _, arg := range os.Args[1:] {
		switch {
		case arg == "mute":
			fmt.Fprintln(os.Stderr, "cannot find my model")
			return 3
		case arg == "quiet":
		case arg == "stays":
			defer awaitLines("ends", 3)
		case arg == "echoes":
			_, _ = io.Copy(os.Stdout, os.Stdin)
			return 0
		case arg == "dumb":
			os.Stdout.Close()
			time.Sleep(time.Hour)
		case arg == "deaf":
			os.Stdin.Close()
			time.Sleep(time.Hour)
		default:
			a.write(arg)
		}
	}
	in := bufio.NewReader(os.Stdin)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			appendLine("ends", "end")
			return 0
		}
		var d struct {
			fleet.Dispatch
			TaskID string `json:"task_id"`
			Text   string `json:"text"`
		}
		if err := json.Unmarshal(line, &d); err != nil {
			fmt.Fprintln(os.Stderr, "bad line:", err)
			return 4
		}
		if d.Type != fleet.TypeDispatch {
			appendLine("messages", fmt.Sprintf("%s %s %s", d.Type, d.TaskID, d.Text))
			if d.Type == fleet.TypeCancel {
				a.write(fmt.Sprintf(`{"type":"TASK_RESULT","task_id":%q,"status":"error","error":"cancelled"}`,
					d.TaskID))
			}
			continue
		}
		appendLine("lines", strings.TrimSpace(string(line)))
		go a.act(&d.Dispatch)
	}
}

// actor does the tasks of a worker.
type actor struct {
	mu  sync.Mutex
	out *bufio.Writer // guarded by mu
}

func (a *actor) write(lines ...string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, line := range lines {
		a.out.WriteString(line + "\n")
	}
	a.out.Flush()
}

func (a *actor) result(id, rest string) string {
	return fmt.Sprintf(`{"type":"TASK_RESULT","protocol_version":"2.0","task_id":%q,%s}`, id, rest)
}

// act does one task.
func (a *actor) act(d *fleet.Dispatch) {
	id := d.Task.TaskID
	done := `"status":"done","tokens_spent":7,"summary":"did ` + id + `"`
	for step := range strings.SplitSeq(d.Brief, "; ") {
		name, arg, _ := strings.Cut(step, " ")
		switch name {
		case "note":
			appendLine("notes", id)
		case "sleep":
			pause, _ := time.ParseDuration(arg)
			time.Sleep(pause)
		case "hang":
			time.Sleep(time.Hour)
		case "until":
			for _, err := os.Stat(arg); err != nil; _, err = os.Stat(arg) {
				time.Sleep(time.Millisecond)
			}
		case "say":
			a.write(arg)
		case "cry":
			fmt.Fprintln(os.Stderr, arg)
		case "flood":
			junk := strings.Repeat("x", 1<<20)
			for range 20 {
				a.write(junk, a.result("nobody", done))
			}
		case "huge":
			a.write(a.result(id, `"status":"done","summary":"`+strings.Repeat("x", 17<<20)+`"`))
		case "crash":
			fmt.Fprintln(os.Stderr, "out of luck")
			os.Exit(9)
		case "twice":
			again := a.result(id, `"status":"error","error":"again"`)
			a.write(a.result(id, done), again, again, again)
		case "result":
			a.write(a.result(id, arg))
		case "var":
			appendLine("vars", os.Getenv(arg))
		case "done":
			a.write(a.result(id, done))
		}
	}
}

// awaitLines waits until a file in the workspace has this many lines.
func awaitLines(name string, lines int) {
	for text, _ := os.ReadFile(name); strings.Count(string(text), "\n") < lines; text, _ = os.ReadFile(name) {
		time.Sleep(time.Millisecond)
	}
}

// appendLine adds a line to a file in the workspace with one write.
func appendLine(name, line string) {
	f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(5)
	}
	defer f.Close()
	f.WriteString(line + "\n")
}
