package jsonrpc_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"a2e/host"
	front "a2e/host/dialect/jsonrpc"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// onSession returns the line of a request about a session.
func onSession(id, method, session, more string) string {
	return request(id, method, fmt.Sprintf(`{"session_id":%q%s}`, session, more))
}

// TestInterruptAtOnce: an interrupt stops all commands before it in its session, even one that waits for its place.
// It does not stop commands after it, or commands of other sessions.
func TestInterruptAtOnce(t *testing.T) {
	k := newKit()
	p := bounded(t, 1, host.Limits{}, k)
	s, other := p.session(""), p.session("")
	p.send(
		onSession("1", "command.execute", s, `,"raw_command":"/block"`), onSession("2", "command.execute", s,
			`,"raw_command":"/block"`),
		onSession("3", "command.execute", other, `,"raw_command":"/echo"`), onSession("4", "session.interrupt", s, ""),
		onSession("5", "command.execute", s, `,"raw_command":"/echo"`))
	check(t, p.answer("4"), "/result/commands", "2", "/result/interrupted", "false")
	for _, id := range []string{"1", "2"} {
		check(t, p.answer(id), "/error/data/reason", "cancelled", "/error/code", "-32000")
	}
	for _, id := range []string{"3", "5"} {
		check(t, p.answer(id), "/result/output/success", "true")
	}
}

// TestManyWait: thousands of commands wait without a goroutine each, and an interrupt ends them all with one answer
// each.
func TestManyWait(t *testing.T) {
	k := newKit()
	p := bounded(t, 1, host.Limits{}, k)
	s := p.session("")
	const n = 2000
	lines := make([]string, n)
	for i := range lines {
		lines[i] = onSession(fmt.Sprint(i), "command.execute", s, `,"raw_command":"/block"`)
	}
	p.send(lines...)
	got := p.call("limits.get", "")
	if get(t, got, "/result/requests/used") != fmt.Sprint(n+1) || runtime.NumGoroutine() > 500 {
		t.Errorf("%d goroutines; %s", runtime.NumGoroutine(), got)
	}
	check(t, p.call("session.interrupt", `{"session_id":"`+s+`"}`), "/result/commands", fmt.Sprint(n))
	p.answer("0")
	answers := make(map[string]int)
	for _, l := range p.all() {
		if strings.Contains(l, `"reason":"cancelled"`) {
			answers[raw(t, l, "/id")]++
		}
	}
	for i := range n {
		must.Equal(t, answers[fmt.Sprint(i)], 1, "command %d has … answers", i)
	}
}

// TestCommandsDoNotHoldUpOthers: lists, and texts for workers, are handled while commands have all places.
func TestCommandsDoNotHoldUpOthers(t *testing.T) {
	k := newKit()
	p := bounded(t, 1, host.Limits{LineBytes: 12345}, k)
	s := p.session("")
	p.send(onSession("1", "command.execute", s, `,"raw_command":"/block"`))
	<-k.begun
	for _, method := range []string{"state.get", "tools.list", "skills.list"} {
		check(t, p.call(method, ""), "/error", "")
	}
	check(t, p.on(s, "session.send", `,"text":"x"`), "/result/accepted", "true")
	p.idle(s, 0)
	got := p.call("limits.get", "")
	for pointer, want := range map[string]string{
		"commands/used": "1", "commands/limit": "1", "line_bytes": "12345", "history/used": "1",
		"history/limit": "10000",
	} {
		assert.Equal(t, get(t, got, "/result/"+pointer), want, "%s", pointer)
	}
	p.call("session.interrupt", `{"session_id":"`+s+`"}`)
	p.answer("1")
}

// TestUseEndsWithTheAnswer: a request is no longer counted as open once its answer was written.
func TestUseEndsWithTheAnswer(t *testing.T) {
	p := open(t, front.Options{}, newKit())
	p.linger = time.Millisecond // long enough for the next request to arrive
	for i := range 10 {
		p.send(request(fmt.Sprint(i), "tools.list", ""))
		p.answer(fmt.Sprint(i))
		p.send(request(fmt.Sprintf(`"l%d"`, i), "limits.get", ""))
		got := p.answer(fmt.Sprintf(`"l%d"`, i))
		must.Equal(t, get(t, got, "/result/requests/used"), "1", "after %d: %s", i, got)
	}
}

// TestCancelRequest: $/cancelRequest ends exactly the request that it names, whether that runs or waits. The
// request's one answer says so.
func TestCancelRequest(t *testing.T) {
	k := newKit()
	p := bounded(t, 1, host.Limits{}, k)
	s := p.session("")
	cancel := func(id string) string { return request("", "$/cancelRequest", `{"id":`+id+`}`) }
	block := func(id string) string { return onSession(id, "command.execute", s, `,"raw_command":"/block"`) }
	for i, id := range []string{"7", `"7"`, "-1.50e3", `"caf\u00e9"`, "null", "123456789012345678901234567890"} {
		p.send(block(id))
		<-k.begun
		waits := fmt.Sprintf(`"waits %d"`, i)
		p.send(block(waits), cancel(`"of nobody"`), cancel(waits), cancel(waits))
		p.answer(waits)
		p.send(request("", "$/cancelRequest", ""), cancel("{}"), request(`"mine"`, "$/cancelRequest", `{"id":`+id+`}`))
		assert.Equal(t, p.count(`"id":`+id+`,`), 0, "%s was stopped by what does not mean it", id)
		p.send(cancel(strings.Replace(id, `\u00e9`, "é", 1)))
		for _, id := range []string{id, waits} {
			check(t, p.answer(id), "/error/code", "-32000", "/error/data/reason", "cancelled")
		}
		p.send(cancel(id))
	}
	hosttest.Eventually(t, "the last notification is done with",
		func() bool { return get(t, p.call("limits.get", ""), "/result/requests/used") == "1" })
	assert.Equal(t, p.count(`"data":{"reason":"cancelled"`), 12, "… answers say cancelled")
}

