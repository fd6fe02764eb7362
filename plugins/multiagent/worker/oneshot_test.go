package worker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"a2e/host/agent"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol/fleet"
)

func TestOneshotResults(t *testing.T) {
	t.Parallel()
	all := `{"status":"partial","tokens_spent":120,"next_steps":["b"],"artifacts":{"pr":"http://x/1","files_changed":["a.go"]},"summary":"half","remaining":{"n":1}}`
	tests := map[string]struct {
		script string
		schema fleet.ReplySchema
		budget int
		want   string // the fields that differ from the default result
	}{
		"stdout is the summary": {script: `cat; echo; echo fin`, want: `done summary="do it\nfin" ~4`},
		"nothing said":          {script: `:`, want: `done ~2`},
		"the last line is the result": {
			script: `echo working; echo '` + all + `'; echo; echo '  '`,
			want:   `partial 120 next=[b] pr=http://x/1 files=[a.go] summary="half" remaining={"n":1}`,
		},
		"the same asked for as prose": {
			script: `echo '` + all + `'`, schema: fleet.ReplyProse,
			want: `partial 120 next=[b] pr=http://x/1 files=[a.go] summary="half" remaining={"n":1}`,
		},
		"words after the result": {script: `echo '{"status":"error","tokens_spent":1,"error":"e"}'; echo sorry`, want: `error 1 error="e"`},
		"an object without status": {
			script: `echo '{"state":"done"}'`,
			want:   `done summary="{\"state\":\"done\"}" ~6`,
		},
		"a result and an exit status": {
			script: `echo '{"status":"done","tokens_spent":0}'; exit 3`,
			want:   `done 0`,
		},
		"tokens that it does not tell": {
			script: `echo '{"status":"done","summary":"1234567"}'`,
			want:   `done summary="1234567" ~3`,
		},
		"tokens that it estimates itself": {
			script: `echo '{"status":"done","tokens_spent":5,"tokens_estimated":true}'`,
			want:   `done ~5`,
		},
		"a status that there is not": {
			script: `echo '{"status":"fine","tokens_spent":1}'`,
			want:   `error 1 error="the worker gave the status \"fine\"; it should be done, blocked, error or partial"`,
		},
		"a status that is not text": {
			script: `echo '{"status":200,"summary":"s"}'`,
			want:   `error error="the worker's result is not valid: schema_violation: /status: is a JSON number; should be string" summary="s" ~2`,
		},
		"a list that is none": {
			script: `echo '{"status":"done","next_steps":"x"}'`,
			want:   `error error="the worker's result is not valid: schema_violation: /next_steps: is a JSON string; should be array" ~2`,
		},
		"tokens below zero": {
			script: `echo '{"status":"done","tokens_spent":-1}'`,
			want:   `error error="the worker's result is not valid: tokens_spent is -1; it should be a whole number, 0 or more" ~2`,
		},
		"nulls are nothing": {script: `echo '{"status":"done","tokens_spent":3,"next_steps":null,"artifacts":null,"summary":null,"remaining":null,"error":null}'`, want: `done 3`},
		"an error without a reason": {
			script: `echo '{"status":"error","tokens_spent":3,"summary":"no disk"}'`,
			want:   `error 3 error="no disk" summary="no disk"`,
		},
		"blocked without a reason": {
			script: `echo '{"status":"blocked","tokens_spent":0}'`,
			want:   `blocked 0 reason="the worker gave no reason"`,
		},
		"exit status": {
			script: `echo part; echo one >&2; echo two >&2; exit 3`,
			want:   `error error="the worker ended: exit status 3; its stderr ends with: one\ntwo" summary="part" ~3`,
		},
		"a crash": {
			script: `echo '{"status":"done"}'; kill -SEGV $$`,
			want:   `error error="no worker lived to end the task (tries: 3): w: the worker ended: signal: segmentation fault" summary="{\"status\":\"done\"}" ~18`,
		},
		"bytes that are not text": {
			script: `printf 'a\377b'; printf '\377' >&2; exit 1`,
			want: `error error="the worker ended: exit status 1; its stderr ends with: ` + "\uFFFD" + `" summary="a` +
				"\uFFFD" + `b" ~2`,
		},
		"structured prose": {
			script: `echo hello`, schema: fleet.ReplyStructured,
			want: `done summary="{\"text\":\"hello\"}" ~3`,
		},
		"structured by a result": {
			script: `echo '{"status":"done","tokens_spent":1,"summary":"hello"}'`,
			schema: fleet.ReplyStructured, want: `done 1 summary="hello"`,
		},
		"json prose": {
			script: `echo 'say "hi"'`, schema: fleet.ReplyJSON,
			want: `done summary="{\"text\":\"say \\\"hi\\\"\"}" ~4`,
		},
		"json already": {
			script: `printf '{"a":\n[1]}\n'`, schema: fleet.ReplyJSON,
			want: `done summary="{\"a\":\n[1]}" ~4`,
		},
		"json in a result": {
			script: `echo '{"status":"done","tokens_spent":1,"summary":{"a":1}}'`,
			schema: fleet.ReplyJSON, want: `done 1 summary="{\"a\":1}"`,
		},
		"json text in a result": {
			script: `echo '{"status":"done","tokens_spent":1,"summary":"[1,2]"}'`,
			schema: fleet.ReplyJSON, want: `done 1 summary="[1,2]"`,
		},
		"json prose in a result": {
			script: `echo '{"status":"done","tokens_spent":1,"summary":"hello"}'`,
			schema: fleet.ReplyJSON, want: `done 1 summary="{\"text\":\"hello\"}"`,
		},
		"within the budget": {
			script: `echo '{"status":"done","tokens_spent":10}'`, budget: 10,
			want: `done 10`,
		},
		"over the budget": {
			script: `echo '{"status":"done","tokens_spent":11}'`, budget: 10,
			want: `done 11 next=[the token budget of 10 was exceeded: 11 were spent]`,
		},
		"an estimate is over no budget": {
			script: `echo a long text, longer than that`, budget: 1,
			want: `done summary="a long text, longer than that" ~9`,
		},
		"the variables": {script: `echo $A2E_TASK_ID,$A2E_PRIORITY,$A2E_TOKEN_BUDGET,$A2E_REPLY_SCHEMA,$A2E_DEADLINE,$MORE,$OWN`, want: `done summary="id,normal,0,prose,,more,own" ~9`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := shell("w", test.script)
			w.Env = map[string]string{"OWN": "own", "A2E_PRIORITY": "not this"}
			task := brief("id", "do it")
			task.Task.ReplySchema, task.Task.TokenBudget = test.schema, test.budget
			task.Env = map[string]string{"MORE": "more"}
			assert.Equal(t, describe(newStage(t, w).do(task)), test.want)
		})
	}
}

