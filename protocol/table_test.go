package protocol_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

func TestTableIsMessagesJSON(t *testing.T) {
	wire, table := loadWire(t), protocol.Types()
	must.That(t, len(wire) == 142 && len(table) == len(wire),
		"%d rows in messages.json, %d in the table; both should be 142", len(wire), len(table))
	for i, w := range wire {
		required := []string{}
		for _, name := range w.Schema["required"].([]any) {
			optional := w.Type == string(protocol.TypeTaskUpdateReq) &&
				name == "task_id" // a claim without a task_id takes the next ready task
			if name != "type" && !optional {
				required = append(required, name.(string))
			}
		}
		want := fmt.Sprint(w.Type, "|", w.Capability, "|", w.Direction, "|", required)
		row := table[i]
		got := fmt.Sprint(row.Type, "|", row.Capability, "|", row.Direction, "|", row.Required)
		assert.Equal(t, got, want, "row %d", i)
	}
}

func TestAnswersOfRequests(t *testing.T) {
	answered := map[protocol.Type]bool{protocol.TypeError: true}
	for _, row := range protocol.Types() {
		want := protocol.Direction("")
		switch row.Direction {
		case protocol.AgentRequest:
			want = protocol.HostResponse
		case protocol.HostRequest:
			want = protocol.AgentResponse
		}
		if row.Response == "" {
			assert.That(t, want == "" || row.Type == protocol.TypeShutdown, "%s has no answer", row.Type)
			continue
		}
		answered[row.Response] = true
		answer, ok := protocol.Lookup(row.Response)
		assert.That(t, ok && answer.Direction == want, "%s is answered by %s, which is no %q", row.Type, row.Response,
			want)
	}
	for _, row := range protocol.Types() {
		assert.That(t, !strings.HasSuffix(string(row.Direction), "response") || answered[row.Type],
			"%s answers nothing", row.Type)
	}
}

// TestOrderOfRequestsWithoutSlot: requests that take no slot overtake requests that wait for a slot. So they
// may share an order key only with claims of the access Follows.
func TestOrderOfRequestsWithoutSlot(t *testing.T) {
	for _, slotless := range protocol.Types() {
		for _, other := range protocol.Types() {
			if !slotless.NoSlot || other.NoSlot || other.Type == protocol.TypeHandshakeReq {
				continue
			}
			for _, claim := range slotless.Order {
				for _, held := range other.Order {
					overlap := strings.HasPrefix(claim.Key, held.Key) || strings.HasPrefix(held.Key, claim.Key)
					assert.That(t, !overlap || held.Access == protocol.Follows, "%s and %s share %s", slotless.Type,
						other.Type, claim.Key)
				}
			}
		}
	}
}

// TestClaimOf: a claim with a field has a key for each name in the field, and without a name the key of
// all things.
func TestClaimOf(t *testing.T) {
	claim := protocol.Claim{Key: "env/", Field: "id", Access: protocol.Exclusive}
	for body, want := range map[string]string{
		`{"id":"a"}`: "[env/a/]", `{"id":["\u0061","b"]}`: "[env/a/ env/b/]", `{}`: "[env/]", `{"id":""}`: "[env/]",
		`{"id":[]}`: "[env/]", `{"id":7}`: "[env/]",
	} {
		obj, err := protocol.ParseObject([]byte(body))
		must.OK(t, err)
		var keys []string
		for _, c := range claim.Of(obj) {
			assert.That(t, c.Access == protocol.Exclusive && c.Field == "", "%s: %v", body, c)
			keys = append(keys, c.Key)
		}
		assert.Equal(t, fmt.Sprint(keys), want, "%s", body)
	}
}

func TestLookup(t *testing.T) {
	for _, row := range protocol.Types() {
		info, ok := protocol.Lookup(row.Type)
		assert.That(t, ok && info.Type == row.Type && protocol.Canonical(row.Type) == row.Type,
			"%s is not found as itself", row.Type)
		assert.That(t, reflect.TypeOf(info.New()) == reflect.TypeOf(row.New()) && info.New() != nil,
			"%s: New of the table and of Lookup differ", row.Type)
	}
	for alias, want := range map[protocol.Type]protocol.Type{
		"env/spaces/req": "env/space/req", "env/spaces/resp": "env/space/resp",
		"mcp/sampling/req": "mcp/sample/req", "mcp/sampling/resp": "mcp/sample/resp",
		"mcp/roots/list/req": "mcp/root/list/req", "mcp/roots/list/resp": "mcp/root/list/resp",
	} {
		info, ok := protocol.Lookup(alias)
		assert.That(t, ok && info.Type == want && protocol.Canonical(alias) == want, "%s should be another name of %s",
			alias, want)
	}
	for _, unknown := range []protocol.Type{"", "cancel", "PING", "ping ", "ping\x00", "tool/call", "env/plans/req"} {
		if info, ok := protocol.Lookup(unknown); ok || info != nil {
			t.Errorf("%q found %s", unknown, info.Type)
		}
	}
}

