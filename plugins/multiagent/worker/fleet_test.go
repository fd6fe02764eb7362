package worker

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/google/go-cmp/cmp"

	"a2e/host/agent"
	"a2e/host/config"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol/fleet"
)

func TestFleetResults(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		brief  string
		schema fleet.ReplySchema
		want   string
	}{
		"done":  {brief: `done`, want: `done 7 summary="did t"`},
		"later": {brief: `sleep 20ms; done`, want: `done 7 summary="did t"`},
		"junk before it": {
			brief: `say hello; say {"type":"x"}; say [1]; say {; done`,
			want:  `done 7 summary="did t"`,
		},
		"of another task": {
			brief: `say {"type":"TASK_RESULT","task_id":"other","status":"error"}; done`,
			want:  `done 7 summary="did t"`,
		},
		"two results":       {brief: `twice`, want: `done 7 summary="did t"`},
		"a flood before it": {brief: `flood; done`, want: `done 7 summary="did t"`},
		"a huge one":        {brief: `huge`, want: `error error="the worker's result is longer than 16 MiB" ~1`},
		"no tokens": {
			brief: `result "status":"done","summary":"12345678"`,
			want:  `done summary="12345678" ~13`,
		},
		"blocked": {
			brief: `result "status":"blocked","blocked_reason":"no db","tokens_spent":0`,
			want:  `blocked 0 reason="no db"`,
		},
		"no status": {
			brief: `result "summary":"x","tokens_spent":0`,
			want:  `error 0 error="the worker gave the status \"\"; it should be done, blocked, error or partial" summary="x"`,
		},
		"half a character": {
			brief: `result "status":"done","summary":"caf\ud800"`,
			want:  `error error="the worker's result is not valid: …`,
		},
		"a key twice": {
			brief: `result "status":"done","status":"error"`,
			want:  `error error="the worker's result is not valid: …`,
		},
		"broken off": {
			brief: `result "status":"done","summary":"x`,
			want:  `error error="the worker's result is not valid: …`,
		},
		"what remains": {
			brief: `result "status":"partial","tokens_spent":1,"remaining":{"a":1,"a":2}`,
			want:  `error error="the worker's result is not valid: …`,
		},
		"it remains deeply": {brief: `result "status":"partial","tokens_spent":1,"remaining":` +
			strings.Repeat("[", 9990) + strings.Repeat("]", 9990), want: `…`},
		"json": {brief: `done`, schema: fleet.ReplyJSON, want: `done 7 summary="{\"text\":\"did t\"}"`},
		"crash": {
			brief: `cry line; crash`,
			want:  `error error="no worker lived to end the task (tries: 3): w: the worker ended: exit status 9; its stderr ends with: line\nout of luck" ~12`,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, fake(t, "w"))
			task := brief("t", test.brief)
			task.Task.ReplySchema = test.schema
			got := describe(s.do(task)) // do also checks the result itself
			if want, begin := strings.CutSuffix(test.want, "…"); got != want &&
				!(begin && strings.HasPrefix(got, want)) {
				t.Errorf("got  %s\nwant %s\n%s", got, test.want, s.log)
			}
			if got := describe(s.do(brief("t", "done"))); got != `done 7 summary="did t~2"` &&
				got != `done 7 summary="did t"` { // the task before has no effect on the next one
				t.Error(got)
			}
			want := 1
			if name == "crash" {
				want = 4
			}
			assert.Equal(t, len(s.notes("starts")), want, "started … times")
		})
	}
}

func TestFleetDispatch(t *testing.T) {
	t.Parallel()
	w := fake(t, "w", announceLine)
	w.Timeout = time.Minute
	s := newStage(t, w)
	assert.That(t, len(s.notes("starts")) <= 0, "started before its first task")
	task := brief("a", "done")
	task.AuthToken = "the host's own secret"
	task.Task.Priority, task.Task.TokenBudget = fleet.PriorityHigh, 9
	task.Requirements.RequiredMCP = []string{"db"}
	s.do(task)
	task.Task.TaskID, task.Deadline = "b", time.Now().Add(patience).Format(time.RFC3339Nano)
	s.do(task)
	lines := s.notes("lines")
	must.That(t, len(lines) == 2 && !strings.Contains(lines[0], "secret"), "%v", lines)
	var got [2]fleet.Dispatch
	for i, line := range lines {
		must.OK(t, json.Unmarshal([]byte(line), &got[i]))
	}
	if at, ok, err := got[0].DeadlineTime(); err != nil || !ok || time.Until(at) > time.Minute || time.Until(at) < 0 {
		t.Errorf("the worker's timeout is told as the deadline %q", got[0].Deadline)
	}
	got[0].Deadline, got[0].Task.TaskID = task.Deadline, "b"
	for i := range got {
		want := task.Dispatch
		want.Type, want.ProtocolVersion, want.AuthToken = fleet.TypeDispatch, "2.0", ""
		want.Task.ReplySchema, want.Requirements.RequiredCapabilities = fleet.ReplyProse, []string{}
		diff := cmp.Diff(want, got[i])
		assert.Equal(t, diff, "", "%d", i)
	}
}