// describe returns the fields of a result that differ from the default result.
func describe(r *fleet.Result) string {
	parts := []string{string(r.Status)}
	add := func(set bool, format string, args ...any) {
		if set {
			parts = append(parts, fmt.Sprintf(format, args...))
		}
	}
	add(!r.TokensEstimated, "%d", r.TokensSpent)
	add(len(r.NextSteps) > 0, "next=%s", r.NextSteps)
	if r.BlockedReason != nil {
		add(true, "reason=%q", *r.BlockedReason)
	}
	if r.Artifacts.PR != nil {
		add(true, "pr=%s", *r.Artifacts.PR)
	}
	add(len(r.Artifacts.FilesChanged) > 0, "files=%s", r.Artifacts.FilesChanged)
	add(r.Error != "", "error=%q", r.Error)
	add(r.Summary != "", "summary=%q", r.Summary)
	add(r.Remaining != nil, "remaining=%s", r.Remaining)
	add(r.TokensEstimated, "~%d", r.TokensSpent)
	return strings.Join(parts, " ")
}

func TestOneshotOutput(t *testing.T) {
	t.Parallel()
	s := newStage(t, shell("w", `echo one; read a; echo "$a"; echo bad >&2; printf last`))
	var h heard
	task := brief("id", "brief\n")
	task.Output = h.take
	s.do(task)
	got := h.all()
	slices.Sort(got)
	assert.Diff(t, []string{"stderr: bad", "stdout: brief", "stdout: last", "stdout: one"}, got)
}

// TestOneshotOutputComesAtOnce: output is passed on while the worker works, not only at the end.
func TestOneshotOutputComesAtOnce(t *testing.T) {
	t.Parallel()
	s := newStage(t, shell("w", `echo one; until test -e go; do sleep 0.01; done; echo two`))
	task := brief("id", "")
	var h heard
	task.Output = func(stream, line string) {
		if h.take(stream, line); line == "one" {
			s.touch("go")
		}
	}
	res := s.do(task)
	assert.Equal(t, res.Summary, "one\ntwo", "%+v", res)
}

