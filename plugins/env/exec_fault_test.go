package env

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// late takes a step that the program does not answer, with a time limit of 50 ms.
func (s *execStage) late(w *execWorld) *protocol.Error {
	s.t.Helper()
	usual := w.within
	w.within = 50 * time.Millisecond
	defer func() { w.within = usual }()
	return s.refused(w, `{"type":"hold"}`, protocol.CodeTimeout)
}

// TestExecTimeout: an answer that comes too late is dropped, and the host asks the program for the state again.
func TestExecTimeout(t *testing.T) {
	s := newExecStage(t, "", ExecOptions{Timeout: hosttest.Patience})
	a, b := s.begin(1, `{}`), s.begin(2, `{}`)
	assert.That(t, a.within == hosttest.Patience, "the episode has %v", a.within)
	e := s.late(a)
	assert.That(t, e.Retryable && strings.Contains(e.Message, "env/step/req within 50ms"), "%+v", e)
	got := s.state(a, "count")
	assert.That(t, got == "2", "the state is %s: not looked at again", got)
	s.act(b, `{"type":"release"}`) // now the program sends the late answer
	out := s.act(a, `{"type":"add","value":5}`)
	assert.That(t, out.Reward == 0.25 && s.state(a, "count") == "7", "after a late answer: %+v, count %s", out,
		s.state(a, "count"))
}

// TestExecCancel: a cancelled request does not end its episode.
func TestExecCancel(t *testing.T) {
	s := newExecStage(t, "", ExecOptions{})
	a := s.begin(1, `{}`)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := protocol.Errorf(protocol.CodeCancelled, "the agent cancelled")
	go func() {
		s.await("held", 1)
		cancel(why)
	}()
	if _, err := a.Step(ctx, Action{Whole: execObject(t, `{"type":"hold"}`)}); !errors.Is(err, why) {
		t.Errorf("cancelled: %v", err)
	}
	late, end := context.WithCancelCause(t.Context())
	go func() {
		s.await("held", 2)
		end(context.DeadlineExceeded)
	}()
	_, err := a.Step(late, Action{Whole: execObject(t, `{"type":"hold"}`)})
	execCode(t, err, protocol.CodeTimeout)
	if s.act(a, `{"type":"add","value":1}`); s.state(a, "count") != "4" {
		t.Errorf("count %s", s.state(a, "count"))
	}
}

// TestExecAbandonedReset: an episode that begins after its reset was cancelled is closed.
func TestExecAbandonedReset(t *testing.T) {
	s := newExecStage(t, "", ExecOptions{})
	w := s.begin(1, `{}`)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		s.await("held", 1)
		cancel()
	}()
	_, err := s.Reset(ctx, Reset{Options: execObject(t, `{"how":"hold"}`)})
	assert.That(t, errors.Is(err, context.Canceled), "reset: %v", err)
	s.act(w, `{"type":"release"}`)
	s.await("closed", 1)
	got := s.notes("closed")
	assert.That(t, got[0] == "e1", "closed %v", got)
}

func TestExecDeath(t *testing.T) {
	s := newExecStage(t, "", ExecOptions{})
	a, b := s.begin(1, `{}`), s.begin(2, `{}`)
	for name, err := range map[string]error{
		"the step that it died of": func() error {
			_, err := a.Step(t.Context(), Action{Whole: execObject(t, `{"type":"die"}`)})
			return err
		}(),
		"an idle episode": func() error {
			_, err := b.Step(t.Context(), Action{Whole: execObject(t, `{"type":"add","value":1}`)})
			return err
		}(),
		"its state": func() error { _, err := b.AppendState(t.Context(), nil); return err }(),
	} {
		var own *protocol.Error
		if err == nil || errors.As(err, &own) { // a *protocol.Error would let the episode go on
			t.Errorf("%s: %#v", name, err)
			continue
		}
		assert.That(t, strings.Contains(err.Error(), "exit status 3") && strings.Contains(err.Error(), "a last word"),
			"%s: %v", name, err)
	}
	err := b.Close(t.Context())
	assert.That(t, err == nil, "close: %v", err)
	c := s.begin(5, `{}`)
	got := s.state(c, "count")
	assert.That(t, got == "5" && len(s.notes("starts")) == 2, "after a new start: count %s, %d starts", got,
		len(s.notes("starts")))
}

// TestExecBackoff: a program that dies at once is started again at once the first time, then after longer and longer
// waits.
func TestExecBackoff(t *testing.T) {
	s := newExecStage(t, "die", ExecOptions{})
	try := func() *protocol.Error {
		t.Helper()
		_, err := s.Reset(t.Context(), Reset{})
		var e *protocol.Error
		if !errors.As(err, &e) {
			e = &protocol.Error{Message: fmt.Sprint(err)}
		}
		assert.That(t, strings.Contains(e.Message, "exit status 1") && strings.Contains(e.Message, "it cannot run"),
			"%+v", e)
		return e
	}
	starts := 0
	for _, wait := range []time.Duration{0, 500 * time.Millisecond, time.Second} {
		starts++
		if e := try(); e.Code != "" {
			t.Fatalf("start %d was refused: %v", starts, e)
		}
		if wait > 0 {
			if e := try(); !e.Retryable || e.Detail["retry_after"] != wait.Seconds() {
				t.Fatalf("after start %d: wait %v, want %v", starts, e.Detail["retry_after"], wait)
			}
			s.pass(wait)
		}
		n := len(s.notes("starts"))
		must.That(t, n == starts, "%d starts, want %d", n, starts)
	}
	_, err := s.Space(t.Context())
	assert.Fails(t, err, "exit status 1", "a space that nobody knows")
}

