package hosttest_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// kits is the smallest plugin that keeps the contract.
type kits struct{}

func (kits) Info() host.PluginInfo {
	return host.PluginInfo{Name: "kits", Capability: protocol.CapToolkits}
}

func (kits) Close(context.Context) error { return nil }

func (kits) Routes() []host.Route {
	return []host.Route{
		host.Handle(protocol.TypeToolkitListReq, func(context.Context, *protocol.ToolkitListRequest,
			host.Emitter,
		) (*protocol.ToolkitListResponse, error) {
			return &protocol.ToolkitListResponse{}, nil
		}),
		host.Handle(protocol.TypeToolkitConfigureReq, func(ctx context.Context, req *protocol.ToolkitConfigureRequest,
			_ host.Emitter,
		) (*protocol.ToolkitConfigureResponse, error) {
			if req.ToolkitName != "k" {
				return nil, protocol.Errorf(protocol.CodeToolError, "no toolkit %q", req.ToolkitName)
			}
			return &protocol.ToolkitConfigureResponse{ToolkitName: req.ToolkitName, Status: "ok"}, nil
		}),
	}
}

// TestContract: the suite accepts a plugin that keeps the contract.
func TestContract(t *testing.T) {
	hosttest.Contract(t, func(testing.TB) host.Plugin { return kits{} }, []hosttest.Sample{
		{Type: protocol.TypeToolkitListReq, Fields: `{"filter_tags":["a"]}`},
		{Type: protocol.TypeToolkitConfigureReq, Fields: `{"toolkit_name":"k","config":{"a":null}}`},
		{
			Type: protocol.TypeToolkitConfigureReq, Name: "unknown", Fields: `{"toolkit_name":"x"}`,
			Code: protocol.CodeToolError,
		},
		{Type: protocol.TypeToolkitConfigureReq, Name: "made", Make: func(t testing.TB, p *hosttest.Pair) string {
			return fmt.Sprintf(`{"toolkit_name":%q}`, strings.ToLower("K"))
		}},
	})
}

// TestCheck: Check accepts valid lines, and refuses each line that breaks a rule of the wire format.
func TestCheck(t *testing.T) {
	const good = `{"a2e":"1.0","version":"1.0","type":"pong","id":"0123456789abcdef0123456789abcdef","ts":1767225600.5,"req_id":"1","uptime_seconds":1}`
	for _, line := range []string{good, good + "\n", strings.Replace(good, "pong", "x/foreign", 1)} {
		err := hosttest.Check([]byte(line))
		assert.That(t, err == nil, "%v: %s", err, line)
	}
	for name, change := range map[string][2]string{
		"type":       {`"uptime_seconds":1`, `"uptime_seconds":"1"`},
		"null":       {`"uptime_seconds":1`, `"uptime_seconds":null`},
		"twice":      {`"uptime_seconds":1`, `"uptime_seconds":1,"req_id":"1"`},
		"space":      {`,"req_id"`, `, "req_id"`},
		"no req_id":  {`,"req_id":"1"`, ``},
		"no a2e":     {`"a2e":"1.0",`, ``},
		"no version": {`"version":"1.0",`, ``},
		"short id":   {`0123456789abcdef0123456789abcdef`, `0123`},
		"upper id":   {`0123456789abcdef0123456789abcdef`, `0123456789ABCDEF0123456789abcdef`},
		"no ts":      {`,"ts":1767225600.5`, ``},
		"direction":  {`"pong"`, `"ping"`},
		"UTF-8":      {`"req_id":"1"`, "\"req_id\":\"\xff\""},
		"two":        {`}`, `}{}`},
		"no type":    {`"type":"pong",`, ``},
	} {
		line := strings.Replace(good, change[0], change[1], 1)
		assert.Fails(t, hosttest.Check([]byte(line)), "", "%s: %q passes", name, line)
	}
}