// TestZeroValues: a zero value has null only where its schema allows null, above all in lists and maps,
// as peers with strict models refuse it elsewhere.
func TestZeroValues(t *testing.T) {
	for _, w := range loadWire(t) {
		info, _ := protocol.Lookup(protocol.Type(w.Type))
		body := info.New()
		if d, ok := body.(protocol.Defaulter); ok {
			d.SetDefaults()
		}
		setEnums(reflect.ValueOf(body).Elem())
		w.validate(t, message(t, info, body))
	}
}

// setEnums sets the status of an answer, which has no valid zero value.
func setEnums(v reflect.Value) {
	for i := range v.NumField() {
		if f := v.Field(i); f.Type() == reflect.TypeFor[protocol.SubagentStatus]() {
			f.SetString(string(protocol.SubagentReady))
		}
	}
}

func TestNullsAndEmpties(t *testing.T) {
	for _, tt := range []struct {
		body any
		want string
	}{
		{protocol.ToolListResponse{}, `{"tools":[]}`},
		{protocol.MemoryInitRequest{}, `{"namespace":"","scope":{},"metadata":{}}`},
		{protocol.MemoryStoreResponse{Stored: []protocol.Object{{}}}, `{"stored":[{}],"errors":[]}`},
		{protocol.EnvRenderResponse{}, `{"render":null}`},
		{protocol.EnvPlanRequest{}, `{"episode_id":null,"state":null}`},
		{protocol.ToolParameter{}, `{"name":"","type":"","description":"","required":false,"enum":null,"properties":null}`},
		{
			protocol.ToolParameter{Enum: []string{}, Properties: map[string]protocol.ToolParameter{}},
			`{"name":"","type":"","description":"","required":false,"enum":[],"properties":{}}`,
		},
		{protocol.PastEvent{}, `{"kind":"","data":{},"seq":0}`},
		{protocol.ProcStatusResponse{}, `{"proc_id":"","status":"","error":""}`},
		{protocol.ProcStatusResponse{Procs: []protocol.ProcInfo{}}, `{"proc_id":"","status":"","error":"","procs":[]}`},
		{protocol.Cancel{ReqID: "7"}, `{"req_id":"7"}`},
		{
			protocol.EventOf[protocol.Artifact]{Kind: "artifact", Data: protocol.Artifact{Chunk: []byte("hi")}},
			`{"kind":"artifact","data":{"name":"","mime":"","chunk":"aGk=","final":false},"seq":0}`,
		},
	} {
		got, err := protocol.AppendJSON(nil, tt.body)
		assert.That(t, err == nil && string(got) == tt.want, "%T is %s (%v), should be %s", tt.body, got, err, tt.want)
	}
}

func TestDefaultsInsideLists(t *testing.T) {
	obj, err := protocol.ParseObject([]byte(`{"feedbacks":[{"polarity":"odd","rated_turn":null},{"polarity":"x","rated_turn":null,"confidence":0}]}`))
	must.OK(t, err)
	var req protocol.LearnFeedbackRequest
	must.OK(t, protocol.Decode(obj, []string{"feedbacks"}, &req))
	want := protocol.Feedback{Polarity: "odd", Dimension: "helpfulness", Confidence: 1, Source: "human"}
	assert.Diff(t, want, req.Feedbacks[0])
	assert.Equal(t, req.Feedbacks[1].Confidence, 0, "a default took the place of a value sent")
	obj = must.Get(protocol.ParseObject([]byte(`{"feedbacks":[{"score":"high"}]}`)))(t)
	err = protocol.Decode(obj, nil, &req)
	assert.Fails(t, err, "/feedbacks/0/score", "the error should name the place")
}

