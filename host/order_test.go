package host_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/protocol"
)

// ledger is a plugin whose requests name their claims. It notes when each of them ran.
type ledger struct {
	began time.Time
	mu    sync.Mutex
	runs  map[int]span // by the number of the request; guarded by mu
}

// span is the time in which a request ran, measured from the start of the ledger.
type span struct{ from, to time.Duration }

type ledgerRequest struct {
	N      int            `json:"n"`
	Took   int            `json:"took"` // ms
	Claims map[string]int `json:"claims"`
	Names  []string       `json:"names"`
}

func (*ledger) Info() host.PluginInfo {
	return host.PluginInfo{Name: "ledger", Capability: protocol.CapTest}
}

func (*ledger) Close(context.Context) error { return nil }

func (l *ledger) run(ctx context.Context, req *ledgerRequest, _ host.Emitter) (*struct{}, error) {
	host.HandOff(ctx)
	from := time.Since(l.began)
	time.Sleep(time.Duration(req.Took) * time.Millisecond)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.runs[req.N] = span{from, time.Since(l.began)}
	return &struct{}{}, nil
}

func (l *ledger) Routes() []host.Route {
	claims := func(obj protocol.Object) (all []protocol.Claim) {
		said, _ := obj.Child("claims")
		for key, access := range said.All() {
			n, _ := access.Int()
			all = append(all, protocol.Claim{Key: string(key), Access: protocol.Access(n)})
		}
		return all
	}
	names := protocol.Claim{Key: "k/", Field: "names", Access: protocol.Exclusive}
	return []host.Route{
		host.Handle("test/claims/req", l.run).Claims(claims),
		host.Handle("test/ahead/req", l.run).Claims(claims).NoSlot(),
		host.Handle("test/names/req", l.run).InOrder(names),
	}
}

// asked is one request of the model: its claims, how long it takes, and whether it was cancelled.
type asked struct {
	claims    map[string]protocol.Access
	took      time.Duration
	cancelled bool
}

func (a *asked) waitsFor(earlier *asked) bool {
	for key, access := range a.claims {
		for other, held := range earlier.claims {
			overlap := strings.HasPrefix(key, other) || strings.HasPrefix(other, key)
			if overlap && (held == protocol.Exclusive || access == protocol.Exclusive && held == protocol.Shared) {
				return true
			}
		}
	}
	return false
}

// draw returns a request of the model, and its line.
func draw(random *rand.Rand, n int) (a *asked, line string) {
	keys := []string{"k/", "k/a/", "k/a/b/", "k/ab/", "k/c/", "m/", "m/x"}
	a = &asked{claims: map[string]protocol.Access{}, took: time.Duration(random.IntN(4)) * time.Millisecond}
	typ := []protocol.Type{"test/claims/req", "test/claims/req", "test/ahead/req", "test/names/req"}[random.IntN(4)]
	var fields []string
	switch {
	case typ == "test/names/req" && random.IntN(4) == 0: // without names it claims all keys
		a.claims["k/"] = protocol.Exclusive
	case typ == "test/names/req":
		a.claims["k/c/"], a.claims["k/a/"] = protocol.Exclusive, protocol.Exclusive
		fields = append(fields, `"names":["\u0063","a"]`)
	default:
		for range random.IntN(3) {
			if typ == "test/ahead/req" {
				a.claims[[]string{"q/", "q/a/", "q/b/"}[random.IntN(3)]] = protocol.Exclusive
			} else {
				a.claims[keys[random.IntN(len(keys))]] = protocol.Access(1 + random.IntN(3))
			}
		}
		if typ != "test/ahead/req" && random.IntN(4) == 0 {
			a.claims["q/a/"] = protocol.Follows
		}
		var said []string
		for key, access := range a.claims {
			said = append(said, fmt.Sprintf("%q:%d", key, access))
		}
		fields = append(fields, `"claims":{`+strings.Join(said, ",")+`}`)
	}
	fields = append(fields, fmt.Sprintf(`"n":%d,"took":%d`, n, a.took.Milliseconds()))
	return a, hosttest.Request(typ, fmt.Sprint("r", n), "{"+strings.Join(fields, ",")+"}")
}