const announceLine = `{"type":"SESSION_ANNOUNCE","protocol_version":"2.0","worker":{"agent_id":"x","model":"m","model_tier":"strong","context_window":1000},` +
	`"capabilities":{"tools":["echo"],"mcp_servers":["db","bad"],"extensions":["steer","cancel"]},"mcp_health":{"db":"ok","bad":"timeout"},"session":{"context_id":"c","active_tasks":0,"repo_state":null,"session_fresh":true}}`

func TestFleetAnnounce(t *testing.T) {
	t.Parallel()
	s := newStage(t, fake(t, "w", announceLine))
	info := s.info("w")
	assert.That(t, info.Healthy && info.Unknown && len(info.Tools) == 0 && info.Tools != nil && info.MCPServers != nil,
		"before the start: %+v", info)
	s.do(brief("a", "done"))
	want := agent.WorkerInfo{
		Name: "w", Mode: ModeFleet, Model: "m", ModelTier: "strong", ContextWindow: 1000, MaxTasks: 4, Healthy: true,
		Tools: []string{"echo"}, MCPServers: []string{"db", "bad"}, MCPHealth: map[string]fleet.Health{
			"db":  "ok",
			"bad": "timeout",
		}, Extensions: []string{"steer", "cancel"},
	}
	assert.Diff(t, want, s.info("w"))
	s.do(brief("b", `say `+strings.ReplaceAll(announceLine, `"echo"`, `"echo","more"`)+`; done`))
	got := s.info("w").Tools
	assert.Equal(t, len(got), 2, "the second announce was not taken: %v", got)
	s.pace.greet = 0 // the announced MCP servers count without a wait
	for need, want := range map[string]string{
		"db": `done 7 summary="did c"`, "bad": `blocked 0 reason="worker w has an MCP server \"bad\" that does not work (timeout)"`,
		"none": `blocked 0 reason="worker w has no MCP server \"none\""`,
	} {
		task := brief("c", "done")
		task.Requirements.RequiredMCP = []string{need}
		assert.Equal(t, describe(s.do(task)), want, "%s", need)
	}
}

// TestFleetConnecting: a task waits for an MCP server to which a child is still connecting if no other worker has the
// server. It goes to the child when the child announces the server.
func TestFleetConnecting(t *testing.T) {
	t.Parallel()
	s := newStage(t, fake(t, "w", announceLine))
	s.pace.greet = patience
	waits := make(chan string, 9)
	task := brief("needs", "done")
	task.Requirements.RequiredMCP = []string{"bad"}
	task.Started = func(worker string) { waits <- worker }
	done := make(chan *fleet.Result)
	go func() { done <- s.do(task) }()
	assert.Equal(t, <-waits, "", "it was given to … at once")
	s.do(brief("other", `say `+strings.ReplaceAll(announceLine, `"bad":"timeout"`, `"bad":"ok"`)+`; done`))
	got := describe(<-done)
	assert.That(t, got == `done 7 summary="did needs"` && <-waits == "w", "%v", got)
}

// TestFleetAnnounceEndsWithTheChild: the announcement of one child does not count for the next child.
func TestFleetAnnounceEndsWithTheChild(t *testing.T) {
	t.Parallel()
	s := newStage(t, fake(t, "w", "quiet"))
	s.pace.greet = 10 * time.Millisecond
	task := brief("a", "done")
	task.Requirements.RequiredMCP = []string{"db"}
	const silent = `blocked 0 reason="worker w did not announce itself within 10ms, and so not the MCP server \"db\""`
	assert.Equal(t, describe(s.do(task)), silent)
	s.do(brief("b", "say "+announceLine+"; done"))
	if got := s.do(task); got.Status != fleet.StatusDone {
		t.Error(describe(got))
	}
	s.do(brief("c", "crash"))
	assert.Equal(t, describe(s.do(task)), silent)
}