func TestOneshotFloodIsBounded(t *testing.T) {
	t.Parallel()
	s := newStage(t, shell("w", `head -c 5000000 /dev/zero | tr '\0' x; echo; yes | head -c 600000; yes no | head -c 300000 >&2; echo ü; exit 1`))
	longest, lines := 0, 0
	task := brief("id", "")
	task.Output = func(_, line string) {
		longest = max(longest, len(line))
		lines++
	}
	res := s.do(task)
	if len(res.Summary) > maxSummary+100 || !strings.HasSuffix(res.Summary, "y\nü") ||
		!strings.HasPrefix(res.Summary, "[") {
		t.Errorf("summary of %d bytes: %.60q … %q", len(res.Summary), res.Summary,
			res.Summary[max(0, len(res.Summary)-20):])
	}
	assert.That(t, len(res.Error) <= maxWords+200 && strings.HasSuffix(res.Error, "no\nno"),
		"error of %d bytes: %.200q", len(res.Error), res.Error)
	want := 5_600_000 / charsPerToken
	assert.That(t, res.TokensSpent >= want && res.TokensEstimated, "tokens %d, want more than %d", res.TokensSpent,
		want)
	assert.That(t, longest >= 4<<10 && longest <= 5<<10 && lines >= 400_000, "%d lines, the longest of %d bytes", lines,
		longest)
}

// TestOneshotLongLine: the summary has the end of a line that is too long.
func TestOneshotLongLine(t *testing.T) {
	t.Parallel()
	s := newStage(t, shell("w", `head -c 2000000 /dev/zero | tr '\0' x; echo the end`))
	var h heard
	task := brief("id", "")
	task.Output = h.take
	res := s.do(task)
	if !strings.HasSuffix(res.Summary, "xthe end") || len(res.Summary) < maxSummary ||
		!strings.HasPrefix(res.Summary, "[1737864 bytes before this were left out]\nx") {
		t.Errorf("%.60q … %q", res.Summary, res.Summary[max(0, len(res.Summary)-20):])
	}
	got := h.all()
	assert.That(t, len(got) == 1 && strings.HasSuffix(got[0], "x… (the start of a line of more than 1048576 bytes)"),
		"%.60q", got)
}

// TestWallSecretsAreHidden: secrets that a worker was given are hidden in all of its output.
func TestWallSecretsAreHidden(t *testing.T) {
	t.Parallel()
	w := shell("w", `echo "out $API_KEY"; echo "err $API_KEY $PLAIN" >&2; case "$(cat)" in fail) exit 1;; say) echo '{"status":"blocked","tokens_spent":0,"blocked_reason":"no '$API_KEY'","next_steps":["renew '$API_KEY'"]}';; esac`)
	w.Env = map[string]string{"API_KEY": "hunter2-long", "PLAIN": "said-aloud", "SHORT_KEY": "e"}
	s := newStage(t, w)
	for _, text := range []string{"fail", "say", "sing"} {
		var h heard
		task := brief("id", text)
		task.Output = h.take
		res := s.do(task)
		all := describe(res) + fmt.Sprint(h.all(), s.log)
		if strings.Contains(all, "hunter2") || !strings.Contains(all, "[redacted]") ||
			!strings.Contains(all, "err [redacted] said-aloud") {
			t.Error(all)
		}
	}
}

func TestNobodyListensAfterTheEnd(t *testing.T) {
	t.Parallel()
	var h heard
	l := &listener{to: h.take}
	l.say("stdout", []byte("a\xff"))
	l.close()
	l.say("stdout", []byte("b"))
	assert.Diff(t, []string{"stdout: a\uFFFD"}, h.all())
}

// TestOneshotIgnoresItsBrief: a worker need not read its brief, however long the brief is.
func TestOneshotIgnoresItsBrief(t *testing.T) {
	t.Parallel()
	s := newStage(t, shell("w", `echo ok`))
	if res := s.do(brief("id", strings.Repeat("x", 4<<20))); res.Status != fleet.StatusDone || res.Summary != "ok" {
		t.Errorf("%s", describe(res))
	}
}

func TestOneshotDeadline(t *testing.T) {
	t.Parallel()
	s := newStage(t, shell("w", `echo begun; sleep 1000 & wait`))
	task := brief("id", "x")
	const want = `error error="deadline" summary="begun" ~2`
	assert.Equal(t, describe(s.late(task, want)), want)
	task.Deadline = "2001-01-01T00:00:00Z"
	assert.Equal(t, describe(s.do(task)), `blocked 0 reason="the deadline 2001-01-01T00:00:00Z has passed"`)
}

func TestOneshotTimeout(t *testing.T) {
	t.Parallel()
	w := shell("w", `sleep 1000 & wait`)
	w.Timeout = 200 * time.Millisecond
	res := newStage(t, w).do(brief("id", "x"))
	if res.Status != fleet.StatusError || !strings.HasPrefix(res.Error, "timeout: the worker may take 200ms") {
		t.Error(describe(res))
	}
}

