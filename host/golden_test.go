package host_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-json-experiment/json"
	"golang.org/x/tools/txtar"

	"a2e/host"
	"a2e/host/guard/auth"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

var update = flag.Bool("update", false, "write the golden sessions anew")

// TestGolden: the sessions in testdata/sessions run exactly as written. Each is a txtar file with prose, the options
// of the host, and the session, whose lines mean:
//
//	> text    the agent sends a line
//	>| text   the agent sends text without a newline
//	< text    the host sends a line; its ids and times are replaced
//	! eof, ! release, ! interrupt, ! wait 1s
//	          the agent closes its end; blocked tools continue; a signal; time passes
//	= text    the host has ended
//
// $ASKED in a line of the agent stands for the id of the last request of the host. The clock is that of a synctest
// bubble, so waits cost no time.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("../testdata/sessions/*.txtar")
	must.That(t, err == nil && len(files) != 0, "no sessions: %v", err)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			archive := must.Get(txtar.ParseFile(file))(t)
			must.That(t, len(bytes.TrimSpace(archive.Comment)) != 0 && len(archive.Files) == 2,
				"%s should be prose, a file `options` and a file `session`", file)
			var got []byte
			synctest.Test(t, func(t *testing.T) { got = play(t, archive.Files[0].Data, archive.Files[1].Data) })
			if *update {
				archive.Files[1].Data = got
				must.OK(t, os.WriteFile(file, txtar.Format(archive), 0o644))
			}
			assert.Diff(t, strings.Split(string(archive.Files[1].Data), "\n"), strings.Split(string(got), "\n"))
		})
	}
}

// goldenOptions is the file `options` of a session.
type goldenOptions struct {
	Plugins     []string `json:"plugins"`
	MaxParallel int      `json:"max_parallel"`
	Token       string   `json:"token"`
	Auth        []struct {
		Token   string `json:"token"`
		AgentID string `json:"agent_id"`
	} `json:"auth"`
	Namespaced bool `json:"namespaced"`
	LineBytes  int  `json:"max_line_bytes"`
	Queue      int  `json:"max_queue"`
	QueueBytes int  `json:"max_queue_bytes"`
}

// stage is one session being played.
type stage struct {
	t     *testing.T
	pair  *hosttest.Pair
	lab   *lab
	out   bytes.Buffer
	shown int // messages that are already in out
	ended bool
}

func play(t *testing.T, options, session []byte) []byte {
	s := &stage{t: t, lab: newLab()}
	var o goldenOptions
	must.OK(t, json.Unmarshal(options, &o, json.RejectUnknownMembers(true)))
	opts := host.Options{
		MaxParallel: o.MaxParallel, Namespaced: o.Namespaced,
		Limits: host.Limits{LineBytes: o.LineBytes, Queue: o.Queue, QueueBytes: o.QueueBytes},
	}
	if o.Token != "" {
		opts.Tokens = auth.Tokens{auth.New(o.Token, "")}
	}
	for _, a := range o.Auth {
		opts.Tokens = append(opts.Tokens, auth.New(a.Token, a.AgentID))
	}
	for _, name := range o.Plugins {
		make := s.plugins()[name]
		if make == nil {
			t.Fatalf("no plugin %q; there are %v", name, slices.Sorted(maps.Keys(s.plugins())))
		}
		opts.Plugins = append(opts.Plugins, make())
	}
	s.pair = hosttest.Start(t, opts)
	for line := range strings.Lines(string(session)) {
		s.step(strings.TrimSuffix(line, "\n"))
	}
	close(s.lab.gate)
	s.pair.Close()
	extra := len(s.pair.Messages()) - s.shown
	assert.That(t, extra <= 0 || s.ended, "%d messages after the end of the script: end it with `! eof`", extra)
	return s.out.Bytes()
}

func (s *stage) step(line string) {
	switch {
	case strings.HasPrefix(line, "<"), strings.HasPrefix(line, "="):
		return // show writes the lines of the host
	case strings.HasPrefix(line, "> "):
		s.pair.Send(s.asked(line[2:]))
	case strings.HasPrefix(line, ">| "):
		s.pair.SendRaw(s.asked(line[3:]))
	case line == "! eof":
		s.pair.CloseInput()
		time.Sleep(25 * time.Millisecond) // at its end the host checks the output every 20 ms
	case line == "! interrupt":
		s.pair.Host.Interrupt()
	case line == "! release":
		close(s.lab.gate)
		s.lab.gate = make(chan struct{})
	case strings.HasPrefix(line, "! wait "):
		d, err := time.ParseDuration(line[7:])
		if err != nil {
			s.t.Fatal(err)
		}
		time.Sleep(d)
	case line != "" && !strings.HasPrefix(line, "#"):
		s.t.Fatalf("what is %q?", line)
	}
	fmt.Fprintln(&s.out, line)
	time.Sleep(5 * time.Millisecond) // the watcher needs some of them to notice a slow handler
	synctest.Wait()
	s.show()
}

