package jsonrpc_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/agent"
	front "a2e/host/dialect/jsonrpc"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/poll"
	"a2e/protocol/fleet"
)

// TestTurn: a turn with a model sends its events in this order and with these fields.
func TestTurn(t *testing.T) {
	k := newKit()
	steered := make(chan struct{})
	k.play = func(_ context.Context, task agent.WorkerTask) *fleet.Result {
		w := task.Talk.Watch
		call := agent.ModelCall{ID: "c1", Name: "echo", WireName: "echo_", Arguments: jsontext.Value(`{"s":"x"}`)}
		result := agent.ModelResult{OK: true, Result: jsontext.Value(`{"r":1}`)}
		w.Round(1, 9)
		w.Piece(agent.PieceThought, "**Look")
		w.Piece(agent.PieceThought, " at it**\nhm")
		w.Piece(agent.PieceAnswer, "I ")
		w.Piece(agent.PieceAnswer, "look.")
		w.ToolStarted(1, call)
		w.ToolEnded(1, call, result)
		w.Calls(1, []agent.ModelCall{call}, []agent.ModelResult{result})
		k.begun <- ""
		<-steered
		s := <-task.Steer
		s.Taken <- true
		w.Round(2, 9)
		w.Piece(agent.PieceAnswer, "lost")
		w.Restart()
		w.Piece(agent.PieceAnswer, "It is 1 🙂")
		return done(task, "other")
	}
	p := open(t, front.Options{}, k)
	check(t, p.call("model.select", `{"model_id":" m2 ","provider":"big","thinking_level":"low"}`),
		"/result/selected_thinking", "LOW")
	s := p.session("")
	p.call("debug.set", `{"super_debug":true}`)
	since := len(p.all())
	answer := p.on(s, "session.send", `,"text":"  first line\nsecond ","images":null`)
	turn := get(t, answer, "/result/turn_id")
	check(t, answer, "/result/accepted", "true", "/result/queued", "false", "/result/session_id", s)
	<-k.begun
	check(t, p.on(s, "session.steer", `,"text":" left "`), "/result/accepted", "true")
	check(t, p.on(s, "session.get", ""), "/result/pendingSteerCount", "1", "/result/pending", "true", "/result/history",
		"[]")
	close(steered)
	p.idle(s, 0)
	want := []string{
		"answer", "status thinking...", "message.appended user first line\nsecond", "debug request",
		"status thinking: reasoning", "stream.chunk **Look", "status thinking: look at it", "stream.chunk  at it**\nhm",
		"status drafting response...", "stream.chunk I ", "stream.chunk look.",
		"tool.call.started echo", "debug echo tool_call_started", "tool.call.completed echo",
		"debug echo tool_call_completed", "tool.results echo", "debug echo tool_results",
		"answer", "answer", "message.appended user left", "status steer applied; continuing...", "debug request",
		"status drafting response...", "stream.chunk \n\nlost", "status retrying...", "status drafting response...",
		"stream.chunk \n\nIt is 1 🙂",
		"message.appended assistant I look.\n\nIt is 1 🙂", "completed 19", "status ready",
	}
	assert.Diff(t, want, p.story(s, since))
	for _, c := range [][]string{
		{"session.status", "thinking...", "/turn_id", turn, "/pending", "true"},
		{
			"session.stream.chunk", "It is", "/turn_id", turn, "/chunk/thoughts", "[]", "/chunk/segments/0/kind", "answer",
			"/chunk/segments/0/text", "\n\nIt is 1 🙂",
		},
		{"session.stream.chunk", "Look", "/chunk/answerText", "", "/chunk/segments/0/kind", "thought"},
		{
			"session.tool.call.started", "", "/turn_id", turn, "/data",
			`{"call":{"name":"echo","input":{"s":"x"},"providerToolName":"echo_","callId":"c1"},"toolRound":1}`,
		},
		{
			"session.tool.call.completed", "", "/turn_id", turn, "/data/toolRound", "1", "/data/executed/ok", "true",
			"/data/executed/input", `{"s":"x"}`, "/data/executed/result", `{"r":1}`,
		},
		{"session.tool.results", "", "/turn_id", turn, "/data/executed/0/ok", "true"},
		{"session.completed", "", "/turn_id", turn, "/status", "done", "/tokens_spent", "7"},
	} {
		for i := 2; i < len(c); i += 2 {
			check(t, p.event(c[0], c[1], 0), "/params/payload"+c[i], c[i+1])
		}
	}
	state := p.on(s, "session.get", "")
	check(t, state, "/result/pending", "false", "/result/statusLabel", "ready", "/result/conversationProvider", "big",
		"/result/history", `[{"role":"user","text":"first line\nsecond"},{"role":"user","text":"left"},{"role":"assistant","text":"I look.\n\nIt is 1 🙂"}]`,
		"/result/messages/0/kind", "user", "/result/messages/2/text", "I look.\n\nIt is 1 🙂")
	shown := p.event("session.message.appended", "assistant", 0)
	check(t, shown, "/params/payload/message/id", get(t, state, "/result/messages/2/id"))
	got := p.call("history.get", `{"id":"`+strings.ToUpper(get(t, state, "/result/activeSessionId")[:8])+`"}`)
	check(t, got, "/result/title", "first line second", "/result/provider", "big", "/result/model", "m2",
		"/result/thinkingLevel", "LOW", "/result/messageCount", "3",
		"/result/rolloutPath", "a2e:"+get(t, state, "/result/activeSessionId"), "/result/messages/1/text", "left")
}

