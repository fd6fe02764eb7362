package skill

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"go.uber.org/goleak"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/sandbox"
	"a2e/plugins/skill/run"
	"a2e/plugins/tools"
	"a2e/protocol"
)

func TestMain(m *testing.M) {
	sandbox.MaybeRunLauncher()
	run.MaybeRunModule()
	goleak.VerifyTestMain(m)
}

// samples returns the folder with skills of different origins.
func samples() string { return filepath.Join("..", "..", "testdata", "skills") }

// write writes files below a folder, by path.
func write(t testing.TB, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		must.OK(t, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o755))
	}
}

// md returns the text of a SKILL.md.
func md(front, body string) string { return "---\n" + strings.TrimSpace(front) + "\n---\n" + body }

// stage is a host with the tools and some skills, and a session.
type stage struct {
	*hosttest.Pair
	t      testing.TB
	plugin *Plugin
	work   string // the workspace
}

// launcher returns a function that makes a launcher for a workspace when it is first called. The test closes the
// launcher.
func launcher(t testing.TB, work string) func() (*sandbox.Launcher, error) {
	return sync.OnceValues(func() (*sandbox.Launcher, error) {
		l, err := sandbox.New(sandbox.Options{
			Workspace: work, Path: sandbox.SafePath(os.Getenv("PATH"), work),
			Launcher: hosttest.Launcher(t),
		})
		if err == nil {
			t.Cleanup(func() { must.OK(t, l.Close()) })
		}
		return l, err
	})
}

// newStage returns a host with the skills of the given files below .a2e/skills, by path.
func newStage(t testing.TB, files map[string]string, change func(*Options, *host.Env), more ...host.Plugin) *stage {
	t.Helper()
	s := &stage{t: t, work: t.TempDir()}
	write(t, filepath.Join(s.work, ".a2e", "skills"), files)
	opts, env := DefaultOptions(), host.Env{Workspace: s.work, StateDir: t.TempDir(), Launcher: launcher(t, s.work)}
	if change != nil {
		change(&opts, &env)
	}
	var err error
	if s.plugin, err = New("skills", opts, env); err != nil {
		t.Fatal(err)
	}
	box := must.Get(tools.New("tools", tools.DefaultOptions(), host.Env{Workspace: s.work, Launcher: env.Launcher}))(t)
	s.Pair = hosttest.New(t, host.Options{Plugins: append([]host.Plugin{s.plugin, box}, more...)})
	s.Handshake(protocol.CapSkill, protocol.CapTools)
	return s
}

// fields returns a JSON object of alternating names and values.
func fields(t testing.TB, pairs ...any) string {
	t.Helper()
	m := map[string]any{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i].(string)] = pairs[i+1]
	}
	b := must.Get(json.Marshal(m))(t)
	return string(b)
}

// discover returns the skills that the host lists.
func (s *stage) discover(pairs ...any) []protocol.SkillDefinition {
	s.t.Helper()
	m := s.Call(protocol.TypeSkillDiscoverReq, fields(s.t, pairs...))
	must.That(s.t, m.Type == protocol.TypeSkillDiscoverResp, "%.1000s", m.Line)
	var resp protocol.SkillDiscoverResponse
	m.Decode(s.t, &resp)
	return resp.Skills
}

// names returns the names of some skills as one text.
func names(all []protocol.SkillDefinition) string {
	var list []string
	for _, s := range all {
		list = append(list, s.Name)
	}
	return strings.Join(list, " ")
}

// one returns the definition of a skill.
func (s *stage) one(name string) protocol.SkillDefinition {
	s.t.Helper()
	all := s.discover()
	for _, def := range all {
		if def.Name == name {
			return def
		}
	}
	s.t.Fatalf("no %s among %s", name, names(all))
	return protocol.SkillDefinition{}
}

// ask calls a skill with arguments, which are JSON, and returns the answer.
func (s *stage) ask(name, arguments string) hosttest.Message {
	s.t.Helper()
	return s.Call(protocol.TypeSkillCallReq, fmt.Sprintf(`{"name":%s,"arguments":%s,"timeout":120}`,
		protocol.AppendString(nil, name), arguments))
}

// well calls a skill that must succeed, and returns the answer.
func (s *stage) well(name, arguments string) hosttest.Message {
	s.t.Helper()
	m := s.ask(name, arguments)
	must.That(s.t, m.Type == protocol.TypeSkillCallResp && m.Get("/data/success") == "true", "%s %s: %.2000s", name,
		arguments, m.Line)
	return m
}

// text returns the instructions that a skill renders.
func (s *stage) text(name, arguments string) string {
	s.t.Helper()
	return s.well(name, arguments).Get("/data/data/instructions")
}

// refused calls a skill that must be refused with a code, and returns the message.
func (s *stage) refused(name, arguments string, code protocol.ErrorCode) string {
	s.t.Helper()
	m := s.ask(name, arguments)
	must.That(s.t, m.Code == code, "%s %.200s should be %s: %.1000s", name, arguments, code, m.Line)
	return m.Get("/message")
}

// job returns a skill and its job, as a call of it would run it.
func (s *stage) job(name string) (*skill, run.Job) {
	s.t.Helper()
	one := s.plugin.library.current(true).byName[name]
	return one, must.Get((&skillCall{Plugin: s.plugin, skill: one, args: &arguments{}}).job())(s.t)
}

// sampled answers a question to the agent's model with a text.
func (s *stage) sampled(question hosttest.Message, text string) {
	s.Send(fmt.Sprintf(`{"a2e":"1.0","type":"mcp/sample/resp","id":"to %[1]s","req_id":%[1]q,"role":"assistant",`+
		`"content":{"type":"text","text":%[2]s},"model":"m","stop_reason":"endTurn"}`, question.ID,
		protocol.AppendString(nil, text)))
}

// endpoint returns the URL of a model that answers each request with a choice, which is JSON.
func endpoint(t testing.TB, choice string, hear func(key, body string)) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		hear(r.Header.Get("Authorization"), string(body))
		_, _ = io.WriteString(w, `{"choices":[`+choice+`]}`)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// same compares JSON without regard to white space and the order of members.
func same(t testing.TB, got []byte, want string) {
	t.Helper()
	a, b := jsontext.Value(got).Clone(), jsontext.Value(want)
	err := errors.Join(a.Canonicalize(), b.Canonicalize())
	must.That(t, err == nil, "%v\n%s\n%s", err, got, want)
	assert.That(t, string(a) == string(b), "it is\n%s\nshould be\n%s", a, b)
}

// testNow is long after the times of all files of a test, so that no file counts as fresh.
func testNow() time.Time { return time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC) }
