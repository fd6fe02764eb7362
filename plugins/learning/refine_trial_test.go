package learning

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/guard/redact"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/stores"
	"a2e/host/state/store"
	"a2e/protocol"
)

// shop is a plugin with a tool, a skill and two prompts. The tool succeeds or fails as its argument says.
type shop struct {
	mu          sync.Mutex
	description string // guarded by mu
}

func (*shop) Info() host.PluginInfo {
	return host.PluginInfo{Name: "shop", Capability: protocol.CapTools, Also: []protocol.Capability{
		protocol.CapSkill,
		protocol.CapMCP,
	}}
}

func (*shop) Close(context.Context) error { return nil }

func (*shop) Instructions(name string) (string, bool) { return "Sell it.", name == "sell" }

func (s *shop) Routes() []host.Route {
	return []host.Route{
		host.List(protocol.TypeToolListReq, func(context.Context, *protocol.ToolListRequest,
			host.Emitter,
		) (*protocol.ToolListResponse, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			return &protocol.ToolListResponse{Tools: []protocol.ToolDefinition{{
				Name:        "weigh",
				Description: s.description, Version: "1",
			}}}, nil
		}, protocol.MergeTools),
		host.Handle(protocol.TypeToolCallReq, func(ctx context.Context, req *protocol.ToolCallRequest,
			_ host.Emitter,
		) (*protocol.ToolCallResponse, error) {
			val, _ := req.Arguments.Get("well")
			ok := val.Kind() == 't'
			host.ServicesOf(ctx).CountCall(ctx, host.CallOutcome{
				Kind: host.KindTool, Component: req.ToolName, Success: ok,
			})
			return &protocol.ToolCallResponse{Data: protocol.ToolResult{Success: ok, ToolName: req.ToolName}}, nil
		}),
		host.Handle(protocol.TypeMCPPromptListReq, func(_ context.Context, req *protocol.MCPPromptListRequest,
			_ host.Emitter,
		) (*protocol.MCPPromptListResponse, error) {
			if req.Cursor == "" {
				return &protocol.MCPPromptListResponse{Prompts: []map[string]any{{
					"server_id": "s", "name": "greet",
					"description": "Say hello.", "arguments": []any{},
				}}, NextCursor: "2"}, nil
			}
			return &protocol.MCPPromptListResponse{Prompts: []map[string]any{{
				"server_id": "s", "name": "about",
				"description": "Of X.", "arguments": []any{map[string]any{"name": "x"}},
			}}}, nil
		}),
		host.Handle(protocol.TypeMCPPromptGetReq, func(_ context.Context, req *protocol.MCPPromptGetRequest,
			_ host.Emitter,
		) (*protocol.MCPPromptGetResponse, error) {
			text := map[string]any{"type": "text", "text": "Hello!"}
			return &protocol.MCPPromptGetResponse{
				ServerID: "s", Description: "Say hello.",
				Messages: []map[string]any{{"role": "user", "content": text}},
			}, nil
		}),
	}
}

// shops is a host with a shop, and the host's log.
type shops struct {
	*refiner
	path string
	shop *shop
	log  *hosttest.Log
}

func newShop(t testing.TB, path string) *shops {
	t.Helper()
	secrets := redact.New(nil)
	secrets.AddSecret("hunter2hunter2")
	s := &shops{path: path, shop: &shop{description: "Weigh things."}, log: &hosttest.Log{}}
	s.refiner = &refiner{stageWith(t, path, DefaultOptions(), host.Env{Secrets: secrets, Log: zerolog.New(s.log)},
		s.shop)}
	return s
}

// weigh calls the tool over the pipe, so many times with success and with failure.
func (s *shops) weigh(well, badly int) {
	s.t.Helper()
	for i := range well + badly {
		if m := s.Call(protocol.TypeToolCallReq, fmt.Sprintf(`{"tool_name":"weigh","arguments":{"well":%t}}`,
			i < well)); m.Get("/data/success") != fmt.Sprint(i < well) {
			s.t.Fatal(m)
		}
	}
}

// described returns the description of the tool in a list of tools.
func (s *shops) described() string {
	s.t.Helper()
	return s.Call(protocol.TypeToolListReq, `{}`).Get("/tools/0/description")
}

