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

// pipes is a plugin whose immediate requests take their time before they have their effect,
// so that the host reads on on another goroutine meanwhile.
type pipes struct {
	gate chan struct{} // ends the requests with hold

	mu   sync.Mutex
	runs map[string][]int // guarded by mu
}

type pushRequest struct {
	Pipe string `json:"pipe"`
	N    int    `json:"n"`
	Took int    `json:"took"` // µs
	Do   string `json:"do"`   // hold, leave, panic, goexit
}

type pushResponse struct {
	Runs []int `json:"runs"`
}

func newPipes() *pipes { return &pipes{gate: make(chan struct{}), runs: map[string][]int{}} }

// had returns what the thing of that name had. A request without an answer may still hold it.
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

func (p *pipes) look(_ context.Context, req *pushRequest, _ host.Emitter) (*pushResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return &pushResponse{slices.Clone(p.runs[req.Pipe])}, nil
}

func (p *pipes) Routes() []host.Route {
	return []host.Route{
		host.Handle("test/push/req", p.push).Immediate().InOrderOf("pipe"),
		host.Handle("test/end/req", p.push).Immediate().InOrderOf("pipe"),
		host.Handle("test/look/req", p.look).InOrderOf("pipe"),
	}
}

func push(pipe string, n int, more string) string {
	return fmt.Sprintf(`{"pipe":%q,"n":%d%s}`, pipe, n, more)
}

// Immediate requests about one thing have their effect in the order they were sent, also
// those of different types and when the watcher has taken the turn away from a slow one; an
// ordinary request about the thing sees all of them.
func TestImmediateRequestsKeepTheirOrder(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 3))
			all := newPipes()
			p := hosttest.Start(t, host.Options{Plugins: []host.Plugin{all}, MaxParallel: 1 + random.IntN(4)})
			p.Handshake(protocol.CapTest)
			want := map[string][]int{}
			seen := map[string][]int{}
			var lines []string
			for i := range 100 {
				pipe := []string{"a", "b", "c"}[random.IntN(3)]
				typ, id := protocol.Type("test/push/req"), fmt.Sprint("r", i)
				switch random.IntN(8) {
				case 0:
					typ = "test/end/req"
				case 1:
					typ = "test/look/req"
				}
				if typ == "test/look/req" {
					seen[id] = slices.Clone(want[pipe])
				} else {
					want[pipe] = append(want[pipe], i)
				}
				lines = append(lines, hosttest.Request(typ, id, push(pipe, i, fmt.Sprintf(`,"took":%d`, random.IntN(3)*random.IntN(3000)))))
			}
			p.Send(lines...)
			for i := range lines {
				id := fmt.Sprint("r", i)
				var got pushResponse
				p.Answer(id).Decode(t, &got)
				before, looked := seen[id]
				assert.That(t, !looked || len(got.Runs) >= len(before) && slices.Equal(got.Runs[:len(before)], before), "seed %d: %s saw %v, want at least %v", seed, id, got.Runs, before)
			}
			p.Close()
			for pipe, runs := range want {
				assert.Slice(t, all.had(pipe), runs, "seed %d: pipe %s had", seed, pipe)
			}
		})
	}
}

// One that is stuck holds up those about the same thing and no others: not pings, not the
// other things, not ordinary requests. Those behind it can be cancelled, and have no effect
// then.
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

// One that breaks off, or leaves its turn when it has had its effect, or does not stop when
// it is cancelled, lets those behind it go on.
func TestImmediateRequestsGoOnPastOneThat(t *testing.T) {
	for _, do := range []string{"leave", "panic", "goexit", "stubborn"} {
		t.Run(do, func(t *testing.T) {
			all := newPipes()
			p := hosttest.New(t, host.Options{Plugins: []host.Plugin{all}})
			p.Handshake(protocol.CapTest)
			first := p.Go("test/push/req", push("a", 1, fmt.Sprintf(`,"do":%q,"took":5000`, do)))
			behind := p.Go("test/push/req", push("a", 2, ""))
			if do == "stubborn" {
				p.Send(fmt.Sprintf(`{"type":"cancel","id":"c","req_id":%q}`, first))
			}
			p.Answer(behind)
			close(all.gate)
			p.Answer(first)
			assert.Slice(t, all.had("a"), []int{1, 2}, "the thing had")
		})
	}
}

// What waits behind one that is stuck is bounded, and the rest is refused as overloaded; the
// end of the host answers it all, and none of it has an effect any more.
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
		if got := p.Answer(id); got.Code != protocol.CodeOverloaded || !strings.Contains(string(got.Line), "max_queue") {
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

// register is a plugin with one value, which takes its time.
type register struct {
	value   int           // as the requests' order guards it: no lock
	release chan struct{} // ends a wait
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
	return []host.Route{host.Handle("test/set/req", set).Changes(), host.Handle("test/get/req", get).Reads()}
}

func (*register) Close(context.Context) error { return nil }

// Requests that change and read one thing take effect in the order they were sent, however
// long each takes and whether they had to queue.
func TestChangesAndReadsKeepTheirOrder(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			p := hosttest.Start(t, host.Options{Plugins: []host.Plugin{&register{}}, MaxParallel: 1 + random.IntN(6)})
			p.Handshake(protocol.CapTest)
			value, want := 0, map[string]int{}
			var lines []string
			for i := range 60 {
				id, typ := fmt.Sprint("r", i), protocol.Type("test/get/req")
				if random.IntN(3) == 0 {
					value, typ = i, "test/set/req"
				}
				want[id] = value
				lines = append(lines, hosttest.Request(typ, id, fmt.Sprintf(`{"to":%d,"took":%d}`, i, random.IntN(4))))
			}
			p.Send(lines...)
			for id, value := range want {
				var got getResponse
				p.Answer(id).Decode(t, &got)
				assert.Equal(t, got.Value, value, "seed %d: %s was answered", seed, id)
			}
			p.Close()
		})
	}
}

// Reads run side by side: four that take a second each take one second.
func TestReadsRunSideBySide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := hosttest.Start(t, host.Options{Plugins: []host.Plugin{&register{}}, MaxParallel: 4})
		p.Handshake(protocol.CapTest)
		began := time.Now()
		var ids []string
		for range 4 {
			ids = append(ids, p.Go("test/get/req", `{"took":1000}`))
		}
		for _, id := range ids {
			p.Answer(id)
		}
		took := time.Since(began)
		assert.That(t, took <= 1500*time.Millisecond, "they took %v", took)
		p.Close()
	})
}

// One that waits for its turn can be cancelled, and those behind it go on.
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

// A change that does not stop when it is cancelled is left behind, not waited for.
func TestTheLaneGoesOnPastOneThatDoesNotStop(t *testing.T) {
	let := make(chan struct{})
	stubborn := host.Handle("test/stubborn/req", func(ctx context.Context, _ *setRequest, _ host.Emitter) (*getResponse, error) {
		host.HandOff(ctx)
		<-let
		return &getResponse{}, nil
	}).Changes()
	p := hosttest.New(t, host.Options{Plugins: []host.Plugin{&register{}, routes{"stubborn", protocol.CapTest, []host.Route{stubborn}}}, MaxParallel: 4})
	defer close(let)
	p.Handshake(protocol.CapTest)
	id := p.Go("test/stubborn/req", `{}`)
	next := p.Go("test/get/req", `{}`)
	p.Send(fmt.Sprintf(`{"type":"cancel","id":"c","req_id":%q}`, id))
	got := p.Answer(next)
	assert.That(t, got.Code == "" && strings.Contains(string(got.Line), `"value":0`), "the next one was answered %s", got.Line)
}