// TestEnums: the constants of closed enums are those of the schemas.
func TestEnums(t *testing.T) {
	want := map[string][]string{}
	for _, w := range loadWire(t) {
		defs, _ := w.Schema["$defs"].(map[string]any)
		for name, def := range defs {
			if values, ok := def.(map[string]any)["enum"].([]any); ok {
				want[name] = nil
				for _, v := range values {
					want[name] = append(want[name], v.(string))
				}
			}
		}
	}
	got := map[string][]string{
		"A2ECapability": texts(protocol.CapSkill, protocol.CapTools, protocol.CapToolkits, protocol.CapEnv,
			protocol.CapProc,
			protocol.CapMemory, protocol.CapLearning, protocol.CapChains, protocol.CapMCP, protocol.CapMultiAgent,
			protocol.CapPlanning, protocol.CapTest),
		"SkillStatus": texts(protocol.SkillCreated, protocol.SkillBlocked, protocol.SkillPublished,
			protocol.SkillArchived),
		"FeedbackPolarity": texts(protocol.PolarityPositive, protocol.PolarityNegative, protocol.PolarityNeutral,
			protocol.PolarityCorrective),
		"FeedbackDimension": texts(protocol.DimensionCorrectness, protocol.DimensionHelpfulness,
			protocol.DimensionSafety, protocol.DimensionTone, protocol.DimensionPlanQuality),
		"FeedbackSource": texts(protocol.SourceHuman, protocol.SourceEnv, protocol.SourceSelf),
		"AdaptStrategy": texts(protocol.StrategyPPO, protocol.StrategyUCB1, protocol.StrategyEpsilonGreedy,
			protocol.StrategySoftmax, protocol.StrategyCustom),
		"SubagentStatus": texts(protocol.SubagentReady, protocol.SubagentRunning, protocol.SubagentWaiting,
			protocol.SubagentCompleted,
			protocol.SubagentFailed, protocol.SubagentCancelled, protocol.SubagentTerminated),
		"MemoryScope": texts(protocol.MemoryShared, protocol.MemoryIsolated, protocol.MemorySnapshot),
		"ToolScope":   texts(protocol.ToolsShared, protocol.ToolsRestricted, protocol.ToolsIsolated),
	}
	for _, lists := range []map[string][]string{got, want} {
		for _, list := range lists {
			slices.Sort(list)
		}
	}
	assert.Diff(t, want, got)
}

func texts[T ~string](values ...T) []string {
	out := make([]string, len(values))
	for i, v := range values {
		out[i] = string(v)
	}
	return out
}

var update = flag.Bool("update", false, "write testdata/wire/samples.ndjson anew")

const samplesFile = "../testdata/wire/samples.ndjson"

// TestSamples: a full message of each type fits its schema, can be read back, and is the same as in
// samples.ndjson.
func TestSamples(t *testing.T) {
	var all []byte
	for i, w := range loadWire(t) {
		info, _ := protocol.Lookup(protocol.Type(w.Type))
		body := info.New()
		fill(t, w.Type, "", reflect.ValueOf(body).Elem())
		line := sampleLine(t, i, w, body)
		w.validate(t, line)
		all = append(append(all, line...), '\n')

		obj := must.Get(protocol.ParseObject(line))(t)
		back := info.New()
		if err := protocol.Decode(obj, info.Required, back); err != nil {
			t.Errorf("%s: %v\n%s", w.Type, err, line)
			continue
		}
		again := sampleLine(t, i, w, back)
		assert.That(t, bytes.Equal(again, line), "%s came back as\n%s\nshould be\n%s", w.Type, again, line)
	}
	if *update {
		must.OK(t, os.WriteFile(samplesFile, all, 0o644))
	}
	want := must.Get(os.ReadFile(samplesFile))(t)
	assert.That(t, bytes.Equal(all, want), "%s is out of date: run this test with -update", samplesFile)
}

func sampleLine(t *testing.T, i int, w wireType, body any) []byte {
	t.Helper()
	var reqID protocol.Value
	if w.Schema["properties"].(map[string]any)["req_id"] != nil {
		reqID = protocol.Value(fmt.Sprintf(`"%032x"`, 0xa2e0000+i))
	}
	id := fmt.Appendf(nil, "%032x", i+1)
	line := protocol.AppendHeader(nil, protocol.Type(w.Type), id, time.Unix(1767225600+int64(i), 0), reqID)
	line, err := protocol.AppendBody(line, body)
	must.That(t, err == nil, "%s: %v", w.Type, err)
	return line
}

// fill sets every field to a value that a real message could have.
func fill(t *testing.T, msg, name string, v reflect.Value) {
	t.Helper()
	switch v.Interface().(type) {
	case protocol.Object:
		obj := must.Get(protocol.ParseObject([]byte(sampleObject(msg, name))))(t)
		v.Set(reflect.ValueOf(obj))
		return
	case jsontext.Value:
		v.SetBytes([]byte(`{"text":"hello","n":9007199254740993}`))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		fillStruct(t, msg, v)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, msg, name, v.Elem())
	case reflect.Slice:
		switch name {
		case "cmd":
			v.Set(reflect.ValueOf([]string{"echo", "hello"}))
			return
		case "agent_caps":
			v.Set(reflect.ValueOf([]protocol.Capability{
				"skill", "tools", "toolkits", "env", "proc", "memory",
				"learning", "chains", "mcp", "multi_agent", "planning", "test",
			}))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(t, msg, name, v.Index(0))
	case reflect.Array:
		v.Index(1).SetInt(5)
	case reflect.Map:
		fillMap(t, msg, name, v)
	case reflect.String:
		v.SetString(sampleText(msg, name, v.Type()))
	case reflect.Bool:
		v.SetBool(name != "streaming" && name != "terminal")
	case reflect.Int, reflect.Int64:
		v.SetInt(5)
	case reflect.Float64:
		v.SetFloat(0.5)
	default:
		t.Fatalf("%s: nothing to put into %q of %v", msg, name, v.Type())
	}
}