// latest returns the history, with its last entry first. The request also flushes the recorded calls.
func (s *shops) latest() hosttest.Message {
	s.t.Helper()
	return s.Call(protocol.TypeRefinementHistoryReq, `{}`)
}

func (s *shops) sees(m hosttest.Message, want map[string]string) {
	s.t.Helper()
	for path, value := range want {
		got := m.Get(path)
		assert.That(s.t, got == value, "%s is %q, should be %q in %.2000s", path, got, value, m.Line)
	}
}

const textEdit = `{"proposal_id":"p","rationale":"clearer","edits":[{"target":"text","component":"weigh","from":"Weigh things.","to":"Weigh things.\nIn grams."}]}`

// TestTexts: a new text replaces the text for which it was made, and no other.
func TestTexts(t *testing.T) {
	s := newShop(t, newFile(t))
	id := s.applied(textEdit)
	if got := s.described(); got != "Weigh things.\nIn grams." {
		t.Errorf("the description is %q", got)
	}
	s.sees(s.latest(), map[string]string{
		"/entries/0/edits/0/target": "text", "/entries/0/edits/0/kind": "tool",
		"/entries/0/edits/0/name": "description", "/entries/0/edits/0/version": "1",
		"/entries/0/edits/0/diff":       "--- version 0\n+++ version 1\n@@ -1,1 +1,2 @@\n Weigh things.\n+In grams.\n",
		"/entries/0/edits/0/effect":     "in effect",
		"/entries/0/measured/0/verdict": "measuring",
	})
	second := s.applied(`{"edits":[{"target":"prompt","op":"update","path":"prompt.template","component":"weigh","old_value":"Weigh things.\nIn grams.","new_value":"Weigh."}]}`)
	s.sees(s.latest(), map[string]string{
		"/entries/0/edits/0/version": "2", "/entries/0/edits/0/diff": "--- version " +
			"1\n+++ version 2\n@@ -1,2 +1,1 @@\n-Weigh things.\n-In grams.\n+Weigh.\n",
		"/entries/1/edits/0/in_force": "false",
	})
	s.rolledBack(second)
	s.shop.mu.Lock()
	s.shop.description = "Weigh heavy things."
	s.shop.mu.Unlock()
	if got := s.described(); got != "Weigh heavy things." {
		t.Errorf("of another text the description is %q", got)
	}
	s.weigh(1, 0)
	s.sees(s.latest(), map[string]string{
		"/entries/1/edits/0/effect":     "none: the text that it was made for has changed",
		"/entries/1/rollback_available": "true",
	})
	s.sees(s.Call(protocol.TypeLearnStatsReq, `{}`),
		map[string]string{"/components/0/texts/description": "none: the text that it was made for has changed"})
	s.applied(`{"edits":[{"target":"text","component":"weigh","from":"Weigh heavy things.","to":"Weigh heavy things well."}]}`)
	if got := s.described(); got != "Weigh heavy things well." {
		t.Errorf("the description is %q", got)
	}
	resp := s.rollback(id)
	assert.That(t, !resp.RolledBack && strings.Contains(resp.Error, "by now"), "%+v", resp)
	s.applied(`{"edits":[{"target":"text","component":"weigh","to":null},{"target":"text","component":"sell","to":"Sell it dear."},` +
		`{"target":"text","component":"s__greet","name":"text","to":"Hi!"},{"target":"text","component":"s__about","to":"Of some X."}]}`)
	if got := s.described(); got != "Weigh heavy things." {
		t.Errorf("set back the description is %q", got)
	}
	if got := s.plugin.Overrides(host.KindSkill)["sell"].Text(host.TextInstructions,
		"Sell it."); got != "Sell it dear." {
		t.Errorf("the instructions are %q", got)
	}
	s.sees(s.Call(protocol.TypeMCPPromptGetReq, `{"name":"greet"}`),
		map[string]string{"/messages/0/content/text": "Hi!", "/description": "Say hello."})
	s.sees(s.Call(protocol.TypeMCPPromptListReq, `{"cursor":"2"}`),
		map[string]string{"/prompts/0/description": "Of some X."})
}