// TestFleetSteering: a text is sent to a child that takes texts, as soon as the child has announced that.
func TestFleetSteering(t *testing.T) {
	t.Parallel()
	const work = "note; until go; done"
	for name, c := range map[string]struct {
		announce []string
		brief    string
		takes    bool
	}{
		"takes":     {[]string{announceLine}, work, true},
		"is deaf":   {[]string{strings.ReplaceAll(announceLine, `"steer"`, `"tiller"`)}, work, false},
		"says late": {[]string{"quiet"}, "note; until told; say " + announceLine + "; until go; done", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, fake(t, "w", c.announce...))
			s.pace.greet = patience
			if c.announce[0] == "quiet" {
				s.pace.greet = 10 * time.Millisecond
			}
			steer := make(chan agent.Steering)
			task := brief("a", c.brief)
			task.Steer = steer
			go func() {
				defer s.touch("go")
				s.await("notes", 1)
				taken := make(chan bool, 1)
				select {
				case steer <- agent.Steering{Text: "to the left", Taken: taken}:
				case <-time.After(100 * time.Millisecond): // enough time for a text that is taken too early
					s.touch("told")
					steer <- agent.Steering{Text: "to the left", Taken: taken}
				}
				assert.Equal(t, <-taken, c.takes, "taken")
				if c.takes {
					s.await("messages", 1)
				}
			}()
			s.do(task)
			got := strings.Join(s.notes("messages"), "|")
			assert.That(t, (!c.takes || got == "TASK_STEER a to the left") && (c.takes || got == ""), "%v", got)
		})
	}
}

func TestFleetOutput(t *testing.T) {
	t.Parallel()
	s := newStage(t, fake(t, "w"))
	var h heard
	task := brief("a", "say some words; cry tears; until heard; done")
	task.Output = func(stream, line string) {
		if h.take(stream, line); len(h.all()) == 2 {
			s.touch("heard")
		}
	}
	s.do(task)
	assert.Equal(t, len(h.all()), 2)
}

// TestFleetHang: a child that does not stop a task in time is killed. Its other tasks run again: on other workers, or
// on the restarted one if they name it.
func TestFleetHang(t *testing.T) {
	t.Parallel()
	first, second := fake(t, "first"), fake(t, "second")
	first.Cwd, second.Cwd = "one", "two"
	first.Priority = 1
	s := newStage(t, first, second)
	s.pace.stop = 100 * time.Millisecond
	for _, dir := range []string{"one", "two"} {
		mkdir(t, s.dir, dir)
	}
	results := make(chan *fleet.Result)
	run := func(task agent.WorkerTask) { go func() { results <- s.do(task) }() }
	other := brief("other", "note; until ../two/notes; done") // only the second worker has this file
	run(other)
	named := brief("named", "note; until again; done")
	named.Worker = "first"
	run(named)
	s.await("one/notes", 2)
	hung := brief("hung", "hang")
	hung.Worker = "first"
	const ended = `error error="deadline" ~1`
	go func() { results <- s.late(hung, ended) }()
	got := make(map[string]string)
	for range 3 {
		res := <-results
		if got[res.TaskID] = describe(res); res.TaskID == "hung" {
			s.touch("one/again")
		}
	}
	assert.Equal(t, got["hung"], ended)
	if !strings.Contains(got["other"], `(first: worker was restarted to end its task "hung")`) ||
		!strings.Contains(got["other"], `summary="did other"`) {
		t.Error(got["other"])
	}
	if !strings.HasPrefix(got["named"], "done next=[workers that died during the task: ") ||
		!strings.Contains(got["named"], `(first: worker was restarted to end its task "hung")`) {
		t.Error(got["named"])
	}
	again := brief("again", "done")
	again.Worker = "first"
	if res := s.do(again); res.Status != fleet.StatusDone || len(s.notes("one/starts")) != 2 {
		t.Errorf("%s after %d starts", describe(res), len(s.notes("one/starts")))
	}
}