// TestQueue: queued texts start by themselves, in order, each with the turn_id of its answer, even after an interrupt
// or an error. After an interrupt the text that the worker had sent is kept.
func TestQueue(t *testing.T) {
	k, hold := holding()
	opts := front.Options{MaxWaiting: 3, Store: state(t, t.TempDir())}
	p := open(t, opts, k)
	s := p.session(`{"title":"T"}`)
	p.send(onSession("1", "session.send", s, `,"text":"one"`), onSession("2", "session.send", s,
		`,"text":"race"`)) // directly one after the other
	check(t, p.answer("2"), "/error/data/field", "enqueue", "/error/code", "-32602", "/error/data/code", "session_busy")
	<-k.begun
	two := p.on(s, "session.send", `,"text":"two","enqueue":true`)
	check(t, two, "/result/queued", "true", "/result/accepted", "true")
	p.event("session.status", "queued (1)", 0)
	three := p.on(s, "session.send", `,"text":"three","enqueue":true,"images":[{"path":"gone.png","mimeType":"image/png"}]`)
	p.on(s, "session.send", `,"text":"four","enqueue":true`)
	check(t, p.on(s, "session.send", `,"text":"five","enqueue":true`), "/error/data/reason", "overloaded",
		"/error/code", "-32000")
	queue := p.on(s, "session.queue.list", "")
	check(t, queue, "/result/queue/0/id", get(t, two, "/result/turn_id"), "/result/queue/1/text", "three",
		"/result/queue/0/images", "[]",
		"/result/queue/1/images", `[{"path":"gone.png","mime_type":"image/png"}]`, "/result/queue/2/enqueuedAt~", "Z")
	since := len(p.all())
	check(t, p.on(s, "session.interrupt", ""), "/result/interrupted", "true")
	<-k.begun
	hold <- struct{}{}
	<-k.begun // four: the image of three does not exist
	hold <- struct{}{}
	p.idle(s, 2)
	told := strings.Join(p.story(s, since), "|")
	want := "status interrupting...|answer|message.appended assistant half|message.appended system response " +
		"interrupted by user. partial output kept.|interrupted true|status ready|" +
		"status drafting response...|message.appended user two|stream.chunk half|message.appended assistant " +
		"half|completed 4|status ready|message.appended system inference error: image 1: "
	assert.That(t, strings.HasPrefix(told, want) && strings.Contains(told, "|error|status drafting "+
		"response...|message.appended user four|"), "%s\nshould begin\n%s", told, want)
	check(t, p.event("session.completed", "", 0), "/params/payload/turn_id", get(t, two, "/result/turn_id"))
	check(t, p.event("session.error", "", 0), "/params/payload/turn_id", get(t, three, "/result/turn_id"),
		"/params/payload/code", "invalid_image")
	state := p.on(s, "session.get", "")
	check(t, state, "/result/title", "T", "/result/history/1/text", "half", "/result/history/2/text", "two",
		"/result/history/4/text", "four")
	p.on(s, "session.send", `,"text":"six"`)
	<-k.begun
	p.on(s, "session.send", `,"text":"seven","enqueue":true`)
	check(t, p.on(s, "session.queue.clear", ""), "/result/cleared_count", "1")
	check(t, p.on(s, "session.queue.clear", ""), "/result/cleared_count", "0")
	p.send(request("9", "system.shutdown", `{"timeout":0,"reason":"enough"}`))
	p.wait()
	check(t, p.event("state.changed", "enough", 0), "/params/payload/snapshot/sessions/count", "1")
	p = open(t, opts, newKit())
	poll.Eventually(t, "the end is noted", func() bool { // the host may end before it can send this
		state = p.on(s, "session.get", "")
		return strings.Contains(state, "the host ends")
	})
	check(t, state, fmt.Sprintf("/result/messages/%d/kind", strings.Count(state, `"kind":`)-1), "system")
}

