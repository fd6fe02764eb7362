package host_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"path"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
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
	handle := func(t protocol.Type, use host.Use) host.Route {
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
			if use == host.Changes {
				d.files[canonical(req.Path)] = req.N
			}
			return &fileResponse{below(d.files, canonical(req.Path))}, nil
		}).About(func(obj protocol.Object) host.Files {
			return host.Files{Path: obj.Text("path"), Use: use}
		})
	}
	return []host.Route{handle("test/write/req", host.Changes), handle("test/read/req", host.Reads), handle("test/see/req", host.Sees), handle("test/none/req", host.Nothing)}
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

// bench is a plugin with tools that come and go, which takes its time.
type bench struct {
	mu    sync.Mutex
	tools map[string]int // by prefix, which change brought them; guarded by mu
}

type toolRequest struct {
	Name string `json:"tool_name"`
	N    int    `json:"n"`
	Took int    `json:"took"` // ms
}

type toolResponse struct {
	Tools map[string]int `json:"tools"` // at the beginning of the request
}

func (*bench) Info() host.PluginInfo {
	return host.PluginInfo{Name: "bench", Capability: protocol.CapTest}
}

func (*bench) Close(context.Context) error { return nil }

func (b *bench) Routes() []host.Route {
	use := func(ctx context.Context, req *toolRequest, _ host.Emitter) (*toolResponse, error) {
		host.HandOff(ctx)
		b.mu.Lock()
		seen := maps.Clone(b.tools)
		b.mu.Unlock()
		time.Sleep(time.Duration(req.Took) * time.Millisecond)
		return &toolResponse{seen}, nil
	}
	change := func(t protocol.Type, use host.Use) host.Route {
		return host.Handle(t, func(ctx context.Context, req *toolRequest, _ host.Emitter) (*toolResponse, error) {
			host.HandOff(ctx)
			time.Sleep(time.Duration(req.Took) * time.Millisecond)
			b.mu.Lock()
			defer b.mu.Unlock()
			b.tools[req.Name] = max(b.tools[req.Name], req.N)
			return &toolResponse{}, nil
		}).ChangesTools(func(obj protocol.Object) host.Tools {
			return host.Tools{Prefix: obj.Text("tool_name"), Use: use, Files: obj.Text("path") != ""}
		})
	}
	about := func(obj protocol.Object) host.Files {
		if name := obj.Text("path"); name != "" {
			return host.Files{Path: name, Use: host.Reads}
		}
		return host.Files{}
	}
	return []host.Route{
		change("test/change/req", host.Changes), change("test/change_at_once/req", host.ChangesAtOnce),
		host.Handle("test/call/req", use).CallsTool().About(about), host.Handle("test/list/req", use).SeesTools(),
	}
}

// What uses tools sees all the changes of them that came before it. A change waits for the calls
// before it, unless it is at once; nothing waits for a list.
func TestToolsAreThereForWhatComesLater(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 5))
			p := hosttest.Start(t, host.Options{Plugins: []host.Plugin{&bench{tools: map[string]int{}}}, MaxParallel: 1 + random.IntN(6)})
			p.Handshake(protocol.CapTest)
			now := map[string]int{}
			want := map[string]map[string]int{}
			var lines []string
			for i := 1; i <= 80; i++ {
				id, prefix := fmt.Sprint("r", i), []string{"a_", "b_"}[random.IntN(2)]
				typ, name := protocol.Type("test/list/req"), ""
				switch random.IntN(4) {
				case 0:
					typ, name = map[string]protocol.Type{"a_": "test/change/req", "b_": "test/change_at_once/req"}[prefix], prefix
					now[prefix] = i
				case 1, 2:
					typ, name = "test/call/req", prefix+"x"
					want[id] = map[string]int{prefix: now[prefix]}
				default:
					want[id] = maps.Clone(now)
				}
				lines = append(lines, hosttest.Request(typ, id, fmt.Sprintf(`{"tool_name":%q,"n":%d,"took":%d}`, name, i, random.IntN(4))))
			}
			p.Send(lines...)
			for id, least := range want {
				var got toolResponse
				p.Answer(id).Decode(t, &got)
				for prefix, n := range least {
					exact := len(least) == 1 && prefix == "a_" && strings.Contains(lines[must.Get(strconv.Atoi(id[1:]))(t)-1], "call")
					assert.That(t, got.Tools[prefix] == n || !exact && got.Tools[prefix] > n, "seed %d: %s saw %v, want %v", seed, id, got.Tools, least)
				}
			}
			p.Close()
		})
	}
}

// A call of other tools, and a list, hold up no change, nor does a change hold up what uses others.
func TestOtherToolsDoNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := hosttest.Start(t, host.Options{Plugins: []host.Plugin{&bench{tools: map[string]int{}}}, MaxParallel: 8})
		p.Handshake(protocol.CapTest)
		slow := []string{p.Go("test/list/req", `{"took":5000}`), p.Go("test/call/req", `{"tool_name":"b_x","took":5000}`), p.Go("test/change/req", `{"tool_name":"c_","took":5000}`)}
		p.Call("test/change/req", `{"tool_name":"a_"}`)
		p.Call("test/change_at_once/req", `{"tool_name":"b_"}`)
		p.Call("test/call/req", `{"tool_name":"a_x"}`)
		for _, id := range slow {
			assert.That(t, len(p.Answers(id)) == 0, "something waited for %s", id)
		}
		p.Close()
	})
}

// A call of a tool that is to come holds up what is about files only where that tool may use some.
func TestFilesOfToolsToCome(t *testing.T) {
	for _, c := range []struct {
		path  string // of the change: its tools use files
		waits bool
	}{{"", false}, {".", true}} {
		synctest.Test(t, func(t *testing.T) {
			p := hosttest.Start(t, host.Options{Plugins: []host.Plugin{&bench{tools: map[string]int{}}}, MaxParallel: 8})
			p.Handshake(protocol.CapTest)
			p.Go("test/change/req", fmt.Sprintf(`{"tool_name":"a_","path":%q,"took":5000}`, c.path))
			call := p.Go("test/call/req", `{"tool_name":"a_x"}`)
			p.Call("test/call/req", `{"tool_name":"y","path":"file"}`)
			assert.Equal(t, len(p.Answers(call)) == 1, c.waits, "with path %q: the call of the tool to come came first", c.path)
			p.Close()
		})
	}
}