// TestFleetCancel: a cancel of a task kills a child that cannot cancel tasks, and does not kill a child that can.
func TestFleetCancel(t *testing.T) {
	t.Parallel()
	for _, can := range []bool{true, false} {
		t.Run(fmt.Sprint(can), func(t *testing.T) {
			t.Parallel()
			var args []string
			if can {
				args = []string{announceLine}
			}
			s := newStage(t, fake(t, "w", args...))
			s.do(brief("first", "done"))
			ctx, cancel := context.WithCancelCause(context.Background())
			why := errors.New("not wanted")
			go func() {
				s.await("notes", 1)
				cancel(why)
			}()
			_, err := s.RunTask(ctx, brief("a", "note; hang"))
			assert.That(t, errors.Is(err, why), "%v", err)
			got := strings.Join(s.notes("messages"), "|")
			assert.That(t, (!can || got == "TASK_CANCEL a ") && (can || got == ""), "%v", got)
			s.do(brief("last", "done"))
			if got := len(s.notes("starts")); can && got != 1 || !can && got != 2 {
				t.Errorf("%d starts", got)
			}
		})
	}
}

// TestFleetSameID: two sessions may use the same id: the child gets two different ids.
func TestFleetSameID(t *testing.T) {
	t.Parallel()
	s := newStage(t, fake(t, "w"))
	results := make(chan *fleet.Result)
	for range 2 {
		go func() { results <- s.do(brief("a", "note; until go; done")) }()
	}
	s.await("notes", 2)
	s.touch("go")
	sum := (<-results).Summary + "," + (<-results).Summary
	assert.That(t, sum == "did a,did a~2" || sum == "did a~2,did a", "%v", sum)
}

// TestFleetHidesItsToken: the auth token stays hidden, even if a child prints its input.
func TestFleetHidesItsToken(t *testing.T) {
	t.Parallel()
	w := fake(t, "w", "echoes")
	w.AuthToken = config.NewSecret("hunter2")
	s := newStage(t, w)
	s.pace.greet = 10 * time.Millisecond
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var h heard
	task := brief("a", "x")
	task.Output = func(stream, line string) {
		h.take(stream, line)
		cancel()
	}
	res, err := s.RunTask(ctx, task)
	if got := h.all(); len(got) != 1 || !strings.Contains(got[0], `"auth_token":"[redacted]"`) ||
		strings.Contains(fmt.Sprint(got, s.log, res, err), "hunter2") {
		t.Error(got, s.log, res, err)
	}
}

// TestFleetCloseIsFair: an idle child that does not end at once does not take time from the other children to end.
func TestFleetCloseIsFair(t *testing.T) {
	t.Parallel()
	// The first one ends only when all are told to end.
	workers := []Worker{fake(t, "a", "stays"), fake(t, "b"), fake(t, "c")}
	s := newStage(t, workers...)
	s.pace.end = patience
	for _, w := range workers {
		task := brief(w.Name, "done")
		task.Worker = w.Name
		s.do(task)
	}
	assert.OK(t, s.Close(context.Background()))
	assert.Equal(t, len(s.notes("ends")), 3, "… of 3 children were let go")
}

// TestFleetCannotRun: a program that cannot run soon fails the tasks that wait for it, and the error says why.
func TestFleetCannotRun(t *testing.T) {
	t.Parallel()
	w := fake(t, "w", "mute")
	w.MaxTasks = 1
	s := newStage(t, w)
	s.pace.rest = 700 * time.Millisecond
	start := time.Now()
	results := make(chan *fleet.Result)
	for i := range 20 {
		go func() { results <- s.do(brief(fmt.Sprint(i), "done")) }()
	}
	for range 20 {
		if res := <-results; res.Status != fleet.StatusError || !strings.Contains(res.Error,
			"exit status 3; its stderr ends with: cannot find my model") {
			t.Error(describe(res))
		}
	}
	n := len(s.notes("starts"))
	assert.That(t, n <= 4, "%d starts", n)
	s.mu.Lock()
	defer s.mu.Unlock()
	// The pause before its next start may be over by now.
	assert.Contains(t, s.runners[0].health.Reason(start), "cannot find my model")
}

// TestFleetTooLong: a task that is longer than a line may be fails at once, because no child could read it.
func TestFleetTooLong(t *testing.T) {
	t.Parallel()
	s := newStage(t, fake(t, "w"))
	res := s.do(brief("a", strings.Repeat("x", maxFleetLine)))
	assert.That(t, res.Status == fleet.StatusError && strings.Contains(res.Error, "it may have 16777216") &&
		len(s.notes("lines")) <= 0,
		"%s %s", res.Status, res.Error)
	if res := s.do(brief("b", "done; "+strings.Repeat("x", maxFleetLine-1000))); res.Error != "" {
		t.Errorf("%s %s", res.Status, res.Error)
	}
}