// TestSteers: a text for an idle session is not accepted. Texts that came too late for a turn become the next turns,
// and history.clear_session takes them back.
func TestSteers(t *testing.T) {
	k, hold := holding()
	p := open(t, front.Options{}, k)
	s := p.session("")
	check(t, p.on(s, "session.steer", `,"text":"x"`), "/result/accepted", "false")
	p.on(s, "session.send", `,"text":"one"`)
	<-k.begun
	p.on(s, "session.send", `,"text":"three","enqueue":true`)
	for _, text := range []string{"two", "two and a half"} {
		check(t, p.on(s, "session.steer", `,"text":"`+text+`"`), "/result/accepted", "true")
	}
	since := len(p.all())
	hold <- struct{}{}
	for _, want := range []string{"two", "two and a half", "three"} {
		must.Equal(t, <-k.begun, want, "… begins")
		if want == "three" {
			p.on(s, "session.steer", `,"text":"taken back"`)
			check(t, p.on(s, "history.clear_session", ""), "/result/cleared", "true")
		}
		hold <- struct{}{}
	}
	p.idle(s, 3)
	if told := strings.Join(p.story(s, since), "|"); !strings.Contains(told, "completed 4|status "+
		"ready|message.appended system 2 messages came too late for this turn and go to the next one.|status "+
		"drafting") {
		t.Error(told)
	}
	check(t, p.on(s, "session.get", ""), "/result/history", "[]", "/result/messages", "[]", "/result/activeSessionId",
		"null", "/result/queue", "[]", "/result/pending", "false")
	check(t, p.call("history.get", `{"last":true}`), "/result/title", "three", "/result/messageCount", "8")
}

// TestInterruptIsAnsweredFirst: the answer to an interrupt comes before the event that the turn was interrupted, even
// if the turn has not begun.
func TestInterruptIsAnsweredFirst(t *testing.T) {
	k, _ := holding()
	p := open(t, front.Options{}, k)
	for i := range 50 {
		s := p.session("")
		since := len(p.all())
		p.send(onSession(fmt.Sprintf(`"s%d"`, i), "session.send", s, `,"text":"begin"`),
			onSession(fmt.Sprint(i), "session.interrupt", s, ""))
		p.idle(s, 0)
		check(t, p.on(s, "session.interrupt", ""), "/result/interrupted", "false")
		told := strings.Join(p.story(s, since), "|")
		must.That(t, strings.Count(told, "answer") == 3 && strings.Count(told[:strings.Index(told, "|interrupted ")],
			"answer") == 2, "%v", told)
	}
}

// TestEnds: the client is told how a worker ended, and a turn that failed does not become part of the history.
func TestEnds(t *testing.T) {
	k := newKit()
	p := open(t, front.Options{}, k)
	for name, c := range map[string]struct {
		play           func(context.Context, agent.WorkerTask) *fleet.Result
		message, event string
	}{
		"partial": {func(_ context.Context, task agent.WorkerTask) *fleet.Result {
			r := done(task, "so far")
			r.Status = fleet.StatusPartial
			return r
		}, "so far", "session.completed"},
		"another worker": {func(_ context.Context, task agent.WorkerTask) *fleet.Result {
			task.Talk.Watch.Round(1, 5)
			task.Talk.Watch.Piece(agent.PieceAnswer, "half of the first")
			task.Started("small")
			task.Output("stdout", "whole")
			return done(task, "whole")
		}, "whole", "session.completed"},
		"blocked": {func(_ context.Context, task agent.WorkerTask) *fleet.Result {
			return fleet.Blocked(task.Task.TaskID, "no tool")
		}, "inference error: no tool", "session.error"},
		"error": {func(_ context.Context, task agent.WorkerTask) *fleet.Result {
			r := fleet.NewResult(task.Task.TaskID, fleet.StatusError)
			r.Error = "it crashed"
			return r
		}, "inference error: it crashed", "session.error"},
		"nothing": {func(context.Context, agent.WorkerTask) *fleet.Result { return nil }, "inference error: the " +
			"worker's plugin gave no result", "session.error"},
		"panic": {
			func(context.Context, agent.WorkerTask) *fleet.Result { panic("ouch") },
			"inference error: the worker's plugin panicked", "session.error",
		},
	} {
		k.play = c.play
		s := p.session("")
		p.on(s, "session.send", `,"text":"go"`)
		p.idle(s, 0)
		p.event(c.event, s, 0)
		state, said := p.on(s, "session.get", ""), "2"
		check(t, state, "/result/messages/1/text", c.message)
		if c.event == "session.error" {
			said = "0"
		}
		got := strings.Count(raw(t, state, "/result/history"), "role")
		assert.Equal(t, fmt.Sprint(got), said, "%s: %s", name, state)
	}
	none := open(t, front.Options{})
	s := none.session("")
	since := len(none.all())
	check(t, none.on(s, "session.send", `,"text":"x"`), "/result/accepted", "true")
	if told := strings.Join(none.story(s, since), "|"); !strings.HasPrefix(told, "message.appended system inference "+
		"error: no worker is configured; these three lines") || !strings.HasSuffix(told, "|error|answer") {
		t.Error(told)
	}
	check(t, none.on(s, "session.get", ""), "/result/pending", "false")
}