func TestRefusedTexts(t *testing.T) {
	s := newShop(t, newFile(t))
	for edit, says := range map[string]string{
		`"component":"weigh","to":"a\u0000b"`:                                         "U+0000",
		`"component":"weigh","to":"a\u001b[31mb"`:                                     "U+001B",
		`"component":"weigh","to":"a\u202eb"`:                                         "U+202E",
		`"component":"weigh","to":"a\u200b\u3164b"`:                                   "U+200B",
		`"component":"weigh","to":"a` + "\U000E0041" + `b"`:                           "U+E0041",
		`"component":"weigh","to":" \n "`:                                             "is empty",
		`"component":"weigh","to":["x"]`:                                              "not a text; it is a string",
		`"component":"weigh","to":null`:                                               "already",
		`"component":"weigh","to":"Weigh things."`:                                    "already",
		`"component":"weigh","from":"Weigh.","to":"x"`:                                "not \"Weigh.\" as `from` says",
		`"component":"weigh","to":"the key hunter2hunter2"`:                           "holds a secret",
		`"component":"weigh","name":"instructions","to":"x"`:                          `no text of "weigh" can be changed`,
		`"component":"nobody","to":"x"`:                                               `no text of "nobody" can be changed`,
		`"component":"s__greet","to":"x"`:                                             "has several texts",
		`"component":"s__about","name":"text","to":"x"`:                               "takes no arguments",
		`"component":"weigh","path":"tool.price","to":"x"`:                            "that of a text is one of",
		`"component":"weigh","kind":"skill","to":"x"`:                                 `no text of "weigh"`,
		`"component":"weigh","to":"` + strings.Repeat("x", 5000) + `"`:                "at most 4096",
		`"component":"sell","to":"` + strings.Repeat("x", 33<<10) + `"`:               "at most 32768",
		`"component":"weigh","to":"x"},{"target":"weight","component":"weigh","to":2`: "nothing was recorded",
	} {
		resp := s.apply(`{"edits":[{"target":"text",` + edit + `}]}`)
		assert.That(t, resp.AppliedEdits == 0 && strings.Contains(resp.Error, says), "%.100s: %+v", edit, resp)
		v := s.review(`{"edits":[{"target":"text",` + edit + `}]}`)
		assert.That(t, !v.Approved && strings.Contains(strings.Join(v.Reasons, "\n"), says),
			"%.100s: the review says %+v", edit, v)
	}
	got := s.described()
	assert.That(t, got == "Weigh things.", "the description is %q", got)
	s.applied(textEdit)
	opts := DefaultOptions()
	opts.RefineTexts = false
	off := &refiner{stageWith(t, s.path, opts, host.Env{}, s.shop)}
	m := off.Call(protocol.TypeToolListReq, `{}`)
	assert.That(t, m.Get("/tools/0/description") == "Weigh things.", "%s", m)
	if resp := off.apply(`{"edits":[{"target":"text","component":"weigh","to":"x"}]}`); !strings.Contains(resp.Error,
		"refine_texts") {
		t.Errorf("%+v", resp)
	}
}

// TestWorseIsRolledBack: a refinement under which its component does worse is rolled back, once, whichever host counts
// the calls.
func TestWorseIsRolledBack(t *testing.T) {
	path := newFile(t)
	s, other := newShop(t, path), newShop(t, path)
	s.weigh(40, 2)
	id := s.applied(textEdit)
	if other.latest(); other.described() != "Weigh things.\nIn grams." {
		hosttest.Eventually(t, "the text on the other host",
			func() bool { return other.described() == "Weigh things.\nIn grams." })
	}
	s.weigh(0, minTrial/2)
	other.weigh(1, minTrial/2-2)
	s.latest()
	s.sees(other.latest(), map[string]string{
		"/entries/0/status": "applied", "/entries/0/measured/0/verdict": "measuring",
		"/entries/0/measured/0/since/calls":  fmt.Sprint(minTrial - 1),
		"/entries/0/measured/0/before/calls": "42", "/entries/0/measured/0/before/calls_success": "40",
	})
	var both sync.WaitGroup
	for _, one := range []*shops{s, other} {
		both.Go(func() {
			one.weigh(0, 1)
			one.latest()
		})
	}
	both.Wait()
	for _, one := range []*shops{s, other} {
		m := one.latest()
		one.sees(m, map[string]string{
			"/entries/0/refinement_id": id, "/entries/0/status": "rolled_back",
			"/entries/0/rollback_available": "false", "/entries/0/measured/0/verdict": "worse",
			"/entries/0/measured/0/since/calls_success": "1", "/entries/1/refinement_id": "",
		})
		note := m.Get("/entries/0/measured/0/note")
		assert.That(t, strings.Contains(note, "calls succeeded since, and 40 of 42 before"), "the note says %q", note)
		hosttest.Eventually(t, "the description that was before",
			func() bool { return one.described() == "Weigh things." })
	}
	n := strings.Count(s.log.String()+other.log.String(), "does worse than what was before")
	assert.That(t, n == 1 && strings.Contains(s.log.String()+other.log.String(), id), "logged %d times:\n%s\n%s", n,
		s.log, other.log)
	v := s.review(textEdit)
	assert.That(t, strings.Contains(strings.Join(v.Reasons, "\n"), "was rolled back once"), "the review says %+v", v)
}