func TestOneshotCancel(t *testing.T) {
	t.Parallel()
	s := newStage(t, shell("w", `echo x >begun; sleep 1000 & wait`))
	ctx, cancel := context.WithCancelCause(context.Background())
	why := errors.New("not wanted")
	go func() {
		s.await("begun", 1)
		cancel(why)
	}()
	res, err := s.RunTask(ctx, brief("id", ""))
	assert.That(t, errors.Is(err, why) && res == nil, "%v, %v", res, err)
	info := s.info("w")
	assert.That(t, info.Active == 0 && info.Waiting == 0, "%+v", info)
}

func TestOneshotSteeringIsNotTaken(t *testing.T) {
	t.Parallel()
	s := newStage(t, shell("w", `until test -e go; do sleep 0.01; done`))
	steer := make(chan agent.Steering)
	go func() {
		for range 2 { // the second one waits until the first one was taken
			taken := make(chan bool, 1)
			steer <- agent.Steering{Text: "left", Taken: taken}
			assert.That(t, !<-taken, "taken")
		}
		close(steer)
		s.touch("go")
	}()
	task := brief("a", "")
	task.Steer = steer
	done := make(chan *fleet.Result)
	for _, id := range []string{"a", "b"} {
		task.Task.TaskID = id
		go func(task agent.WorkerTask) { done <- s.do(task) }(task)
	}
	for range 2 {
		if res := <-done; res.Status != fleet.StatusDone {
			t.Error(describe(res))
		}
	}
}

func TestOneshotCannotStart(t *testing.T) {
	t.Parallel()
	s := newStage(t, Worker{Name: "w", Command: []string{"no-such-program-here"}})
	s.pace.rest = longestRest
	res := s.do(brief("id", ""))
	if res.Status != fleet.StatusError || !strings.Contains(res.Error,
		`worker w was not started: program "no-such-program-here" is in none of`) {
		t.Error(describe(res))
	}
	info := s.info("w")
	assert.That(t, !info.Healthy && strings.Contains(info.Reason, "no-such-program-here"), "%+v", info)
	for range 5 { // the program is not started each time, but each task has its answer
		if res := s.do(brief("id", "")); res.Status != fleet.StatusError || !strings.Contains(res.Error,
			"no-such-program-here") {
			t.Error(describe(res))
		}
	}
}

func TestOneshotTaskThatCannotBeTold(t *testing.T) {
	t.Parallel()
	s := newStage(t, shell("w", `echo hi`))
	task := brief("id", "")
	task.Env = map[string]string{"SAID": "i\x00d"}
	if res := s.do(task); res.Status != fleet.StatusError || !strings.Contains(res.Error, "NUL") {
		t.Error(describe(res))
	}
	assert.That(t, s.info("w").Healthy, "a bad task made the worker unhealthy")
}

// TestOneshotFolders: a worker runs in its cwd, and may write to the folders of the config.
func TestOneshotFolders(t *testing.T) {
	t.Parallel()
	other := t.TempDir()
	w := shell("w", `echo x >here && echo y >`+other+`/sub/there && pwd`)
	mkdir(t, other, "sub")
	w.Cwd, w.Write = other+"/sub", []string{other}
	s := confinedStage(t, w)
	if res := s.do(brief("id", "")); res.Status != fleet.StatusDone || res.Summary != other+"/sub" {
		t.Error(describe(res))
	}
	for _, name := range []string{"here", "there"} {
		_, err := os.Stat(filepath.Join(other, "sub", name))
		assert.That(t, err == nil, "%v", err)
	}
}

// TestOneshotWorkspaceOfATask: a task may have a workspace of its own, even in the state folder, and its process works
// there.
func TestOneshotWorkspaceOfATask(t *testing.T) {
	t.Parallel()
	at := shell("at", `echo x >here && pwd && echo "$A2E_WORKSPACE"`)
	below := at
	below.Name, below.Cwd = "below", "sub"
	elsewhere := at
	elsewhere.Name, elsewhere.Cwd = "elsewhere", t.TempDir()
	elsewhere.Write = []string{elsewhere.Cwd}
	s := confinedStage(t, at, below, elsewhere)
	tree := filepath.Join(s.stateDir, "tree")
	must.OK(t, os.MkdirAll(filepath.Join(tree, "sub"), 0o700))
	for worker, dir := range map[string]string{
		"at": tree, "below": filepath.Join(tree, "sub"),
		"elsewhere": elsewhere.Cwd,
	} {
		task := brief("t", "")
		task.Worker, task.Workspace = worker, tree
		if res := s.do(task); res.Summary != dir+"\n"+tree {
			t.Errorf("%s: %s", worker, describe(res))
		}
		_, err := os.Stat(filepath.Join(dir, "here"))
		assert.That(t, err == nil, "%v", err)
	}
}