// TestOrder: requests whose keys overlap take effect in the order in which they were sent. If there is a slot for
// each, a request begins exactly when the last request that it waits for ends. A request that was cancelled while it
// waited never runs.
func TestOrder(t *testing.T) {
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			l := &ledger{began: time.Now(), runs: map[int]span{}}
			slots := []int{1, 2, 5, 1000}[random.IntN(4)]
			p := hosttest.Start(t, host.Options{Plugins: []host.Plugin{l}, MaxParallel: slots})
			p.Handshake(protocol.CapTest)
			var all []*asked
			var lines []string
			for n := range 80 {
				a, line := draw(random, n)
				all, lines = append(all, a), append(lines, line)
				if random.IntN(10) == 0 {
					lines = append(lines, fmt.Sprintf(`{"type":"cancel","id":"c%d","req_id":"r%d"}`, n, n))
					a.cancelled = true
				}
			}
			p.Send(lines...)
			for n, a := range all {
				got := p.Answer(fmt.Sprint("r", n))
				assert.That(t, got.Code == "" || a.cancelled && got.Code == protocol.CodeCancelled,
					"seed %d: %d was answered %s", seed, n, got.Line)
			}
			p.Close()
			checkOrder(t, all, l.runs, slots >= len(all))
		})
	}
}

// checkOrder compares the times at which requests ran with the rule. prompt means that each request had a slot, so it
// ran, or gave up its turn, as soon as it could.
func checkOrder(t *testing.T, all []*asked, runs map[int]span, prompt bool) {
	t.Helper()
	first := runs[0].from
	for _, r := range runs {
		first = min(first, r.from)
	}
	over := make([]time.Duration, len(all))
	for n, a := range all {
		due, ran := first, first
		for m, earlier := range all[:n] {
			if a.waitsFor(earlier) {
				due = max(due, over[m])
			}
		}
		over[n] = due
		if r, did := runs[n]; did {
			ran, over[n] = r.from, r.to
			assert.That(t, ran >= due && (!prompt || ran == due), "%d %v ran from %v, should be %v", n, a.claims, ran,
				due)
		} else if !prompt {
			over[n] = first
		}
	}
}

// TestFileClaim: a path in the workspace has one key, however it is spelled. A path that leads out of the workspace
// claims the whole workspace.
func TestFileClaim(t *testing.T) {
	for _, name := range []string{"a/b", "./a/b", "a//b/", "c/../a/b", `a\b`} {
		assert.Equal(t, host.FileClaim(name, protocol.Shared), protocol.Claim{
			Key:    "workspace/a/b/",
			Access: protocol.Shared,
		}, "%q", name)
	}
	for _, name := range []string{"", ".", "..", "../x", "/etc/passwd", `..\x`, `a\..\..`} {
		assert.Equal(t, host.FileClaim(name, protocol.Exclusive).Key, "workspace/", "%q", name)
	}
}

// pipes is a plugin whose immediate requests take some time before they have their effect, so that the host continues
// to read on another goroutine.
type pipes struct {
	gate chan struct{} // closing it ends the requests that hold their turn

	mu   sync.Mutex
	runs map[string][]int // numbers of the requests by pipe; guarded by mu
}

type pushRequest struct {
	Pipe string `json:"pipe"`
	N    int    `json:"n"`
	Took int    `json:"took"` // µs
	Do   string `json:"do"`   // hold, leave, stubborn, panic or goexit
}

type pushResponse struct {
	Runs []int `json:"runs"`
}

func newPipes() *pipes { return &pipes{gate: make(chan struct{}), runs: map[string][]int{}} }

// had returns the numbers that the pipe has got, in order. A request without an answer may still hold its turn.
func (p *pipes) had(pipe string) []int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.runs[pipe])
}

func (*pipes) Info() host.PluginInfo {
	return host.PluginInfo{Name: "pipes", Capability: protocol.CapTest}
}

func (*pipes) Close(context.Context) error { return nil }

func (p *pipes) push(ctx context.Context, req *pushRequest, _ host.Emitter) (*pushResponse, error) {
	time.Sleep(time.Duration(req.Took) * time.Microsecond)
	p.mu.Lock()
	p.runs[req.Pipe] = append(p.runs[req.Pipe], req.N)
	p.mu.Unlock()
	switch req.Do {
	case "leave":
		host.ReleaseSlot(ctx)
		fallthrough
	case "hold":
		select {
		case <-p.gate:
		case <-ctx.Done():
		}
	case "stubborn":
		<-p.gate
	case "panic":
		panic("push")
	case "goexit":
		runtime.Goexit()
	}
	return &pushResponse{}, nil
}

func (p *pipes) Routes() []host.Route {
	return []host.Route{
		host.Handle("test/push/req", p.push).NoSlot().InOrder(protocol.Claim{
			Key: "pipe/", Field: "pipe",
			Access: protocol.Exclusive,
		}),
	}
}

func push(pipe string, n int, more string) string {
	return fmt.Sprintf(`{"pipe":%q,"n":%d%s}`, pipe, n, more)
}