// TestContext: a worker gets the earlier messages of the session with their images, up to MaxContext.
func TestContext(t *testing.T) {
	k := newKit()
	var talk *agent.Talk
	k.play = func(_ context.Context, task agent.WorkerTask) *fleet.Result {
		talk = task.Talk
		return done(task, "answer to "+task.Brief)
	}
	p := open(t, front.Options{MaxContext: 120}, k)
	s := p.session(`{"model":"big"}`)
	for i := range 12 {
		p.on(s, "session.send", fmt.Sprintf(`,"text":"text %d","images":[{"data_url":%q}]`, i,
			dataURL(fmt.Sprint("picture ", i))))
		p.idle(s, i)
	}
	last := talk.Earlier[len(talk.Earlier)-2]
	if n := len(talk.Earlier); n < 3 || n > 6 || last.Text != "text 10 [Image 1]" || last.Role != "user" ||
		string(last.Images[0].Data) != "picture 10" || string(talk.Images[0].Data) != "picture 11" ||
		talk.Thinking != "" {
		t.Errorf("%+v", talk)
	}
}

func dataURL(image string) string {
	return "data:image/png;base64," + base64.StdEncoding.EncodeToString([]byte(image))
}

// TestImages: images can be sent in several forms and are shown as what they are. No image is read that the file
// tools would not read.
func TestImages(t *testing.T) {
	dir := t.TempDir()
	outside := filepath.Join(t.TempDir(), "o.png")
	for _, name := range []string{filepath.Join(dir, "a b.png"), filepath.Join(dir, "t.txt"), outside} {
		must.OK(t, os.WriteFile(name, []byte("pixels"), 0o600))
	}
	err := errors.Join(os.Symlink(outside, filepath.Join(dir, "link.png")),
		os.WriteFile(filepath.Join(dir, "large.gif"), make([]byte, 8<<20+1), 0o600),
		os.WriteFile(filepath.Join(dir, "most.gif"), make([]byte, 8<<20), 0o600))
	must.That(t, err == nil, "%v", err)
	k := newKit()
	var sent []agent.Image
	k.play = func(_ context.Context, task agent.WorkerTask) *fleet.Result {
		sent = task.Talk.Images
		return done(task, task.Brief)
	}
	p := open(t, front.Options{Workspace: dir}, k)
	s := p.session("")
	url := dataURL("pixels")
	for i, c := range []struct{ image, path, mime, text string }{
		{`{"path":"a b.png"}`, "a b.png", "image/png", "[Image 1]"},
		{`{"path":" \"a b.png\" ","mime_type":null}`, "a b.png", "image/png", "[Image 1]"},
		{fmt.Sprintf(`{"path":"file://localhost%s/a%%20b.png"}`, dir), "a b.png", "image/png", "[Image 1]"},
		{
			fmt.Sprintf(`{"path":%q},"a b.png",5,{},null`, filepath.Join(dir, "a b.png")), "a b.png", "image/png",
			"[Image 1]",
		},
		{
			fmt.Sprintf(`{"path":"../of the client.gif","dataUrl":%q,"mimeType":"image/gif"}`, url),
			"../of the client.gif", "image/gif", "[Image 1]",
		},
		{fmt.Sprintf(`{"data_url":%q}`, url), "image.png", "image/png", "[Image 1]"},
	} {
		check(t, p.on(s, "session.send", `,"images":[`+c.image+`]`), "/result/accepted", "true")
		p.idle(s, i)
		message := p.event("session.message.appended", `"kind":"user"`, i)
		check(t, message, "/params/payload/message/text", c.text, "/params/payload/message/images/0/path", c.path,
			"/params/payload/message/images/0/mimeType", c.mime,
			"/params/payload/message/images/0/byteSize", "6", "/params/payload/message/images/0/dataUrl~",
			";base64,cGl4ZWxz")
		assert.That(t, len(sent) == 1 && string(sent[0].Data) == "pixels" && sent[0].MIME == c.mime &&
			sent[0].Name == c.path,
			"%s: sent is %v", c.image, sent)
	}
	check(t, p.call("history.get", `{"last":true}`), "/result/title", "image: image.png")
	if n := p.count("images that came as data were not seen"); n != 2 { // by a worker that is a program
		t.Errorf("told %d times", n)
	}
	for i, c := range [][2]string{
		{`{"path":"gone.png"}`, "file not found"},
		{`{"path":"t.txt"}`, "unsupported image type"},
		{`{"path":"../o.png"}`, "not in the workspace"},
		{fmt.Sprintf(`{"path":%q}`, outside), "not in the workspace"},
		{
			`{"path":"~/o.png"}`,
			`"~/o.png" is not in the workspace`,
		},
		{`{"path":"file://host/a b.png"}`, "not in the workspace"},
		{`{"path":"link.png"}`, "cannot be read"},
		{`{"path":"large.gif"}`, "too large"},
		{
			strings.Repeat(`{"path":"most.gif"},`, 2) + `{"path":"a b.png"}`,
			"together",
		},
		{`{"data_url":"data:image/png,x"}`, "should be data:"},
		{`{"data_url":"data:text/plain;base64,AA=="}`, "not taken"},
		{`{"data_url":"data:image/png;base64,!!"}`, "not valid base64"},
		{strings.Repeat(`{"path":"a b.png"},`, 16) + `{"path":"a b.png"}`, "at most 16"},
	} {
		since := len(p.all())
		check(t, p.on(s, "session.send", `,"text":"see","images":[`+c[0]+`]`), "/result/accepted", "true")
		if told := strings.Join(p.story(s, since), "|"); !strings.HasPrefix(told, "message.appended system "+
			"inference error: ") || !strings.Contains(told, c[1]) || !strings.HasSuffix(told, "|error|answer") {
			t.Errorf("%s: %s", c[0], told)
		}
		check(t, p.event("session.error", "", i), "/params/payload/code", "invalid_image")
	}
	p.on(s, "session.send", `,"text":"see [image 2]","images":[{"path":"a b.png"},{"path":"a b.png"}]`)
	p.event("session.message.appended", `"text":"see [image 2] [Image 1]"`, 0)
}

