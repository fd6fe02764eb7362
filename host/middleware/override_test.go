package middleware_test

import (
	"context"
	"crypto/sha256"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/protocol"
)

// foreign is a plugin whose answers are JSON that another program wrote.
type foreign struct{ answers map[protocol.Type]string }

func (f foreign) Info() host.PluginInfo {
	return host.PluginInfo{Name: "foreign", Also: []protocol.Capability{
		protocol.CapTools, protocol.CapSkill,
		protocol.CapMCP,
	}}
}

func (f foreign) Close(context.Context) error { return nil }

func (f foreign) Routes() []host.Route {
	var all []host.Route
	for t, answer := range f.answers {
		all = append(all, host.Raw(t, func(context.Context, protocol.Object, host.Emitter) (jsontext.Value, error) {
			return jsontext.Value(answer), nil
		}))
	}
	return append(all, host.Raw(protocol.TypeToolListReq, func(_ context.Context, obj protocol.Object,
		_ host.Emitter,
	) (jsontext.Value, error) {
		if deep, _ := obj.Get("include_deferred"); string(deep) != "true" {
			return jsontext.Value(`{"tools":[{"name":"a","description":"old a"},{"name":"b","description":"old b"}]}`),
				nil
		}
		return jsontext.Value(`{"tools":[{"name":"a","description":"old a"},{"name":"b","description":"old b"},{"name":"c","defer_loading":true},{"name":"d","defer_loading":true}]}`), nil
	}), host.Raw(protocol.TypeToolCallReq, func(ctx context.Context, obj protocol.Object,
		_ host.Emitter,
	) (jsontext.Value, error) {
		<-ctx.Done()
		return nil, protocol.Errorf(protocol.CodeToolError, "it had to stop").With("stdout", "so far")
	}))
}

// override returns an override of one text.
func override(name, of, to string) *host.Override {
	return &host.Override{Texts: map[string]host.Text{name: {Of: sha256.Sum256([]byte(of)), To: to}}}
}

// TestOverrides: the overrides of a component show in every list and call, whoever serves it, as long as the text is
// the one for which the override was made.
func TestOverrides(t *testing.T) {
	yes, no := true, false
	set := hosttest.Overrides{
		host.KindTool: {
			"a": override(host.TextDescription, "old a", "new a"), "b": {Deferred: &yes}, "c": {Deferred: &no},
			"slow": {Timeout: 20 * time.Millisecond}, "d": override(host.TextDescription, "another one", "never seen"),
		},
		host.KindSkill: {
			"s":       override(host.TextInstructions, "old s", "new s"),
			"changed": override(host.TextInstructions, "as it was", "never seen"),
		},
		host.KindPrompt: {
			"srv__p": {Texts: map[string]host.Text{
				host.TextDescription: override("", "old p", "new p").Texts[""],
				host.TextPrompt:      override("", "old text", "new text").Texts[""],
			}},
		},
	}
	answers := map[protocol.Type]string{
		protocol.TypeSkillDiscoverReq: `{"skills":[{"name":"s","status":"Published","instructions":"old s"},{"name":"changed","status":"Published","instructions":"as it is"},{"name":"long","status":"Published"}]}`,
		protocol.TypeMCPPromptListReq: `{"prompts":[{"server_id":"srv","name":"p","description":"old p"},{"server_id":"other","name":"p","description":"old p"}]}`,
		protocol.TypeMCPPromptGetReq:  `{"server_id":"srv","description":"old p","messages":[{"role":"user","content":{"type":"text","text":"old text"}}]}`,
	}
	seen := func(h *hosttest.Pair, typ protocol.Type, fields string, want map[string]string) {
		t.Helper()
		m := h.Call(typ, fields)
		for path, value := range want {
			assert.Equal(t, m.Get(path), value, "%s %s: %s is …, should be … in %s", typ, fields, path, m)
		}
	}
	h := hosttest.New(t, host.Options{Plugins: []host.Plugin{foreign{answers}, set}})
	h.Handshake()
	seen(h, protocol.TypeToolListReq, `{}`, map[string]string{
		"/tools/0/name": "a", "/tools/0/description": "new a",
		"/tools/1/name": "c", "/tools/1/defer_loading": "false", "/tools/2/name": "",
	})
	seen(h, protocol.TypeToolListReq, `{"include_deferred":true}`, map[string]string{
		"/tools/1/name":          "b",
		"/tools/1/defer_loading": "true", "/tools/1/description": "old b", "/tools/3/description": "",
	})
	seen(h, protocol.TypeSkillDiscoverReq, `{}`, map[string]string{
		"/skills/0/instructions": "new s",
		"/skills/1/instructions": "as it is", "/skills/2/instructions": "",
	})
	seen(h, protocol.TypeMCPPromptListReq, `{}`, map[string]string{
		"/prompts/0/description": "new p",
		"/prompts/1/description": "old p",
	})
	seen(h, protocol.TypeMCPPromptGetReq, `{"name":"p"}`, map[string]string{
		"/description":     "new p",
		"/messages/0/role": "user", "/messages/0/content/text": "new text", "/messages/0/content/type": "text",
	})
	seen(h, protocol.TypeMCPPromptGetReq, `{"name":"q"}`, map[string]string{
		"/description":             "old p",
		"/messages/0/content/text": "old text",
	})
	synctest.Test(t, func(t *testing.T) { // in a bubble no tool is late with its own error
		h := hosttest.Start(t, host.Options{Plugins: []host.Plugin{foreign{answers}, set}})
		h.Handshake()
		m := h.Refused(protocol.TypeToolCallReq, `{"tool_name":"slow","arguments":{}}`, protocol.CodeTimeout,
			`tool "slow" did not end within its own limit of 20ms`)
		assert.Equal(t, m.Get("/detail/stdout"), "so far", "what it had printed is gone: %s", m)
		h.Refused(protocol.TypeToolCallReq, `{"tool_name":"other","arguments":{},"timeout":1}`, protocol.CodeToolError,
			"it had to stop")
		h.Close()
	})
}

// TestCallsOutOfTimeAreNotCutShort: a call whose time was over counts as failed, whoever set the time. A call that
// was cancelled does not count.
func TestCallsOutOfTimeAreNotCutShort(t *testing.T) {
	late := protocol.Errorf(protocol.CodeTimeout, "its time was up")
	request, stop := context.WithCancelCause(t.Context()) // the way the host stops a request
	stop(context.DeadlineExceeded)
	within, cancel := context.WithTimeoutCause(t.Context(), -time.Second, late) // a call within a request
	defer cancel()
	below, cancel := context.WithCancel(within)
	defer cancel()
	cancelled, stop := context.WithCancelCause(t.Context())
	stop(protocol.Errorf(protocol.CodeCancelled, "enough"))
	for name, c := range map[string]struct {
		ctx  context.Context
		want bool
	}{
		"a request": {request, false}, "a call within": {within, false}, "below that": {below, false},
		"a cancel": {cancelled, true}, "nothing": {t.Context(), false},
	} {
		assert.Equal(t, host.CutShort(c.ctx), c.want, "%s", name)
	}
}