// TestAStuckImmediateRequestHoldsUpItsOwnThingAlone: an immediate request that is stuck delays only later requests
// for the same pipe: not pings, not requests for other pipes, not ordinary requests. Those that wait behind it can be
// cancelled, and then have no effect.
func TestAStuckImmediateRequestHoldsUpItsOwnThingAlone(t *testing.T) {
	all := newPipes()
	p := hosttest.New(t, host.Options{Plugins: []host.Plugin{all, newLab()}, MaxParallel: 1})
	p.Handshake(protocol.CapTest, protocol.CapTools)
	stuck := p.Go("test/push/req", push("a", 1, `,"do":"hold"`))
	second, third := p.Go("test/push/req", push("a", 2, "")), p.Go("test/push/req", push("a", 3, ""))
	p.Answer(p.Go("test/push/req", push("b", 4, "")))
	p.Answer(p.Go(protocol.TypePing, `{}`))
	p.Answer(p.Go(protocol.TypeToolCallReq, tool("echo", `{}`)))
	p.Send(fmt.Sprintf(`{"type":"cancel","id":"c","req_id":%q}`, second))
	p.Answer(second).Has(t, "/code", string(protocol.CodeCancelled))
	close(all.gate)
	p.Answer(stuck)
	p.Answer(third)
	assert.Slice(t, all.had("a"), []int{1, 3}, "the thing had")
}

// TestImmediateRequestsGoOnPastOneThat: the requests behind an immediate request continue if it breaks off, if it
// releases its slot after its effect, or if it does not stop when it is cancelled.
func TestImmediateRequestsGoOnPastOneThat(t *testing.T) {
	for _, do := range []string{"leave", "panic", "goexit", "stubborn"} {
		t.Run(do, func(t *testing.T) {
			all := newPipes()
			p := hosttest.New(t, host.Options{Plugins: []host.Plugin{all}})
			p.Handshake(protocol.CapTest)
			first := p.Go("test/push/req", push("a", 1, fmt.Sprintf(`,"do":%q,"took":5000`, do)))
			behind := p.Go("test/push/req", push("a", 2, ""))
			if do == "stubborn" {
				hosttest.Eventually(t, "the effect of the first", func() bool { return len(all.had("a")) == 1 })
				p.Send(fmt.Sprintf(`{"type":"cancel","id":"c","req_id":%q}`, first))
			}
			p.Answer(behind)
			close(all.gate)
			p.Answer(first)
			assert.Slice(t, all.had("a"), []int{1, 2}, "the thing had")
		})
	}
}

// TestImmediateRequestsThatWaitAreBounded: only a limited number of requests waits behind one that is stuck; the host
// refuses the others as overloaded. When the host ends it answers all of them, and none has an effect any more.
func TestImmediateRequestsThatWaitAreBounded(t *testing.T) {
	all := newPipes()
	p := hosttest.New(t, host.Options{Plugins: []host.Plugin{all}, Limits: host.Limits{Queue: 50}})
	p.Handshake(protocol.CapTest)
	stuck := p.Go("test/push/req", push("a", 0, `,"do":"hold"`))
	var ids []string
	for i := range 60 {
		ids = append(ids, p.Go("test/push/req", push("a", i+1, "")))
	}
	for _, id := range ids[50:] {
		if got := p.Answer(id); got.Code != protocol.CodeOverloaded || !strings.Contains(string(got.Line),
			"max_queue") {
			t.Errorf("%s was answered %s, want overloaded", id, got.Line)
		}
	}
	p.Send(`{"type":"shutdown","id":"s","timeout":0}`)
	for _, id := range append(ids[:50], stuck) {
		got := p.Answer(id)
		assert.Equal(t, got.Code, protocol.CodeTimeout, "%s was answered %s, want timeout", id, got.Line)
	}
	assert.OK(t, p.WaitEnd())
	assert.Slice(t, all.had("a"), []int{0}, "the thing had")
}

// register is a plugin with one value, whose requests can wait and take time.
type register struct {
	value   int           // without a lock: the order of the requests must guard it
	release chan struct{} // closing it ends a wait
}

func (*register) Info() host.PluginInfo {
	return host.PluginInfo{Name: "register", Capability: protocol.CapTest}
}

type setRequest struct {
	To   int  `json:"to"`
	Wait bool `json:"wait"`
	Took int  `json:"took"` // ms
}

type getResponse struct {
	Value int `json:"value"`
}

