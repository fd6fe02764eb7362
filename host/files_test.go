package host_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"path"
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

// disk is a plugin with files, which takes its time.
type disk struct {
	mu    sync.Mutex // guards the fields below; the order is the requests' own
	files map[string]int
	now   int // run now
	most  int // ran at once
}

type fileRequest struct {
	Path string `json:"path"`
	N    int    `json:"n"`
	Took int    `json:"took"` // ms
}

type fileResponse struct {
	Files map[string]int `json:"files"` // those at the path and below it
}

func (*disk) Info() host.PluginInfo {
	return host.PluginInfo{Name: "disk", Capability: protocol.CapTest}
}

func (*disk) Close(context.Context) error { return nil }

func canonical(name string) string { return strings.ToLower(path.Clean(name)) }

func below(files map[string]int, folder string) map[string]int {
	out := map[string]int{}
	for name, n := range files {
		if folder == "." || name == folder || strings.HasPrefix(name, folder+"/") {
			out[name] = n
		}
	}
	return out
}

func (d *disk) Routes() []host.Route {
	handle := func(t protocol.Type, use host.FileUse) host.Route {
		return host.Handle(t, func(ctx context.Context, req *fileRequest, _ host.Emitter) (*fileResponse, error) {
			host.HandOff(ctx)
			d.mu.Lock()
			defer d.mu.Unlock()
			d.now++
			d.most = max(d.most, d.now)
			d.mu.Unlock()
			time.Sleep(time.Duration(req.Took) * time.Millisecond)
			d.mu.Lock()
			d.now--
			if use == host.ChangesFiles {
				d.files[canonical(req.Path)] = req.N
			}
			return &fileResponse{below(d.files, canonical(req.Path))}, nil
		}).About(func(obj protocol.Object) host.Files {
			val, _ := obj.Get("path")
			name, _ := val.Str()
			return host.Files{Path: name, Use: use}
		})
	}
	return []host.Route{handle("test/write/req", host.ChangesFiles), handle("test/read/req", host.ReadsFiles), handle("test/see/req", host.SeesFiles), handle("test/none/req", host.UsesNone)}
}

// Requests about files take effect in the order they were sent, as far as they are about the
// same ones, whatever the spelling of the path: a read sees all the writes before it and none
// after it, also those of what is in a folder; one that only sees, such as a command, sees at
// least those before it, and nothing waits for it.
func TestRequestsAboutFilesKeepTheirOrder(t *testing.T) {
	spellings := []string{"a/b", "./a/b", "a//b/", "A/B", "c/../a/b", "a/c", "ab", "d", "a", "."}
	most := 0
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 4))
			d := &disk{files: map[string]int{}}
			p := hosttest.Start(t, host.Options{Plugins: []host.Plugin{d}, MaxParallel: 1 + random.IntN(6)})
			p.Handshake(protocol.CapTest)
			model := map[string]int{}
			want, least := map[string]map[string]int{}, map[string]map[string]int{}
			var lines []string
			for i := range 80 {
				id, typ, name := fmt.Sprint("r", i), protocol.Type("test/read/req"), spellings[random.IntN(len(spellings))]
				switch random.IntN(5) {
				case 0, 1:
					typ, name = "test/write/req", spellings[random.IntN(8)]
					model[canonical(name)] = i
				case 2:
					typ = "test/see/req"
				}
				if typ == "test/see/req" {
					least[id] = below(model, canonical(name))
				} else {
					want[id] = below(model, canonical(name))
				}
				lines = append(lines, hosttest.Request(typ, id, fmt.Sprintf(`{"path":%q,"n":%d,"took":%d}`, name, i, random.IntN(4))))
			}
			p.Send(lines...)
			for id, files := range want {
				var got fileResponse
				if p.Answer(id).Decode(t, &got); !maps.Equal(got.Files, files) {
					t.Errorf("seed %d: %s saw %v, want %v", seed, id, got.Files, files)
				}
			}
			for id, files := range least {
				var got fileResponse
				p.Answer(id).Decode(t, &got)
				for name, n := range files {
					assert.That(t, got.Files[name] >= n, "seed %d: %s saw %v, want at least %v", seed, id, got.Files, files)
				}
			}
			p.Close()
			most = max(most, d.most)
		})
	}
	assert.That(t, most >= 3, "at most %d requests ran at once", most)
}

// What leads out of the workspace, or is no path at all, is in order with everything, and
// nothing waits for one that only sees.
func TestRequestsAboutOddPaths(t *testing.T) {
	for _, odd := range []string{"", ".", "..", "../x", "/etc/passwd", `..\x`, `a\..\..`} {
		t.Run(odd, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := hosttest.Start(t, host.Options{Plugins: []host.Plugin{&disk{files: map[string]int{}}}, MaxParallel: 4})
				p.Handshake(protocol.CapTest)
				see := p.Go("test/see/req", `{"path":".","took":5000}`)
				p.Go("test/write/req", fmt.Sprintf(`{"path":%q,"n":1,"took":5}`, odd))
				var got fileResponse
				if p.Call("test/read/req", `{"path":"."}`).Decode(t, &got); len(got.Files) != 1 {
					t.Errorf("the read saw %v", got.Files)
				}
				assert.That(t, len(p.Answers(see)) <= 0, "the write waited for one that only sees")
				p.Close()
			})
		})
	}
}

// Requests of the same type that are about no files run side by side, also beside those that are
// about some.
func TestRequestsAboutNoFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := hosttest.Start(t, host.Options{Plugins: []host.Plugin{&disk{files: map[string]int{}}}, MaxParallel: 4})
		p.Handshake(protocol.CapTest)
		slow := []string{p.Go("test/none/req", `{"took":5000}`), p.Go("test/write/req", `{"path":"a","took":5000}`)}
		p.Call("test/none/req", `{}`)
		assert.That(t, len(p.Answers(slow[0]))+len(p.Answers(slow[1])) <= 0, "it waited for one that is about something else")
		p.Close()
	})
}