func fillStruct(t *testing.T, msg string, v reflect.Value) {
	t.Helper()
	for i := range v.NumField() {
		field := v.Type().Field(i)
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if !field.IsExported() || name == "-" {
			continue
		}
		fill(t, msg, name, v.Field(i))
	}
}

func fillMap(t *testing.T, msg, name string, v reflect.Value) {
	t.Helper()
	v.Set(reflect.MakeMap(v.Type()))
	elem := reflect.New(v.Type().Elem()).Elem()
	switch elem.Kind() {
	case reflect.Interface:
		elem.Set(reflect.ValueOf("hello"))
	case reflect.String:
		elem.SetString("hello")
	default: // ToolParameter contains itself: one level is enough
		elem.FieldByName("Name").SetString("inner")
		elem.FieldByName("Type").SetString("string")
	}
	v.SetMapIndex(reflect.ValueOf("text"), elem)
}

// sampleText returns the text of a field by its name.
func sampleText(msg, name string, typ reflect.Type) string {
	if typ == reflect.TypeFor[protocol.SubagentStatus]() {
		return string(protocol.SubagentRunning)
	}
	if typ == reflect.TypeFor[protocol.SkillStatus]() {
		return string(protocol.SkillPublished)
	}
	switch name {
	case "strategy":
		if msg == "SUBAGENT_MERGE_REQ" {
			return "hierarchical_summary"
		}
	case "type":
		return sampleType(msg)
	case "status":
		return sampleStatus(msg)
	case "auth_token", "reason", "error", "comment", "query", "cwd", "cursor", "filter_kind", "status_filter":
		return ""
	}
	if text, ok := sampleTexts()[name]; ok {
		return text
	}
	return strings.ReplaceAll(name, "_", "-") + "-1"
}

// sampleType returns the `type` of an object inside a message.
func sampleType(msg string) string {
	switch msg {
	case "tool/call/resp":
		return "tool/event"
	case "skill/call/resp":
		return "skill/event"
	case "env/batch_step/resp":
		return "env/step/resp"
	}
	return "string"
}

func sampleStatus(msg string) string {
	switch {
	case strings.HasPrefix(msg, "planning/"):
		return "backlog"
	case strings.HasPrefix(msg, "proc/"):
		return "running"
	}
	return "ok"
}

func sampleTexts() map[string]string {
	return map[string]string{
		"capability": "tools", "capabilities": "tools", "code": "tool_error", "error_code": "tool_error",
		"message": "a message", "kind": "status", "tool_name": "echo", "tools": "echo", "version": "1.0.0",
		"env_name": "counter", "mode": "text", "event_type": "changed", "stdin_mode": "pipe", "stream_type": "stdout",
		"signal": "SIGTERM", "state": "running", "data": "hello\n", "namespace": "default", "tier": "episodic",
		"polarity":  "corrective",
		"dimension": "helpfulness", "correction": "Paris", "source": "human", "strategy": "softmax",
		"scope": "baseline", "autoreset": "next_step", "action": "claim",
		"risk_level": "low", "phase": "start", "uri": "file:///README.md", "method": "notifications/message",
		"include_context": "none", "role": "assistant", "columns": "backlog", "model": "default",
		"memory_scope": "shared", "tool_scope": "restricted", "title": "write the test",
	}
}

// sampleObject returns a free object by the name of its field.
func sampleObject(msg, name string) string {
	if text, ok := map[string]string{
		"arguments":     `{"text":"hello"}`,
		"action":        `{"type":"inc"}`,
		"actions":       `{"type":"inc"}`,
		"env":           `{"LANG":"C"}`,
		"entries":       `{"key":{"name":"capital"},"value":"Paris","tags":["geo"],"tier":"working"}`,
		"keys":          `{"name":"capital"}`,
		"nodes":         `{"id":"a","kind":"tool","name":"echo","input_map":{"text":"input.text"}}`,
		"initial_input": `{"text":"hello"}`,
		"config":        `{"server_id":"s1","command":["true"]}`,
		"messages":      `{"role":"user","content":{"type":"text","text":"hello"}}`,
		"content":       `{"type":"text","text":"hello"}`,
		"roots":         `{"uri":"file:///src","name":"src"}`,
	}[name]; ok {
		return text
	}
	return `{"note":"` + msg + `","n":9007199254740993}`
}