// TestParams: the error for wrong parameters names the parameter, for each method that has any.
func TestParams(t *testing.T) {
	p := open(t, front.Options{MaxText: 100}, newKit())
	s := `"session_id":"` + p.session("") + `"`
	unknown := map[string]string{} // what a method needs besides the session
	for _, method := range []string{
		"session.get", "session.send", "session.interrupt", "session.queue.list",
		"session.queue.clear", "history.clear_session",
	} {
		unknown[method] = `"text":"x"`
	}
	unknown["session.steer"], unknown["command.execute"] = `"text":"x"`, `"raw_command":"/help"`
	for method, more := range unknown {
		for _, id := range []string{`null`, `5`, `" "`, `"x"`} {
			check(t, p.call(method, `{"session_id":`+id+`,`+more+`}`), "/error/code", "-32602", "/error/data/reason",
				"invalid_params", "/error/data/field", "session_id")
		}
		check(t, p.call(method, `{`+more+`}`), "/error/data/field", "session_id", "/error/message~",
			method+": session_id must be a non-empty string")
		check(t, p.call(method, `{"session_id":" x ",`+more+`}`), "/error/message~", `unknown session "x"`)
	}
	for _, c := range []struct{ method, params, field string }{
		{"rpc.handshake", `{"protocol_version":5}`, "protocol_version"},
		{
			"rpc.handshake", `{"strict":"yes"}`,
			"strict",
		},
		{"system.shutdown", `{"reason":5}`, "reason"},
		{"system.shutdown", `{"timeout":-1}`, "timeout"},
		{"session.create", `{"title":5}`, "title"},
		{"session.create", `{"model":"huge"}`, "model"},
		{"session.send", `{` + s + `,"text":5}`, "text"},
		{
			"session.send", `{` + s + `,"text":"x","enqueue":1}`,
			"enqueue",
		},
		{"session.send", `{` + s + `,"text":"` + strings.Repeat("x", 101) + `"}`, "text"},
		{"session.steer", `{` + s + `}`, "text"},
		{"session.steer", `{` + s + `,"text":" "}`, "text"},
		{"command.execute", `{` + s + `,"raw_command":""}`, "raw_command"},
		{
			"command.execute",
			`{` + s + `,"raw_command":"/echo {"}`, "raw_command",
		},
		{"command.execute", `{` + s + `,"raw_command":"/echo {} x"}`, "raw_command"},
		{"command.execute", `{` + s + `,"raw_command":"/echo a=\"x"}`, "raw_command"},
		{"command.execute", `{` + s + `,"raw_command":"/echo a=1 a=2"}`, "raw_command"},
		{"history.list", `{"limit":"1"}`, "limit"},
		{"history.list", `{"cursor":true}`, "cursor"},
		{"history.get", `{"last":"yes"}`, "last"},
		{"history.get", `{"id":5}`, "id"},
		{"history.get", `{"rollout_path":5}`, "rollout_path"},
		{"model.list", `{"provider":5}`, "provider"},
		{"model.list", `{"provider":"openai"}`, "provider"},
		{"model.select", `{"provider":"big","thinking_level":"OFF"}`, "model_id"},
		{"model.select", `{"model_id":"m2","provider":" ","thinking_level":"OFF"}`, "provider"},
		{"model.select", `{"model_id":"m2","provider":"big"}`, "thinking_level"},
		{"model.select", `{"model_id":"m2","provider":"x","thinking_level":"OFF"}`, "provider"},
		{
			"model.select", `{"model_id":"m2","provider":"big","thinking_level":"OFF","compress_immediately":1}`,
			"compress_immediately",
		},
		{"model.select", `{"model_id":"m2","provider":"big","thinking_level":"OFF","compress_immediately":true,"session_id":"x"}`, "session_id"},
		{"debug.set", `{}`, "super_debug"},
		{"debug.set", `{"super_debug":null}`, "super_debug"},
		{"debug.set", `{"super_debug":1}`, "super_debug"},
		{"auth.set.exa_key", `{"api_key":" "}`, "api_key"},
		{"auth.set.openrouter_key", `{}`, "api_key"},
	} {
		check(t, p.call(c.method, c.params), "/error/code", "-32602", "/error/data/field", c.field,
			"/error/data/reason", "invalid_params", "/error/message~", c.field)
	}
	for _, c := range [][3]string{ // errors of the runtime
		{"session.send", `{` + s + `}`, "non-empty text or at least one image"},
		{"session.send", `{` + s + `,"text":" ","images":["x.png"]}`, "non-empty text"},
		{"history.get", `{}`, "requires one of"},
		{"history.get", ``, "requires one of"},
		{"history.get", `{"last":true}`, "no saved chat history yet"},
		{"history.get", `{"id":"abc"}`, "no saved chat matched id"},
		{
			"history.get", `{"rollout_path":"/x","id":"y"}`,
			"failed to load chat",
		},
		{"model.select", `{"model_id":"huge","provider":"big","thinking_level":"OFF"}`, "unknown model for provider"},
		{
			"model.select", `{"model_id":"m2","provider":"big","thinking_level":"OFF","compress_immediately":true}`,
			"session_id is required",
		},
	} {
		check(t, p.call(c[0], c[1]), "/error/code", "-32603", "/error/data/reason", "internal_error", "/error/message~",
			c[2])
	}
	for _, params := range []string{``, `null`, `5`, `"x"`, `[1]`} {
		got := p.call("session.get", params)
		check(t, got, "/error/code", "-32602", "/error/data", `{"reason":"invalid_params"}`, "/error/message~",
			"expected an object")
		for _, optional := range []string{"history.list", "model.list", "rpc.handshake"} {
			got := p.call(optional, params)
			assert.Equal(t, (get(t, got, "/error/code") == "-32602"), (params != "" && params != "null"), "%s %s: %s",
				optional, params, got)
		}
		for _, none := range []string{
			"system.ping", "state.get", "limits.get", "tools.list", "skills.list",
			"auth.status", "onboarding.status",
		} {
			check(t, p.call(none, params), "/error", "")
		}
	}
	for _, method := range []string{"auth.connect.openai", "auth.connect.antigravity"} {
		check(t, p.call(method, `{"mode":"auto"}`), "/error/code", "-32000", "/error/data/reason", "not_supported")
	}
	check(t, p.call("auth.set.exa_key", `{"api_key":"secret"}`), "/error/code", "-32000", "/error/data/reason",
		"not_supported")
	check(t, p.call("auth.set.exa_key", `{"api_key":"Skip"}`), "/result", `{"configured":false,"skipped":true}`)
	p.event("state.changed", "exa_key_skipped", 0)
}

