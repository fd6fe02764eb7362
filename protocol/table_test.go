package protocol_test

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"a2e/protocol"
)

func TestTableIsMessagesJSON(t *testing.T) {
	wire, table := loadWire(t), protocol.Types()
	if len(wire) != 136 || len(table) != len(wire) {
		t.Fatalf("%d rows in messages.json, %d in the table; both should be 136", len(wire), len(table))
	}
	for i, w := range wire {
		required := []string{}
		for _, name := range w.Schema["required"].([]any) {
			if name != "type" {
				required = append(required, name.(string))
			}
		}
		want := fmt.Sprint(w.Type, "|", w.Capability, "|", w.Direction, "|", required)
		row := table[i]
		got := fmt.Sprint(row.Type, "|", row.Capability, "|", row.Direction, "|", row.Required)
		if got != want {
			t.Errorf("row %d is %s, should be %s", i, got, want)
		}
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
			if want != "" && row.Type != protocol.TypeShutdown {
				t.Errorf("%s has no answer", row.Type)
			}
			continue
		}
		answered[row.Response] = true
		if answer, ok := protocol.Lookup(row.Response); !ok || answer.Direction != want {
			t.Errorf("%s is answered by %s, which is no %q", row.Type, row.Response, want)
		}
	}
	for _, row := range protocol.Types() {
		if strings.HasSuffix(string(row.Direction), "response") && !answered[row.Type] {
			t.Errorf("%s answers nothing", row.Type)
		}
	}
}

func TestLookup(t *testing.T) {
	for _, row := range protocol.Types() {
		info, ok := protocol.LookupBytes([]byte(row.Type))
		if !ok || info.Type != row.Type || protocol.Canonical(row.Type) != row.Type {
			t.Errorf("%s is not found as itself", row.Type)
		}
		if reflect.TypeOf(info.New()) != reflect.TypeOf(row.New()) || info.New() == nil {
			t.Errorf("%s: New of the table and of Lookup differ", row.Type)
		}
	}
	for alias, want := range map[protocol.Type]protocol.Type{
		"env/spaces/req": "env/space/req", "env/spaces/resp": "env/space/resp",
		"mcp/sampling/req": "mcp/sample/req", "mcp/sampling/resp": "mcp/sample/resp",
		"mcp/roots/list/req": "mcp/root/list/req", "mcp/roots/list/resp": "mcp/root/list/resp",
	} {
		if info, ok := protocol.Lookup(alias); !ok || info.Type != want || protocol.Canonical(alias) != want {
			t.Errorf("%s should be another name of %s", alias, want)
		}
	}
	for _, unknown := range []string{"", "cancel", "PING", "ping ", "ping\x00", "tool/call", "env/plans/req"} {
		if info, ok := protocol.LookupBytes([]byte(unknown)); ok || info != nil {
			t.Errorf("%q found %s", unknown, info.Type)
		}
	}
	key := []byte("tool/call/req")
	if n := testing.AllocsPerRun(100, func() { protocol.LookupBytes(key) }); n != 0 {
		t.Errorf("LookupBytes allocates %v times", n)
	}
}

// TestZeroValues guards peers with strict models: what the schema does not let be
// null never is, lists and maps above all.
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

// setEnums returns the status of an answer, which has no zero value, a value.
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
		{protocol.ToolParameter{Enum: []string{}, Properties: map[string]protocol.ToolParameter{}},
			`{"name":"","type":"","description":"","required":false,"enum":[],"properties":{}}`},
		{protocol.PastEvent{}, `{"kind":"","data":{},"seq":0}`},
		{protocol.ProcStatusResponse{}, `{"proc_id":"","status":"","error":""}`},
		{protocol.ProcStatusResponse{Procs: []protocol.ProcInfo{}}, `{"proc_id":"","status":"","error":"","procs":[]}`},
		{protocol.Cancel{ReqID: "7"}, `{"req_id":"7"}`},
		{protocol.EventOf[protocol.Artifact]{Kind: "artifact", Data: protocol.Artifact{Chunk: []byte("hi")}},
			`{"kind":"artifact","data":{"name":"","mime":"","chunk":"aGk=","final":false},"seq":0}`},
	} {
		got, err := protocol.AppendJSON(nil, tt.body)
		if err != nil || string(got) != tt.want {
			t.Errorf("%T is %s (%v), should be %s", tt.body, got, err, tt.want)
		}
	}
}

func TestDefaultsInsideLists(t *testing.T) {
	obj, err := protocol.ParseObject([]byte(`{"feedbacks":[{"polarity":"odd","rated_turn":null},{"polarity":"x","rated_turn":null,"confidence":0}]}`))
	if err != nil {
		t.Fatal(err)
	}
	var req protocol.LearnFeedbackRequest
	if err := protocol.Decode(obj, []string{"feedbacks"}, &req); err != nil {
		t.Fatal(err)
	}
	want := protocol.Feedback{Polarity: "odd", Dimension: "helpfulness", Confidence: 1, Source: "human"}
	if diff := cmp.Diff(want, req.Feedbacks[0]); diff != "" {
		t.Error(diff)
	}
	if req.Feedbacks[1].Confidence != 0 {
		t.Error("a default took the place of a value sent")
	}
	obj, err = protocol.ParseObject([]byte(`{"feedbacks":[{"score":"high"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	err = protocol.Decode(obj, nil, &req)
	if err == nil || !strings.Contains(err.Error(), "/feedbacks/0/score") {
		t.Errorf("the error should name the place: %v", err)
	}
}

// TestEnums holds the constants of closed enums against the schemas.
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
		"A2ECapability": texts(protocol.CapSkill, protocol.CapTools, protocol.CapToolkits, protocol.CapEnv, protocol.CapProc,
			protocol.CapMemory, protocol.CapLearning, protocol.CapChains, protocol.CapMCP, protocol.CapMultiAgent,
			protocol.CapPlanning, protocol.CapTest),
		"SkillStatus":       texts(protocol.SkillCreated, protocol.SkillBlocked, protocol.SkillPublished, protocol.SkillArchived),
		"FeedbackPolarity":  texts(protocol.PolarityPositive, protocol.PolarityNegative, protocol.PolarityNeutral, protocol.PolarityCorrective),
		"FeedbackDimension": texts(protocol.DimensionCorrectness, protocol.DimensionHelpfulness, protocol.DimensionSafety, protocol.DimensionTone, protocol.DimensionPlanQuality),
		"FeedbackSource":    texts(protocol.SourceHuman, protocol.SourceEnv, protocol.SourceSelf),
		"AdaptStrategy":     texts(protocol.StrategyPPO, protocol.StrategyUCB1, protocol.StrategyEpsilonGreedy, protocol.StrategySoftmax, protocol.StrategyCustom),
		"SubagentStatus": texts(protocol.SubagentReady, protocol.SubagentRunning, protocol.SubagentWaiting, protocol.SubagentCompleted,
			protocol.SubagentFailed, protocol.SubagentCancelled, protocol.SubagentTerminated),
		"MemoryScope": texts(protocol.MemoryShared, protocol.MemoryIsolated, protocol.MemorySnapshot),
		"ToolScope":   texts(protocol.ToolsShared, protocol.ToolsRestricted, protocol.ToolsIsolated),
	}
	for _, lists := range []map[string][]string{got, want} {
		for _, list := range lists {
			slices.Sort(list)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func texts[T ~string](values ...T) []string {
	out := make([]string, len(values))
	for i, v := range values {
		out[i] = string(v)
	}
	return out
}