// TestTrials: a trial can end in other ways as well, each with its own verdict.
func TestTrials(t *testing.T) {
	begin := func(t *testing.T) (*shops, string) {
		s := newShop(t, newFile(t))
		s.stage.calls("weigh", 100, 10)
		return s, s.applied(`{"component":"weigh","edits":[{"target":"weight","to":1.5}]}`)
	}
	verdict := func(s *shops, want map[string]string) {
		s.t.Helper()
		s.sees(s.latest(), want)
	}
	t.Run("kept", func(t *testing.T) {
		s, _ := begin(t)
		s.stage.calls("weigh", maxTrial-50, 49)
		verdict(s, map[string]string{"/entries/0/measured/0/verdict": "measuring"})
		s.stage.calls("weigh", 1, 0)
		verdict(s, map[string]string{
			"/entries/0/measured/0/verdict":     "kept",
			"/entries/0/measured/0/since/calls": fmt.Sprint(maxTrial), "/entries/0/status": "applied",
		})
		s.stage.calls("weigh", 0, 500)
		verdict(s, map[string]string{
			"/entries/0/measured/0/since/calls": fmt.Sprint(maxTrial),
			"/entries/0/status":                 "applied",
		})
		s.applied(`{"component":"weigh","edits":[{"target":"weight","to":1.2}]}`)
		verdict(s, map[string]string{"/entries/0/measured/0/before/calls": fmt.Sprint(maxTrial)})
	})
	t.Run("feedback", func(t *testing.T) {
		s := newShop(t, newFile(t))
		s.weigh(20, 0)
		s.rateTurns("weigh", 0, 80, 0.9)
		s.applied(textEdit)
		s.rateTurns("weigh", 0, 1, 0.8) // changes the rating of a call from before
		s.rateTurns("weigh", 100, 80, -0.9)
		s.weigh(minTrial, 0)
		verdict(s, map[string]string{
			"/entries/0/measured/0/verdict":              "worse",
			"/entries/0/measured/0/since/feedback_count": "80", "/entries/0/status": "rolled_back",
		})
	})
	t.Run("changed meanwhile", func(t *testing.T) {
		s, id := begin(t)
		must.OK(t, s.store.Write(t.Context(), func(tx *store.Tx) error {
			return weightOf("tool", "weigh").write(tx, &setting{Weight: new(3.0), Strategy: "ucb1", UpdatedAt: 1})
		}))
		s.stage.calls("weigh", 0, minTrial)
		verdict(s, map[string]string{
			"/entries/0/refinement_id": id, "/entries/0/measured/0/verdict": "left alone",
			"/entries/0/status": "applied",
		})
		note := s.latest().Get("/entries/0/measured/0/note")
		assert.That(t, strings.Contains(note, "it stays: it was changed since: the weight of the tool \"weigh\" is "+
			"3 by now"), "the note says %q", note)
		s.plugin.forgetWeights()
		w := s.plugin.Weight("tool", "weigh")
		assert.That(t, w == 3, "the weight is %v", w)
	})
	t.Run("the last one is at fault", func(t *testing.T) {
		s, first := begin(t)
		s.stage.calls("weigh", 27, 3)
		second := s.applied(`{"component":"weigh","edits":[{"target":"setting","name":"timeout","to":1}]}`)
		verdict(s, map[string]string{"/entries/0/measured/0/before/calls": "30"})
		s.stage.calls("weigh", 0, minTrial)
		verdict(s, map[string]string{
			"/entries/0/refinement_id": second, "/entries/0/measured/0/verdict": "worse",
			"/entries/1/refinement_id": first, "/entries/1/measured/0/verdict": "measuring",
			"/entries/1/measured/0/since/calls": "30",
		})
	})
	t.Run("by hand", func(t *testing.T) {
		s, id := begin(t)
		s.stage.calls("weigh", 3, 0)
		s.latest()
		s.rolledBack(id)
		s.stage.calls("weigh", 0, 100)
		verdict(s, map[string]string{
			"/entries/0/measured/0/verdict":     "rolled back",
			"/entries/0/measured/0/since/calls": "3",
		})
	})
}