// TestFleetDumb: a child that closes its output and does not end is killed, because no result can come from it.
func TestFleetDumb(t *testing.T) {
	t.Parallel()
	s := newStage(t, fake(t, "w", "dumb"))
	s.pace.greet, s.pace.end = patience, 50*time.Millisecond
	// The second child may die with the task or before it, whichever is faster.
	want := regexp.MustCompile(`^error 0 error="no worker lived to end the task \(tries: [12]\): w: the worker ended: it closed its output; and now `)
	if got := describe(s.do(brief("a", "done"))); !want.MatchString(got) {
		t.Error(got)
	}
}

func TestFleetClose(t *testing.T) {
	t.Parallel()
	w := fake(t, "w")
	w.MaxTasks = 1
	s := newStage(t, w, fake(t, "idle"))
	s.pace.end = patience
	task := brief("a", "done")
	task.Worker = "idle"
	s.do(task)
	results := make(chan *fleet.Result)
	for _, id := range []string{"a", "b"} {
		task := brief(id, "note; hang")
		task.Worker = "w"
		go func() { results <- s.do(task) }()
	}
	s.await("notes", 1)
	hosttest.Eventually(t, "the other task waits", func() bool { return s.info("w").Waiting == 1 })
	closed := make(chan error)
	go func() { closed <- s.Close(context.Background()) }()
	for range 2 {
		if res := <-results; res.Status != fleet.StatusError || res.Error != "the host ends" {
			t.Error(describe(res))
		}
	}
	assert.OK(t, <-closed)
	_, err := s.RunTask(context.Background(), brief("c", "done"))
	assert.That(t, err != nil && strings.Contains(err.Error(), "the workers were closed"), "%v", err)
	if got := len(s.notes("ends")); got != 1 { // the idle child ends because its input ends
		t.Errorf("%d children ended by themselves", got)
	}
}

// TestCancelsAreNoCrashes: a worker that has to be ended because of cancelled tasks still counts as healthy.
func TestCancelsAreNoCrashes(t *testing.T) {
	t.Parallel()
	s := newStage(t, fake(t, "f"))
	for i := range 4 {
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() {
			_, err := s.RunTask(ctx, brief("c"+strconv.Itoa(i), "note; hang"))
			ended <- err
		}()
		s.await("notes", i+1)
		cancel()
		must.Fails(t, <-ended, "", "it was not cancelled")
		info := s.info("f")
		must.That(t, info.Healthy, "after %d cancels: %s", i+1, info.Reason)
	}
	res := s.do(brief("next", "done"))
	assert.Equal(t, res.Status, fleet.StatusDone, "%+v", res)
}

// TestFleetHaltSaysWhy: a child that takes cancels is asked for its result so far at a deadline, or at the worker's
// timeout, before its task is cancelled. The result names the reason for the end, whatever the child says.
func TestFleetHaltSaysWhy(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, then, summary string
		stop                time.Duration
	}{
		{"speaks", `result "status":"error","error":"my time was up","summary":"half"`, "half", patience},
		{"is cancelled", "hang", "", 20 * time.Millisecond},
	} {
		for _, dated := range []bool{true, false} {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				s := newStage(t, fake(t, "w", announceLine))
				s.do(brief("first", "done"))
				s.pace.stop = c.stop
				var res *fleet.Result
				why := "deadline"
				// It repeats with more time until the worker begins in time, and until the child answers later than the
				// waiting host.
				for ahead := 100 * time.Millisecond; res == nil || ahead < patience &&
					(res.Status == fleet.StatusBlocked || res.Error == "my time was up" ||
						res.Summary != c.summary); ahead *= 2 {
					task := brief("a", "sleep "+(2*ahead).String()+"; "+c.then)
					if dated {
						task.Deadline = time.Now().Add(ahead).Format(time.RFC3339Nano)
					} else {
						s.runners[0].Timeout, why = ahead, fmt.Sprintf("timeout: the worker may take %s for a task",
							ahead)
					}
					res = s.do(task)
				}
				if got := s.notes("messages"); res.Error != why || res.Summary != c.summary || c.summary != "" &&
					len(got) > 0 {
					t.Errorf("%s after %q", describe(res), got)
				}
			})
		}
	}
}
