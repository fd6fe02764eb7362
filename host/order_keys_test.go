package host_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/protocol"
)

// journal is a plugin that notes which requests ran, for each name.
type journal struct {
	mu   sync.Mutex
	runs map[string][]int // guarded by mu; "" is a look at all of them
	busy map[string]bool  // guarded by mu
	now  int              // run now; guarded by mu
	most int              // ran at once; guarded by mu
}

type noteRequest struct {
	Name  string   `json:"name"`
	Names []string `json:"names"`
	N     int      `json:"n"`
	Took  int      `json:"took"` // ms
}

type noteResponse struct {
	Clash bool `json:"clash"` // another one of the same name ran beside it
}

func (*journal) Info() host.PluginInfo {
	return host.PluginInfo{Name: "journal", Capability: protocol.CapTest}
}

func (*journal) Close(context.Context) error { return nil }

func (j *journal) note(ctx context.Context, req *noteRequest, _ host.Emitter) (*noteResponse, error) {
	host.HandOff(ctx)
	names := req.Names
	if req.Name != "" {
		names = []string{req.Name}
	}
	if len(names) == 0 {
		names = []string{"a", "b", "c", "\u00e4"}
	}
	resp := &noteResponse{}
	j.mu.Lock()
	for _, name := range names {
		resp.Clash = resp.Clash || j.busy[name]
		j.busy[name] = true
		j.runs[name] = append(j.runs[name], req.N)
	}
	j.now++
	j.most = max(j.most, j.now)
	j.mu.Unlock()
	time.Sleep(time.Duration(req.Took) * time.Millisecond)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.now--
	for _, name := range names {
		j.busy[name] = false
	}
	return resp, nil
}

func (j *journal) Routes() []host.Route {
	return []host.Route{
		host.Handle("test/note/req", j.note).InOrderOf("name"),
		host.Handle("test/notes/req", j.note).InOrderOf("names"),
	}
}

// Requests that name the same thing take effect in the order they were sent and never side
// by side, whether they name one or several, in whatever spelling; others run beside them.
func TestInOrderOf(t *testing.T) {
	most := 0
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 2))
			j := &journal{runs: map[string][]int{}, busy: map[string]bool{}}
			p := hosttest.Start(t, host.Options{Plugins: []host.Plugin{j}, MaxParallel: 1 + random.IntN(6)})
			p.Handshake(protocol.CapTest)
			all := []string{`"a"`, `"b"`, `"c"`, `"\u00e4"`, `"ä"`}
			want := map[string][]int{}
			var lines []string
			for i := range 80 {
				typ, fields := protocol.Type("test/note/req"), ""
				var names []string
				switch pick := random.IntN(10); {
				case pick == 0: // no name: all of them
					names = []string{"a", "b", "c", "ä"}
				case pick < 3:
					typ, names = "test/notes/req", []string{"c", "a"}
					fields = `"names":["c","\u0061"],`
				default:
					quoted := all[random.IntN(len(all))]
					one, _ := protocol.Value(quoted).Str()
					names, fields = []string{one}, `"name":`+quoted+`,`
				}
				for _, name := range names {
					want[name] = append(want[name], i)
				}
				lines = append(lines, hosttest.Request(typ, fmt.Sprint("r", i), fmt.Sprintf(`{%s"n":%d,"took":%d}`, fields, i, random.IntN(4))))
			}
			p.Send(lines...)
			for i := range lines {
				var got noteResponse
				if p.Answer(fmt.Sprint("r", i)).Decode(t, &got); got.Clash {
					t.Errorf("seed %d: request %d ran beside one of the same name", seed, i)
				}
			}
			p.Close()
			for name, runs := range want {
				assert.Slice(t, j.runs[name], runs, "seed %d: %s ran in the order", seed, name)
			}
			most = max(most, j.most)
		})
	}
	assert.That(t, most >= 3, "at most %d requests ran at once", most)
}