// TestPlansOfTime: a plan doubles the time limit of a tool that uses up its time and fails.
func TestPlansOfTime(t *testing.T) {
	r := newRefiner(t)
	r.calls("slow", 0, 30) // each takes two seconds
	if proposals, _ := r.plan("slow"); strings.Contains(fmt.Sprint(proposals), "timeout") {
		t.Errorf("with its own limit: %s", proposals)
	}
	r.applied(`{"component":"slow","edits":[{"target":"setting","name":"timeout","to":2}]}`)
	proposals, _ := r.plan("slow")
	at := strings.Index(fmt.Sprintf("%s", proposals), `"name":"timeout","from":2,"to":4`)
	assert.That(t, at >= 0, "%s", proposals)
	r.applied(`{"component":"slow","edits":[{"target":"setting","name":"timeout","to":20}]}`)
	if proposals, _ := r.plan("slow"); strings.Contains(fmt.Sprintf("%s", proposals), "timeout") {
		t.Errorf("with time left: %s", proposals)
	}
}

// TestStoreOfAnOlderBuild: a store of an older build keeps its refinements, and refinements that are applied later are
// measured.
func TestStoreOfAnOlderBuild(t *testing.T) {
	path := newFile(t)
	old := stores.Older(t, Part(), 2)
	s := stores.Open(t, path, old)
	must.OK(t, s.Write(t.Context(), func(tx *store.Tx) (err error) {
		for _, row := range []string{
			`INSERT INTO learning_components (kind, name, calls, successes) VALUES ('tool', 'grep', 30, 30)`,
			`INSERT INTO learning_settings (kind, component, name, updated_at, value) VALUES ('tool', 'grep', 'timeout', 1, '5')`,
			`INSERT INTO learning_refinements (id, proposal_id, applied_at, proposal) VALUES ('0123456789ab', '', 1, '{"component":"grep","kind":"tool","edits":[]}')`,
			`INSERT INTO learning_weights (kind, component, updated_at, weight, strategy) VALUES ('tool', 'grep', 1, 1.1, 'refinement')`,
			`INSERT INTO learning_edits (refinement, place, target, kind, component, name, before, after) VALUES (1, 0, 'setting', 'tool', 'grep', 'timeout', 'null', '{"value":5,"updated_at":1}'),
				(1, 1, 'weight', 'tool', 'grep', 'routing_weight', '{"weight":1.5,"strategy":"ucb1","updated_at":1}', '{"weight":1.1,"strategy":"refinement","updated_at":1}')`,
		} {
			if _, err = tx.Exec(row); err != nil {
				return err
			}
		}
		return nil
	}))
	must.OK(t, s.Close())
	n := newShop(t, path)
	o := n.plugin.Overrides(host.KindTool)["grep"]
	assert.That(t, o != nil && o.Timeout == 5*time.Second, "%+v", o)
	assert.Equal(t, n.plugin.Weight(host.KindTool, "grep"), 1.1, "the weight")
	n.sees(n.latest(), map[string]string{
		"/entries/0/rollback_available": "true", "/entries/0/measured": "[]",
		"/entries/0/edits/0/version": "0",
	})
	n.rolledBack("0123456789ab")
	n.plugin.forgetWeights()
	assert.Equal(t, n.plugin.Weight(host.KindTool, "grep"), 1.5, "the weight that was before")
	n.applied(`{"component":"grep","edits":[{"target":"setting","name":"timeout","to":6}]}`)
	n.sees(n.latest(), map[string]string{"/entries/0/measured/0/before/calls": "30", "/entries/0/edits/0/version": "1"})
}
