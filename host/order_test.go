package host_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/protocol"
)

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