// TestLists: the state, the lists and the selected model are right, and the selection outlives the host.
func TestLists(t *testing.T) {
	opts := front.Options{Version: "v9", Store: state(t, t.TempDir())}
	p := open(t, opts, newKit())
	check(t, p.call("tools.list", ""), "/result/tools/0/name", "echo", "/result/tools/0/input_schema/properties/s/type",
		"string")
	check(t, p.call("skills.list", ""), "/result/skills",
		`[{"description":"Cooks.","description_preview":"Cooks.","name":"cook","source_path":"/skills/cook/SKILL.md"}]`,
		"/result/directories", `["/skills"]`, "/result/errors", "[]")
	check(t, p.call("model.list", ""), "/result/selected_model", "small", "/result/selected_provider", "null",
		"/result/selected_thinking", "OFF", "/result/providers", `["small","big"]`)
	check(t, p.call("model.list", `{"provider":"big"}`), "/result/providers", `["big"]`, "/result/models/0/id", "m2",
		"/result/models/0/provider", "big", "/result/models/0/contextWindowTokens", "8000",
		"/result/models/0/supportedThinkingLevels", `["OFF","MINIMAL","LOW","MEDIUM","HIGH","XHIGH"]`,
		"/result/models/0/defaultThinkingLevel", "LOW", "/result/models/0/label", "big: m2")
	s := p.session("")
	created := p.event("state.changed", "session_created", 0)
	check(t, created, "/params/payload/session_id", s, "/params/payload/snapshot/sessions/ids/0", s,
		"/params/payload/snapshot/auth/enabledProviders", `["small","big"]`,
		"/params/payload/snapshot/skills/count", "1", "/params/payload/snapshot/model/selectedProvider", "null",
		"/params/payload/snapshot/onboarding/completed", "false")
	got := p.call("model.select", `{"model_id":"m2","provider":"big","thinking_level":"MUCH","openrouter_provider":null,"session_id":"`+s+`","compress_immediately":true}`)
	check(t, got, "/result/selected_model", "m2", "/result/selected_provider", "big", "/result/selected_thinking",
		"LOW", "/result/selected_openrouter_provider", "any",
		"/result/compression/requested", "true", "/result/compression/applied", "false", "/result/compression/reason",
		"none", "/result/compression/model_context_window", "8000")
	check(t, p.event("state.changed", "model_selected", 0), "/params/payload/snapshot/model/selectedThinking", "LOW")
	for _, c := range [][2]string{{p.session(`{"model":"small"}`), "did small"}, {s, "did big"}} {
		p.on(c[0], "session.send", `,"text":"go"`)
		p.idle(c[0], 0)
		p.event("session.message.appended", c[1], 0)
	}
	check(t, p.call("onboarding.status", ""), "/result", `{"completed":false}`)
	check(t, p.call("onboarding.complete", ""), "/result", `{"completed":true}`)
	p.event("state.changed", "onboarding_complete", 0)
	check(t, p.call("limits.get", ""), "/result/openai", "null", "/result/antigravity", "null", "/result/sessions/used",
		"2", "/result/workers/0/limit", "2", "/result/requests/used", "1")
	check(t, p.call("auth.status", ""), "/result/enabled_providers", `["small","big"]`, "/result/has_openai_token",
		"false", "/result/has_openrouter_key", "false", "/result/antigravity_profile", "null", "/result/required",
		"false")
	check(t, p.call("debug.set", `{"super_debug":true}`), "/result", `{"super_debug":true}`)
	check(t, p.call("nope", ""), "/error/data/debug/method", "nope")
	check(t, p.call("system.ping", ""), "/result/ok", "true", "/result/time~", "Z")
	p.close()
	p = open(t, opts, newKit())
	check(t, p.call("state.get", ""), "/result/server/version", "v9", "/result/model",
		`{"selectedModel":"m2","selectedOpenRouterProvider":"any","selectedProvider":"big","selectedThinking":"LOW"}`,
		"/result/onboarding/completed", "true", "/result/capabilities", `["skill","tools"]`, "/result/sessions/count",
		"0")
	none := open(t, front.Options{})
	for method, want := range map[string]string{
		"tools.list": `{"tools":[]}`, "skills.list": `{"directories":[],"errors":[],"skills":[]}`,
		"model.list": `{"models":[],"providers":[],"selected_model":"","selected_openrouter_provider":"any","selected_provider":null,"selected_thinking":"OFF"}`,
	} {
		check(t, none.call(method, ""), "/result", want)
	}
}

