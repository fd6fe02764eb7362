package env

import (
	"fmt"
	"strings"
	"testing"

	"a2e/protocol"
)

// What an action may be, in both spellings, with and without a schema of its own.
func TestActions(t *testing.T) {
	for _, tc := range []struct {
		env, action string
		code        protocol.ErrorCode
		path        string // of the first problem; "" = none
		say         string
	}{
		{env: "counter", action: `{"type":"inc"}`},
		{env: "counter", action: ` { "type" : "i\u006ec" } `},
		{env: "counter", action: `{"action_type":"inc"}`},
		{env: "counter", action: `{"action_type":"inc","payload":{"x":[1]}}`},
		{env: "counter", action: `{"type":"inc","action_type":"inc"}`},
		{env: "counter", action: `{"type":"inc","note":"more than asked for"}`},
		{"counter", `{"type":"jump"}`, protocol.CodeUnknownAction, "", "inc, dec, noop"},
		{"counter", `{"action_type":"jump"}`, protocol.CodeUnknownAction, "", `"jump`},
		{"counter", `{}`, protocol.CodeUnknownAction, "", `no \"type\"`},
		{"counter", `{"payload":{}}`, protocol.CodeUnknownAction, "", "inc, dec, noop"},
		{"counter", `{"type":3}`, protocol.CodeSchemaViolation, "/action/type", "string"},
		{"counter", `{"type":null}`, protocol.CodeSchemaViolation, "/action/type", "string"},
		{"counter", `{"type":"inc","action_type":"dec"}`, protocol.CodeSchemaViolation, "/action/action_type", "other spelling"},
		{"counter", `{"type":"inc","payload":[]}`, protocol.CodeSchemaViolation, "/action/payload", "object"},
		{"counter", `"inc"`, protocol.CodeSchemaViolation, "/action", "object"},
		{env: "room", action: `{"type":"say","text":"hello"}`},
		{env: "room", action: `{"action_type":"say","payload":{"text":"hello, all of you"}}`},
		{"room", `{"type":"jump"}`, protocol.CodeUnknownAction, "", "say, wait, push"},
		{"room", `{"text":"hello"}`, protocol.CodeUnknownAction, "", "say, wait, push"},
		{"room", `{"type":"say","text":"longer than ten"}`, protocol.CodeSchemaViolation, "/action/text", "maxLength"},
		{"room", `{"type":"push","n":0}`, protocol.CodeSchemaViolation, "/action/n", "minimum"},
		{"room", `{"type":"push","n":1.5}`, protocol.CodeSchemaViolation, "/action/n", "integer"},
		{"room", `{"type":"say","a/b~c":1}`, protocol.CodeSchemaViolation, "/action/a~1b~0c", "is not known"},
		{"room", `{"type":"say","payload":3}`, protocol.CodeSchemaViolation, "/action/payload", "object"},
		{"room", `{"type":"say","payload":{"text":3}}`, protocol.CodeSchemaViolation, "/action/payload/text", "string"},
	} {
		t.Run(tc.env+tc.action, func(t *testing.T) {
			s := newStage(t, pluginOf(t, Options{}, Env{}), newRoom(t, Options{}, Env{}).plugin)
			id := s.begin(tc.env)
			for typ, fields := range map[protocol.Type]string{
				protocol.TypeEnvStepReq:      stepFields(id, tc.action),
				protocol.TypeEnvBatchStepReq: fmt.Sprintf(`{"episode_ids":[%q],"actions":[%s]}`, id, tc.action),
			} {
				m := s.Call(typ, fields)
				path := tc.path
				if typ == protocol.TypeEnvBatchStepReq {
					path = strings.Replace(path, "/action", "/actions/0", 1)
				}
				if m.Code != tc.code || m.Problem() != path || !strings.Contains(string(m.Line), tc.say) {
					t.Errorf("%s, want %s at %q saying %q", m.Line, tc.code, path, tc.say)
				}
			}
		})
	}
}

// What a world gets of an action.
func TestWhatAWorldGets(t *testing.T) {
	for _, tc := range []struct {
		types                 []string
		action, kind, payload string
	}{
		{[]string{"go"}, `{"type":"go"}`, "go", `{}`},
		{[]string{"go"}, `{"type":"go","payload":{"a":1}}`, "go", `{"a":1}`},
		{[]string{"go"}, `{"action_type":"go","payload":{}}`, "go", `{}`},
		{[]string{"go"}, `{"x":[1,2],"type":"go","\u0079":"\n"}`, "go", `{"x":[1,2],"y":"\n"}`},
		{nil, `{"force":0.5}`, "", `{"force":0.5}`},
		{nil, `{"type":"go","force":0.5}`, "", `{"type":"go","force":0.5}`},
		{nil, `{"payload":{"force":0.5}}`, "", `{"force":0.5}`},
		{nil, `{}`, "", `{}`},
	} {
		s := &actionSpace{types: tc.types}
		obj, err := protocol.ParseObject([]byte(tc.action))
		if err != nil {
			t.Fatal(err)
		}
		a, wrong := s.parse(obj)
		if wrong != nil || a.Type != tc.kind || string(a.Payload.Raw()) != tc.payload || string(a.Whole.Raw()) != tc.action {
			t.Errorf("%s: %q %s %s %+v", tc.action, a.Type, a.Payload.Raw(), a.Whole.Raw(), wrong)
		}
	}
}
