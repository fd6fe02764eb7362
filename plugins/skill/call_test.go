package skill

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/sandbox"
	"a2e/protocol"
)

// newPlugin returns a plugin with the skills of a folder.
func newPlugin(t testing.TB, path string) *Plugin {
	t.Helper()
	return must.Get(New("skills of "+filepath.Base(path), Options{SkillsPath: path, MaxTurns: 5}, host.Env{}))(t)
}

func optionsOf(plugins ...host.Plugin) host.Options { return host.Options{Plugins: plugins} }

// TestContract: the plugin keeps the rules that the host has for all plugins.
func TestContract(t *testing.T) {
	hosttest.Contract(t, func(t testing.TB) host.Plugin { return newPlugin(t, samples()) }, []hosttest.Sample{
		{Type: protocol.TypeSkillDiscoverReq, Fields: `{"filter_tags":["analysis"],"filter_categories":["analysis"]}`},
		{Type: protocol.TypeSkillCallReq, Fields: `{"name":"minimal","arguments":{},"llm_override":null}`},
		{Type: protocol.TypeSkillCallReq, Name: "unknown", Fields: `{"name":"none"}`, Code: protocol.CodeUnknownSkill},
		{
			Type: protocol.TypeSkillCallReq, Name: "blocked",
			Fields: `{"name":"topic-analysis","arguments":{"topic":"x"}}`, Code: protocol.CodeSkillError,
		},
		{
			Type: protocol.TypeSkillCallReq, Name: "arguments", Fields: `{"name":"book-room","arguments":{}}`,
			Code: protocol.CodeSchemaViolation,
		},
	})
}

// TestStatus: a skill that may not be called says why.
func TestStatus(t *testing.T) {
	s := newStage(t, map[string]string{
		"tool/SKILL.md":    md("name: tool\ndescription: d\ntools: [read_file, frobnicate]", ""),
		"rule/SKILL.md":    md("name: rule\ndescription: d\ntools: ['Bash(git:*)']", ""),
		"kit/SKILL.md":     md("name: kit\ndescription: d\ntoolkits: [git]", ""),
		"glob/SKILL.md":    md("name: glob\ndescription: d\ntools: ['none_*']", ""),
		"author/SKILL.md":  md("name: author\ndescription: d\nstatus: blocked", ""),
		"net/SKILL.md":     md("name: net\ndescription: d\nrun: x.sh\nnetwork: true", ""),
		"net/x.sh":         "#!/bin/sh\n",
		"old/SKILL.md":     md("name: old\ndescription: d\nstatus: Archived\ntools: [frobnicate]", ""),
		"new/SKILL.md":     md("name: new\ndescription: d\nstatus: CREATED", ""),
		"odd/SKILL.md":     md("name: odd\ndescription: d\nstatus: stable", ""),
		"allowed/SKILL.md": md("name: allowed\ndescription: d\nallowed-tools: Bash(git:*), Frobnicate, Read", ""),
	}, nil)
	for _, tc := range []struct {
		name   string
		status protocol.SkillStatus
		says   string
	}{
		{"tool", protocol.SkillBlocked, `there is no tool "frobnicate"`},
		{"rule", protocol.SkillBlocked, `the tool "Bash(git:*)" has a rule that this host cannot keep`},
		{"kit", protocol.SkillBlocked, `there is no toolkit "git"`},
		{"glob", protocol.SkillBlocked, `there is no tool "none_*"`},
		{"author", protocol.SkillBlocked, "its front matter says so"},
		{"net", protocol.SkillBlocked, "network_disabled in the options"},
		{"old", protocol.SkillArchived, "is archived"},
		{"new", protocol.SkillCreated, "is not published yet"},
		{"odd", protocol.SkillPublished, ""},
		{"allowed", protocol.SkillPublished, ""},
	} {
		d := s.one(tc.name)
		reason, _ := d.Metadata["blocked_reason"].(string)
		assert.That(t, d.Status == tc.status && (tc.status != protocol.SkillBlocked ||
			strings.Contains(reason, tc.says)) && (tc.status == protocol.SkillBlocked || reason == ""), "%s is %s: %v",
			tc.name, d.Status, d.Metadata)
		if tc.says == "" {
			s.well(tc.name, `{}`)
			continue
		}
		got := s.refused(tc.name, `{}`, protocol.CodeSkillError)
		assert.That(t, strings.Contains(got, tc.says) && strings.Contains(got, tc.name), "%s: %s", tc.name, got)
	}
	m := s.well("allowed", `{}`)
	assert.That(t, m.Get("/data/data/tools/0/name") == "read_file" && m.Get("/data/data/tools/1") == "",
		"the tools of allowed are %s", m.Get("/data/data/tools"))
}