// TestKey: a key is kept for the endpoint of a worker, in a file that only the user can read, and it is never shown.
func TestKey(t *testing.T) {
	const key = "sk-or-very-secret-0123456789"
	dir := t.TempDir()
	p := open(t, front.Options{StateDir: dir}, newKit())
	s := p.session("")
	check(t, p.call("rpc.handshake", ""), "/result/methods~", `"auth.set.openrouter_key"`)
	check(t, p.call("auth.set.openrouter_key", `{"api_key":"`+key+` x"}`), "/error/data/field", "api_key")
	check(t, p.call("auth.set.openrouter_key", `{"api_key":" `+key+` "}`), "/result",
		`{"configured":true,"model_count":1,"source":"config"}`)
	check(t, p.event("state.changed", "openrouter_key_updated", 0), "/params/payload/snapshot/auth/hasOpenRouterKey",
		"true")
	check(t, p.call("auth.status", ""), "/result/has_openrouter_key", "true")
	file := filepath.Join(dir, "llm-keys.json")
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 ||
		agent.StoredKey(dir, "https://llm.example") != key || agent.StoredKey(dir, "https://other.example") != "" {
		t.Errorf("the file: %v %v", info, err)
	}
	check(t, p.call("model.openrouter.providers", `{"model_id":"m2"}`), "/result",
		`{"model_id":"m2","providers":["One","Two"]}`)
	check(t, p.call("model.openrouter.providers", `{"model_id":"m3"}`), "/error/data/reason", "not_supported",
		"/error/message~", `worker "big" does not tell who serves "m3"`)
	p.on(s, "command.execute", `,"raw_command":"/forgeteverything"`)
	check(t, p.call("auth.status", ""), "/result/has_openrouter_key", "false")
	for _, c := range [][2]string{{`{"https://llm.example":`, "is damaged"}, {
		`{"https://other.example":"k"}`,
		"",
	}} { // a damaged file is not overwritten, and keys of others are kept
		must.OK(t, os.WriteFile(file, []byte(c[0]), 0o600))
		check(t, p.call("auth.set.openrouter_key", `{"api_key":"new"}`), "/error/message~", c[1])
		raw, err := os.ReadFile(file)
		assert.That(t, err == nil && (strings.HasPrefix(string(raw), strings.TrimSuffix(c[0], "}")) || c[1] == ""),
			"%s %v", raw, err)
	}
	assert.That(t, agent.StoredKey(dir, "https://other.example") == "k" && agent.StoredKey(dir,
		"https://llm.example") == "new",
		"keys are lost")
	assert.That(t, p.count(key) <= 0, "the key is shown")
	none := open(t, front.Options{}, newKit())
	got := none.call("rpc.handshake", "")
	assert.That(t, !strings.Contains(got, "openrouter_key"), "%v", got)
	check(t, none.call("auth.set.openrouter_key", `{"api_key":"x"}`), "/error/code", "-32000", "/error/data/reason",
		"not_supported")
}