// show writes the lines that the host has sent since the last call.
func (s *stage) show() {
	for _, m := range s.pair.Messages()[s.shown:] {
		s.shown++
		fmt.Fprintf(&s.out, "< %s\n", normal(m.Line))
	}
	if s.pair.Ended() && !s.ended {
		s.ended = true
		fmt.Fprintf(&s.out, "= %v\n", s.pair.WaitEnd())
	}
}

// asked replaces $ASKED in a line with the id of the host's last request.
func (s *stage) asked(line string) string {
	if !strings.Contains(line, "$ASKED") {
		return line
	}
	id := ""
	for _, m := range s.pair.Messages() {
		if m.IsRequest() {
			id = m.ID
		}
	}
	return strings.ReplaceAll(line, "$ASKED", id)
}

// replacements lists the texts that normal replaces.
var replacements = []struct {
	find *regexp.Regexp
	put  string
}{
	{regexp.MustCompile(`^{"a2e":"1.0","version":"1.0",`), `{…,`},
	{regexp.MustCompile(`"id":"[0-9a-f]{32}","ts":[0-9.]+`), `…`},
	{regexp.MustCompile(`[0-9a-f]{32}`), `…`},
	// the library picks one of the two texts at random
	{regexp.MustCompile(`json: unable to marshal`), `json: cannot marshal`},
	{regexp.MustCompile(`"uptime_seconds":[0-9.]+`), `"uptime_seconds":0`},
}

// normal replaces the parts of a line that differ from run to run.
func normal(line []byte) []byte {
	for _, r := range replacements {
		line = r.find.ReplaceAll(line, []byte(r.put))
	}
	return line
}

// plugins returns the plugins that the options of a session can name.
func (s *stage) plugins() map[string]func() host.Plugin {
	with := func(name string, priority int, exclusive bool, owns ...string) func() host.Plugin {
		return func() host.Plugin {
			l := newLab()
			l.info.Name, l.info.Priority, l.info.Exclusive, l.owns = name, priority, exclusive, owns
			return l
		}
	}
	return map[string]func() host.Plugin{
		"lab":       func() host.Plugin { return s.lab },
		"high":      with("high", 10, false, "alpha", "beta"),
		"low":       with("low", -10, false, "beta", "gamma"),
		"exclusive": with("exclusive", 0, true, "delta"),
		"procs":     func() host.Plugin { return &procs{gate: s.lab.gate} },
		"mcp":       func() host.Plugin { return routes{"mcp", protocol.CapMCP, nil} },
		"unlisted":  func() host.Plugin { return routes{"unlisted", protocol.CapEnv, nil} },
		"odd": func() host.Plugin {
			return &oddInfo{newLab()}
		},
		"env": func() host.Plugin {
			return routes{"env", protocol.CapEnv, []host.Route{
				host.Handle(protocol.TypeEnvPlanReq, echoType[protocol.EnvPlanResponse]),
				host.Handle(protocol.TypeEnvSpaceReq, echoType[protocol.EnvSpaceResponse]),
			}}
		},
		"foreign": func() host.Plugin {
			return routes{"foreign", protocol.CapTest, []host.Route{
				host.Handle("x/echo/req", echoType[foreignAnswer]),
			}}
		},
		"any": func() host.Plugin {
			return routes{"any", protocol.CapTest, []host.Route{host.Handle(host.CatchAll, echoType[foreignAnswer])}}
		},
	}
}

// routes is a plugin that has only routes.
type routes struct {
	name       string
	capability protocol.Capability
	all        []host.Route
}

func (r routes) Info() host.PluginInfo {
	return host.PluginInfo{Name: r.name, Capability: r.capability}
}
func (r routes) Routes() []host.Route        { return r.all }
func (r routes) Close(context.Context) error { return nil }

type foreignAnswer struct {
	Session string `json:"session"`
}

// echoType returns an empty response.
func echoType[Resp any](context.Context, *protocol.Object, host.Emitter) (*Resp, error) {
	return new(Resp), nil
}

// oddInfo is a lab whose metadata cannot be encoded.
type oddInfo struct{ *lab }

func (o *oddInfo) Info() host.PluginInfo {
	info := o.lab.info
	info.Metadata = map[string]any{"odd": make(chan int)}
	return info
}