// kits is a plugin whose tools and toolkits come and go.
type kits struct {
	mu    sync.Mutex
	tools []protocol.ToolDefinition    // guarded by mu
	kits  []protocol.ToolkitDefinition // guarded by mu
	fail  error                        // guarded by mu
}

func (k *kits) set(change func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change()
}

func (k *kits) Info() host.PluginInfo {
	return host.PluginInfo{
		Name: "kits", Capability: protocol.CapToolkits,
		Also: []protocol.Capability{protocol.CapTools},
	}
}
func (k *kits) Close(context.Context) error { return nil }
func (k *kits) Routes() []host.Route {
	return []host.Route{
		host.Handle(protocol.TypeToolListReq, func(context.Context, *protocol.ToolListRequest,
			host.Emitter,
		) (*protocol.ToolListResponse, error) {
			k.mu.Lock()
			defer k.mu.Unlock()
			return &protocol.ToolListResponse{Tools: k.tools}, k.fail
		}),
		host.Handle(protocol.TypeToolkitListReq, func(context.Context, *protocol.ToolkitListRequest,
			host.Emitter,
		) (*protocol.ToolkitListResponse, error) {
			k.mu.Lock()
			defer k.mu.Unlock()
			return &protocol.ToolkitListResponse{Toolkits: k.kits}, nil
		}),
	}
}

// TestToolkits: a skill is unblocked when the tools and toolkits that it needs are configured, and blocked when they
// go.
func TestToolkits(t *testing.T) {
	k := &kits{}
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"x/SKILL.md": md("name: x\ndescription: d\ntoolkits: [repo]\ntools: ['files__*', "+
			"mcp__files__stat]\nallowed-tools: mcp__files__read log", ""),
		"y/SKILL.md": md("name: y\ndescription: d\ntoolkits: [repo]\ntools: ['files__*']", ""),
	})
	s := &stage{t: t}
	s.Pair = hosttest.New(t, optionsOf(newPlugin(t, dir), k))
	s.Handshake(protocol.CapSkill)
	if got := s.refused("x", `{}`, protocol.CodeSkillError); !strings.Contains(got,
		`there is no tool "files__*"; there is no tool "mcp__files__stat"; there is no toolkit "repo"`) {
		t.Errorf("%s", got)
	}
	repo := "repo"
	k.set(func() {
		k.tools = []protocol.ToolDefinition{
			{Name: "log", Toolkit: &repo},
			{Name: "files__stat"},
			{Name: "files__read"},
			{Name: "other"},
			{Name: "diff"},
		}
		k.kits = []protocol.ToolkitDefinition{{Name: "repo", Tools: []string{"diff"}}}
	})
	if got := s.refused("x", `{}`, protocol.CodeSkillError); !strings.Contains(got,
		`blocked: the toolkit "repo" is not configured`) {
		t.Errorf("%s", got)
	}
	k.set(func() { k.kits[0].Configured = true })
	for name, want := range map[string]string{"x": "[files__read log]", "y": "[diff files__read files__stat log]"} {
		var resp struct {
			Data struct {
				Data struct {
					Tools []protocol.ToolDefinition `json:"tools"`
				} `json:"data"`
			} `json:"data"`
		}
		s.well(name, `{}`).Decode(t, &resp)
		var got []string
		for _, def := range resp.Data.Data.Tools {
			got = append(got, def.Name)
		}
		assert.Equal(t, fmt.Sprint(got), want, "tools of %s", name)
	}
	k.set(func() { k.fail = protocol.Errorf(protocol.CodeRuntimeError, "no list today") })
	hosttest.Eventually(t, "the skill is blocked without a list of tools", func() bool {
		return strings.Contains(string(s.ask("x", `{}`).Line), "the tools of this host cannot be listed: "+
			"runtime_error: no list today")
	})
}