// TestCommand: commands, and tools as commands, read their arguments and end as documented.
func TestCommand(t *testing.T) {
	k := newKit()
	p := open(t, front.Options{}, k)
	s := p.session("")
	run := func(raw string) string {
		return p.on(s, "command.execute", fmt.Sprintf(`,"raw_command":%q`, raw))
	}
	for _, c := range [][2]string{
		{`/echo`, `{}`},
		{`  /echo {"a": [1]}`, `{"a":[1]}`},
		{
			`/echo s=5 n=5 q="5" b=true t=a'b c'd e= j={"x":"y z"} l=[1,2]`,
			`{"s":"5","n":5,"q":"5","b":true,"t":"ab cd","e":"","j":{"x":"y z"},"l":[1,2]}`,
		},
		{"/echo w=\"two\nlines\tof \\\\ \\\"text\\\"\"", `{"w":"two\nlines\tof \\ \"text\""}`},
		{
			`/echo big=123456789012345678901234567890 u="\u00e9\"" w='"'`,
			`{"big":123456789012345678901234567890,"u":"é\"","w":"\""}`,
		},
	} {
		check(t, run(c[0]), "/result/output/data", c[1], "/result/output/success", "true", "/result/handled", "true")
	}
	check(t, run("/echo w=\"a\\\nb\""), "/error/data/field", "raw_command") // JSON has no such escape
	since := len(p.all())
	p.on(s, "session.send", `,"text":"remember"`)
	p.idle(s, 0)
	first := get(t, p.on(s, "session.get", ""), "/result/activeSessionId")
	for _, c := range [][3]string{
		{"no slash", "/result", `{"handled":false}`},
		{"/help", "/result/output/commands/0/name", "/auth"},
		{"/ecko", "/result/output/error~", `unknown command: /ecko`},
		{"/ecko", "/result/output/error~", `"echo"`},
		{"/say", "/result/output/tool_name", "echo"},
		{"/say", "/result/output/group", "say"},
		{"/fail", "/result/output/error", "it broke"},
		{"/fail", "/result/output/success", "false"},
		{"/panic", "/error/code", "-32603"},
		{"/panic", "/error/data/code", "runtime_error"},
		{"/deny", "/error/code", "-32000"},
		{"/deny", "/error/data/reason", "tool_denied"},
		{"/skills", "/result/output/skills/0/name", "cook"},
		{"/TOOLS", "/result/output/tools/0/name", "echo"},
		{"/model", "/result/output/available/providers", `["small","big"]`},
		{"/limits", "/result/output/openai", "null"},
		{"/auth", "/result/output/auth_status/has_openai_token", "false"},
		{"/onboarding", "/result/output/completed", "false"},
		{"/compression", "/result/output/error~", "not a model"},
		{"/history", "/result/output/sessions/0/id", first},
		{"/clear", "/result/output", `{"cleared":true}`},
	} {
		check(t, run(c[0]), c[1], c[2])
	}
	check(t, p.on(s, "session.get", ""), "/result/history", "[]", "/result/activeSessionId", "null")
	check(t, run("/history nope"), "/error/code", "-32603", "/error/message~", "no saved chat matched id")
	for _, id := range []string{"last", first[:10]} {
		check(t, run("/history "+id), "/result/output/resumed", first)
		check(t, p.on(s, "session.get", ""), "/result/history/0/text", "remember", "/result/messages/0/kind", "user",
			"/result/activeSessionId", first)
		p.event("state.changed", "session_resumed", 0)
	}
	p.call("model.select", `{"model_id":"m2","provider":"big","thinking_level":"LOW"}`)
	check(t, run("/forgeteverything"), "/result/output/cleared", "true")
	check(t, p.call("model.list", ""), "/result/selected_provider", "null")
	told := strings.Join(p.story(s, since), " ")
	assert.That(t, !strings.Contains(told, "tool."), "a command has events of tools: %s", told)
	p.send(onSession("1", "command.execute", s, `,"raw_command":"/block"`))
	<-k.begun
	check(t, p.on(s, "session.interrupt", ""), "/result/commands", "1", "/result/interrupted", "false")
	check(t, p.answer("1"), "/error/data/reason", "cancelled")
	check(t, run("/quit"), "/result/output/shutting_down", "true")
	p.wait()
}