func TestExecNoRestart(t *testing.T) {
	s := newExecStage(t, "", ExecOptions{Restart: new(false)})
	w := s.begin(1, `{}`)
	if _, err := w.Step(t.Context(), Action{Whole: execObject(t, `{"type":"die"}`)}); err == nil {
		t.Fatal("it lives")
	}
	_, err := s.Reset(t.Context(), Reset{})
	e := execCode(t, err, protocol.CodeResetDenied)
	assert.That(t, strings.Contains(e.Message, "restart: false") && len(s.notes("starts")) == 1, "%v, %d starts", e,
		len(s.notes("starts")))
}

func TestExecThatDoesNotStart(t *testing.T) {
	for name, tc := range map[string]struct {
		mode string
		opts ExecOptions
		code protocol.ErrorCode
		says string
	}{
		"silent": {
			mode: "mute", opts: ExecOptions{StartTimeout: 100 * time.Millisecond}, code: protocol.CodeTimeout,
			says: "env/space/req within 100ms",
		},
		"refuses":   {mode: "refuse", code: protocol.CodeUnknownEnv, says: "there is no such world"},
		"not there": {opts: ExecOptions{Command: []string{"no-such-program-here"}}, says: "no-such-program-here"},
		"no file":   {opts: ExecOptions{Command: []string{"./nothing"}}, says: "does not exist"},
		"no folder": {opts: ExecOptions{Cwd: "nowhere"}, says: "nowhere"},
		"no speech": {opts: ExecOptions{Command: []string{"echo", "hello"}}, says: "ended: exit status 0"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newExecStage(t, tc.mode, tc.opts)
			_, err := s.Reset(t.Context(), Reset{})
			e := execCode(t, err, tc.code)
			assert.That(t, strings.Contains(e.Message, tc.says), "%v", e)
		})
	}
}

func TestExecAnswersThatAreErrors(t *testing.T) {
	s := newExecStage(t, "", ExecOptions{})
	w := s.begin(1, `{}`)
	for name, tc := range map[string]struct {
		message   string
		code      protocol.ErrorCode
		retryable bool
		says      string
	}{
		"one of ours": {`{"type":"error","code":"unknown_action","message":"no such thing","detail":{"known":["add"]}}`, protocol.CodeUnknownAction, false, "no such thing"},
		"a retryable": {`{"type":"error","code":"runtime_error","message":"m"}`, protocol.CodeRuntimeError, true, "m"},
		"says not": {
			`{"type":"error","code":"runtime_error","message":"m","retryable":false}`,
			protocol.CodeRuntimeError, false, "m",
		},
		"an empty one":   {`{"type":"error"}`, protocol.CodeRuntimeError, true, "does not say why"},
		"a strange code": {`{"type":"error","code":"wobbly","message":"m"}`, "wobbly", false, "m"},
		"no error":       {`{"type":"error","code":5}`, protocol.CodeRuntimeError, true, "/code"},
		"another type": {
			`{"type":"env/observe/resp","obs":{"state":{}}}`, protocol.CodeRuntimeError, true,
			`answered by "env/observe/resp"`,
		},
		"no obs":        {`{}`, protocol.CodeRuntimeError, true, "obs"},
		"no object":     {`{"obs":[1]}`, protocol.CodeRuntimeError, true, "obs"},
		"no state":      {`{"obs":{"reward":1}}`, protocol.CodeRuntimeError, true, "obs has no state"},
		"a flat state":  {`{"obs":{"state":5}}`, protocol.CodeRuntimeError, true, "obs.state"},
		"a text reward": {`{"obs":{"state":{},"reward":"1"}}`, protocol.CodeRuntimeError, true, "obs.reward"},
		"a number done": {`{"obs":{"state":{},"done":1}}`, protocol.CodeRuntimeError, true, "obs.done"},
		"flat metadata": {`{"obs":{"state":{},"metadata":"x"}}`, protocol.CodeRuntimeError, true, "obs.metadata"},
	} {
		e := s.refused(w, `{"type":"raw","message":`+tc.message+`}`, tc.code)
		assert.That(t, e.Retryable == tc.retryable && strings.Contains(e.Message, tc.says), "%s: %+v", name, e)
	}
	s.act(w, `{"type":"raw","message":{"obs":{"state":{},"reward":null,"metadata":null}}}`)
	for said, word := range map[string]string{"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"} {
		e := s.refused(w, `{"type":"nan","reward":"`+said+`"}`, protocol.CodeRuntimeError)
		assert.Contains(t, e.Message, "JSON has no "+word+"; a number must be finite", "%s", said)
		assert.That(t, w.stale.Load(), "after %s the state is taken for known", word)
		s.act(w, `{"type":"add","value":1}`)
	}
	for options, says := range map[string]string{`{"how":"same"}`: "open", `{"how":"nameless"}`: "obs.episode_id"} {
		_, err := s.Reset(t.Context(), Reset{Options: execObject(t, options)})
		e := execCode(t, err, protocol.CodeRuntimeError)
		assert.That(t, strings.Contains(e.Message, says), "reset %s: %v", options, e)
	}
}

func TestExecThatDoesNotEnd(t *testing.T) {
	s := newExecStage(t, "stubborn", ExecOptions{})
	s.grace = hosttest.Patience // only the end of ctx ends the program in this test
	w := s.begin(1, `{}`)
	ctx, cancel := context.WithCancel(t.Context())
	closed := make(chan error, 1)
	go func() { closed <- s.Close(ctx) }()
	s.await("ended", 1)
	cancel()
	assert.OK(t, <-closed)
	_, err := w.AppendState(t.Context(), nil)
	assert.Fails(t, err, errExecClosed.Error(), "after the end")
}