// TestCancelFlood: only as many commands wait as the limits allow, a cancelled one makes room at once, and a batch of
// any size gets one error.
func TestCancelFlood(t *testing.T) {
	k := newKit()
	p := bounded(t, 1, host.Limits{Queue: 100}, k)
	s := p.session("")
	block := func(id string) string { return onSession(id, "command.execute", s, `,"raw_command":"/block"`) }
	p.send(block(`"first"`))
	<-k.begun
	const n = 300
	for i := range n {
		p.send(block(fmt.Sprint(i)), "[{}]", request("", "$/cancelRequest", fmt.Sprintf(`{"id":%d}`, i)))
		check(t, p.answer(fmt.Sprint(i)), "/error/data/reason", "cancelled")
	}
	for i := range n {
		p.send(block(fmt.Sprintf(`"w%d"`, i)))
	}
	check(t, p.answer(`"w100"`), "/error/data/reason", "overloaded", "/error/data/retryable", "true")
	check(t, p.call("session.interrupt", `{"session_id":"`+s+`"}`), "/result/commands", "101")
	p.answer(`"first"`)
	check(t, p.call("limits.get", ""), "/result/requests/used", "1", "/result/requests/limit", "100")
	assert.That(t, p.count(`"reason":"cancelled"`) == n+101 && p.count(`"reason":"overloaded"`) == n-100 &&
		p.count("batch_not_supported") == n, "%d cancelled, %d overloaded, %d batches", p.count(`"reason":"cancelled"`),
		p.count(`"reason":"overloaded"`), p.count("batch_not_supported"))
}

// TestInterruptThatWaits: an interrupt that waits for the store stops the commands before it and none after it.
func TestInterruptThatWaits(t *testing.T) {
	dir, k := t.TempDir(), newKit()
	p := open(t, front.Options{StoreWait: time.Hour, Store: state(t, dir)}, k)
	s := p.session("")
	p.send(onSession("1", "command.execute", s, `,"raw_command":"/block"`))
	<-k.begun
	release := occupy(t, state(t, dir))
	defer release()
	p.send(request("2", "session.create", ""), onSession("3", "session.interrupt", s, ""),
		onSession("4", "command.execute", s, `,"raw_command":"/echo"`))
	p.call("system.ping", "")
	release()
	check(t, p.answer("3"), "/result/commands", "1")
	check(t, p.answer("1"), "/error/data/reason", "cancelled")
	check(t, p.answer("4"), "/result/output/success", "true")
}

// library is a kit with the tools "write" and others, which use the file that their argument names. Each tells what
// it does, and "write" waits.
type library struct {
	*kit
	did  chan string
	free chan struct{}
}

func (l *library) Routes() []host.Route {
	call := func(_ context.Context, req *protocol.ToolCallRequest, _ host.Emitter) (*protocol.ToolCallResponse, error) {
		l.did <- req.ToolName + " " + req.Arguments.Text("path")
		if req.ToolName == "write" {
			<-l.free
		}
		return &protocol.ToolCallResponse{Data: protocol.ToolResult{Success: true, ToolName: req.ToolName}}, nil
	}
	claims := func(call protocol.Object) []protocol.Claim {
		access := protocol.Shared
		if call.Text("tool_name") == "write" {
			access = protocol.Exclusive
		}
		args, _ := call.Child("arguments")
		return []protocol.Claim{host.FileClaim(args.Text("path"), access)}
	}
	return []host.Route{host.Handle(protocol.TypeToolCallReq, call).Claims(claims)}
}

// TestCommandsKeepOrder: a command that runs a tool waits for earlier calls that use the same file, also for calls of
// other protocols, and later calls wait for the command. Calls that use other files do not wait.
func TestCommandsKeepOrder(t *testing.T) {
	l := &library{newKit(), make(chan string, 10), make(chan struct{})}
	p := open(t, front.Options{}, l)
	s := p.session("")
	p.send(`{"a2e":"1.0","type":"handshake/req","id":"h","agent_caps":["tools"]}`)
	p.find("answer to the handshake", 0, func(line string) bool { return strings.Contains(line, `"req_id":"h"`) })
	command := func(id, raw string) string {
		return onSession(id, "command.execute", s, fmt.Sprintf(`,"raw_command":%q`, raw))
	}
	for i, first := range []string{
		command(`"w"`, "/write path=a"), command(`"w"`, `/write {"path":"a"}`),
		`{"a2e":"1.0","type":"tool/call/req","id":"w","tool_name":"write","arguments":{"path":"a"}}`,
	} {
		p.send(first)
		must.Equal(t, <-l.did, "write a")
		id := fmt.Sprint(i)
		p.send(command(id, "/look path=a"), command(`"other"`, "/look path=b"),
			`{"a2e":"1.0","type":"tool/call/req","id":"a2e`+id+`","tool_name":"look","arguments":{"path":"a"}}`)
		must.Equal(t, <-l.did, "look b")
		p.call("system.ping", "")
		assert.That(t, len(l.did) == 0, "a read overtook the write before it")
		l.free <- struct{}{}
		check(t, p.answer(id), "/result/output/success", "true")
		p.find("answer to A2E", 0, func(line string) bool { return strings.Contains(line, `"req_id":"a2e`+id+`"`) })
		for range 2 {
			must.Equal(t, <-l.did, "look a")
		}
	}
}