// TestOutputs: a result that does not match the skill's outputs is a failure that keeps the data.
func TestOutputs(t *testing.T) {
	if runtime.GOOS == "windows" {
		return // Windows has no sh
	}
	files := map[string]string{}
	for name, says := range map[string]string{
		"fits": `{"result":{"n":1}}`, "wrong": `{"result":{"n":"one"}}`,
		"lacks": `{"result":{}}`, "none": `{"kind":"status","data":{"message":"m"}}`, "text": "hello", "fails": "",
	} {
		files[name+"/SKILL.md"] = md("name: "+name+"\ndescription: d\nrun: go.sh\noutputs: {n: {type: integer, "+
			"required: true}}", "")
		files[name+"/go.sh"] = "#!/bin/sh\nprintf '%s\\n' '" + says + "'\n"
	}
	files["fails/go.sh"] = "#!/bin/sh\necho oh no >&2\nexit 3\n"
	s := newStage(t, files, nil)
	for name, want := range map[string]string{
		"fits":  ` {"n":1}`,
		"wrong": `/data/n should be of type integer, is of type string {"n":"one"}`,
		"lacks": `/data/n is missing {}`,
		"none":  `/data should be of type object, is of type null`,
		"text":  `/data should be of type object, is of type string hello`,
		"fails": `exit status 3`,
	} {
		m := s.ask(name, `{}`)
		got := m.Get("/data/error") + " " + m.Get("/data/data")
		well := m.Get("/data/success") == "true" && m.Get("/data/error_code") == ""
		assert.That(t, m.Code == "" && strings.Contains(got, want) && well == (name == "fits") &&
			(well || m.Get("/data/error_code") == "skill_error"), "%s: %s", name, m.Line)
	}
}

// TestScriptEvents: what a script reports while it runs is sent as events, also of the script's own kinds.
func TestScriptEvents(t *testing.T) {
	if runtime.GOOS == "windows" {
		return // Windows has no sh
	}
	files := map[string]string{
		"x/SKILL.md": md("name: x\ndescription: d\nrun: go.sh", ""),
		"x/go.sh": "#!/bin/sh\necho '{\"kind\":\"progress\",\"data\":{\"pct\":40,\"message\":\"m\"}}'\necho " +
			"'{\"kind\":\"step\",\"data\":{\"n\":1}}'\necho '{\"kind\":\"number\",\"data\":7}'\necho " +
			"'{\"result\":true}'\n",
	}
	for _, namespaced := range []bool{false, true} {
		s := newStage(t, files, nil)
		want := protocol.TypeInvokeEvent
		if namespaced {
			want = protocol.TypeSkillEvent
			second := newPlugin(t, filepath.Join(s.work, ".a2e", "skills"))
			second.env.Launcher = s.plugin.env.Launcher
			s.Pair = hosttest.New(t, host.Options{Plugins: []host.Plugin{second}, Namespaced: true})
			s.Handshake(protocol.CapSkill)
		}
		m := s.well("x", `{}`)
		var got []string
		for _, e := range s.Messages() {
			if e.ReqID == m.ReqID && e.IsEvent() {
				assert.That(t, e.Type == want, "an event is %s", e.Type)
				got = append(got, e.Get("/kind")+e.Get("/data"))
			}
		}
		all := strings.Join(got, " ")
		assert.That(t, all == `progress{"message":"m","pct":40} step{"n":1} number{"value":7}`, "the events are %s",
			all)
		quiet := s.Call(protocol.TypeSkillCallReq, `{"name":"x","streaming":false}`)
		for _, e := range s.Messages() {
			assert.That(t, e.ReqID != quiet.ReqID || !e.IsEvent(), "an event nobody asked for: %s", e.Line)
		}
	}
}

// TestOwnTimeout: a skill's own time limit holds in addition to that of the request.
func TestOwnTimeout(t *testing.T) {
	if runtime.GOOS == "windows" {
		return // Windows has no sh
	}
	s := newStage(t, map[string]string{
		"x/SKILL.md": md("name: x\ndescription: d\nrun: go.sh\ntimeout_seconds: 1", ""),
		"x/go.sh":    "#!/bin/sh\nsleep 300\n",
	}, nil)
	got := s.refused("x", `{}`, protocol.CodeTimeout)
	assert.That(t, strings.Contains(got, `its own timeout_seconds of 1`), "%s", got)
}