func (r *register) Routes() []host.Route {
	set := func(ctx context.Context, req *setRequest, _ host.Emitter) (*getResponse, error) {
		host.HandOff(ctx)
		if req.Wait {
			select {
			case <-r.release:
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
		time.Sleep(time.Duration(req.Took) * time.Millisecond)
		r.value = req.To
		return &getResponse{r.value}, nil
	}
	get := func(ctx context.Context, req *setRequest, _ host.Emitter) (*getResponse, error) {
		host.HandOff(ctx)
		time.Sleep(time.Duration(req.Took) * time.Millisecond)
		return &getResponse{r.value}, nil
	}
	return []host.Route{
		host.Handle("test/set/req", set).InOrder(protocol.Claim{Key: "value/", Access: protocol.Exclusive}),
		host.Handle("test/get/req", get).InOrder(protocol.Claim{Key: "value/", Access: protocol.Shared}),
	}
}

func (*register) Close(context.Context) error { return nil }

// TestCancelOfOneThatWaitsForItsTurn: a request that waits for its turn can be cancelled, and those behind it
// continue.
func TestCancelOfOneThatWaitsForItsTurn(t *testing.T) {
	r := &register{release: make(chan struct{})}
	p := hosttest.New(t, host.Options{Plugins: []host.Plugin{r}, MaxParallel: 4})
	p.Handshake(protocol.CapTest)
	slow := p.Go("test/set/req", `{"to":1,"wait":true}`)
	behind, last := p.Go("test/set/req", `{"to":2}`), p.Go("test/get/req", `{}`)
	p.Send(fmt.Sprintf(`{"type":"cancel","id":"c","req_id":%q}`, behind))
	p.Answer(behind).Has(t, "/code", string(protocol.CodeCancelled))
	close(r.release)
	p.Answer(slow)
	var got getResponse
	p.Answer(last).Decode(t, &got)
	assert.Equal(t, got.Value, 1, "the last one read")
}

// TestTheLaneGoesOnPastOneThatDoesNotStop: the requests behind a cancelled change that does not stop continue without
// it.
func TestTheLaneGoesOnPastOneThatDoesNotStop(t *testing.T) {
	let := make(chan struct{})
	stubborn := host.Handle("test/stubborn/req", func(ctx context.Context, _ *setRequest, _ host.Emitter) (*getResponse,
		error,
	) {
		host.HandOff(ctx)
		<-let
		return &getResponse{}, nil
	}).InOrder(protocol.Claim{Key: "value/", Access: protocol.Exclusive})
	p := hosttest.New(t, host.Options{Plugins: []host.Plugin{&register{}, routes{
		"stubborn", protocol.CapTest,
		[]host.Route{stubborn},
	}}, MaxParallel: 4})
	defer close(let)
	p.Handshake(protocol.CapTest)
	id := p.Go("test/stubborn/req", `{}`)
	next := p.Go("test/get/req", `{}`)
	p.Send(fmt.Sprintf(`{"type":"cancel","id":"c","req_id":%q}`, id))
	got := p.Answer(next)
	assert.That(t, got.Code == "" && strings.Contains(string(got.Line), `"value":0`), "the next one was answered %s",
		got.Line)
}

// opening is a plugin of two capabilities that delays each handshake until gate has a value.
type opening struct{ gate chan struct{} }

func (o *opening) Info() host.PluginInfo {
	return host.PluginInfo{
		Name: "opening", Capability: protocol.CapTools,
		Also: []protocol.Capability{protocol.CapProc},
	}
}

func (o *opening) Close(context.Context) error { return nil }

func (o *opening) Ready(ctx context.Context) {
	select {
	case <-o.gate:
	case <-ctx.Done():
	}
}

func (o *opening) Routes() []host.Route {
	return []host.Route{host.Handle(protocol.TypeToolCallReq, func(ctx context.Context, _ *protocol.ToolCallRequest,
		_ host.Emitter,
	) (*protocol.ToolCallResponse, error) {
		return &protocol.ToolCallResponse{Data: protocol.ToolResult{Summary: protocol.AppendString(nil,
			host.SessionFrom(ctx).AgentID)}}, nil
	})}
}

// TestHandshakesInARow: a request belongs to the session of the last handshake before it, also if many handshakes and
// requests are sent at once.
func TestHandshakesInARow(t *testing.T) {
	o := &opening{make(chan struct{}, 3)}
	p := hosttest.New(t, host.Options{Plugins: []host.Plugin{o}, MaxParallel: 8})
	hello := func(id, agent, caps string) string {
		return hosttest.Request(protocol.TypeHandshakeReq, id, fmt.Sprintf(`{"agent_id":%q,"agent_caps":[%q]}`, agent,
			caps))
	}
	call := func(id string) string { return hosttest.Request(protocol.TypeToolCallReq, id, tool("x", `{}`)) }
	p.Send(hello("h1", "first", "tools"), call("c1"), hello("h2", "second", "proc"), call("c2"))
	o.gate <- struct{}{}
	p.Answer("c1").Has(t, "/data/summary", "first")
	p.Send(call("late"), hello("h3", "third", "tools"), call("c3")) // the second handshake has no answer yet
	for range 2 {
		o.gate <- struct{}{}
	}
	wantCode(t, p.Answer("c2"), protocol.CodeCapabilityMissing)
	wantCode(t, p.Answer("late"), protocol.CodeCapabilityMissing)
	p.Answer("c3").Has(t, "/data/summary", "third")
}