// TestNoLauncher: if the machine cannot confine programs, or the host starts none, the error says so.
func TestNoLauncher(t *testing.T) {
	files := map[string]string{"x/SKILL.md": md("name: x\ndescription: d\nrun: go.sh", ""), "x/go.sh": "#!/bin/sh\n"}
	for want, launcher := range map[string]func() (*sandbox.Launcher, error){
		"this host starts no programs": nil,
		"this machine lacks: landlock": func() (*sandbox.Launcher, error) {
			return nil, &sandbox.MissingError{Missing: []sandbox.Finding{{
				Name:   "landlock",
				Reason: "the kernel has none",
			}}}
		},
	} {
		s := newStage(t, files, nil)
		s.plugin.env.Launcher = launcher
		got := s.refused("x", `{}`, protocol.CodeSkillError)
		assert.That(t, strings.Contains(got, want), "%s", got)
	}
}

// TestRights: a script gets the rights that its skill asks for, and the network only if the config allows it to skills.
func TestRights(t *testing.T) {
	for _, tc := range []struct {
		front                    string
		disabled, network, write bool
	}{
		{"", false, false, false},
		{"write: true", false, false, true},
		{"network: true", false, true, false},
		{"network: true", true, false, false},
	} {
		s := newStage(t, map[string]string{
			"x/SKILL.md": md("name: x\ndescription: d\nrun: go.sh\n"+tc.front, ""),
			"x/go.sh":    "#!/bin/sh\n",
		}, func(o *Options, _ *host.Env) {
			o.NetworkDisabled, o.TrustWorkspace = tc.disabled,
				true
		})
		_, job := s.job("x")
		assert.That(t, job.Network == tc.network && job.Write == tc.write && job.Workspace == s.work &&
			job.Dir == filepath.Join(s.work, ".a2e", "skills", "x") && job.File == "go.sh", "%+v: %+v", tc, job)
	}
}

// TestRecorded: each call that runs is recorded once, with its success; a refused call is not.
func TestRecorded(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{
		"x/SKILL.md": md("name: x\ndescription: d", ""),
		"y/SKILL.md": md("name: y\ndescription: d\ninputs: {a: {type: string, required: true}}", ""),
	})
	c := &counter{}
	s := &stage{t: t}
	s.Pair = hosttest.New(t, optionsOf(newPlugin(t, dir), c))
	s.Handshake(protocol.CapSkill)
	s.Call(protocol.TypeSkillCallReq, `{"name":"x","correlation_id":"turn 7"}`)
	s.refused("y", `{}`, protocol.CodeSchemaViolation)
	s.refused("z", `{}`, protocol.CodeUnknownSkill)
	got := strings.Join(c.seen, " ")
	assert.That(t, got == "skill x turn 7 true", "it counted %s", got)
	assert.Equal(t, s.one("x").Metadata["routing_weight"], 1.5, "its weight")
	w := s.one("y").Metadata["routing_weight"]
	assert.That(t, w == nil, "a neutral weight is told: %v", w)
}

// counter is a plugin that records calls and has a weight for each component.
type counter struct {
	mu   sync.Mutex
	seen []string // guarded by mu
}

func (c *counter) Info() host.PluginInfo {
	return host.PluginInfo{Name: "counter", Capability: protocol.CapLearning}
}
func (c *counter) Close(context.Context) error { return nil }
func (c *counter) Routes() []host.Route        { return nil }
func (c *counter) CountCall(r host.CallOutcome) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen = append(c.seen, fmt.Sprint(r.Kind, " ", r.Component, " ", r.Correlation, " ", r.Success))
}

func (c *counter) Weight(_, component string) float64 {
	if component == "x" {
		return 1.5
	}
	return 1
}

// TestCancelled: a cancelled call is answered, and its script has ended.
func TestCancelled(t *testing.T) {
	if runtime.GOOS == "windows" {
		return // Windows has no sh
	}
	s := newStage(t, map[string]string{
		"x/SKILL.md": md("name: x\ndescription: d\nrun: go.sh\nwrite: true", ""),
		"x/go.sh":    "#!/bin/sh\n: > started\nsleep 300\n",
	}, nil)
	id := s.Go(protocol.TypeSkillCallReq, `{"name":"x"}`)
	hosttest.Eventually(t, "the script starts", func() bool {
		_, err := os.Stat(filepath.Join(s.work, "started"))
		return err == nil
	})
	s.Send(hosttest.Request(protocol.TypeCancel, "c", fmt.Sprintf(`{"req_id":%q}`, id)))
	m := s.Answer(id)
	assert.That(t, m.Code == protocol.CodeCancelled, "%s", m.Line)
}
