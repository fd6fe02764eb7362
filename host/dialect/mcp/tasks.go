package mcp

import (
	"context"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// tasksVersion is the one version of MCP that has tasks.
const tasksVersion = "2025-11-25"

// taskMethods are those of MCP's tasks, which the go-sdk does not know.
func taskMethods() []string {
	return []string{methodGetTask, methodTaskResult, methodTasks, methodCancelTask}
}

// unreached stands for them in the go-sdk: receive gives them to forward.
func unreached(context.Context, *mcp.ServerSession, *rawParams) (*rawResult, error) {
	return nil, rpcErrorf(codeMethodNotFound, "the request was lost")
}

// withTasks adds to the result of initialize that there are tasks.
func withTasks(result []byte) []byte {
	var parts map[string]jsontext.Value
	if json.Unmarshal(result, &parts) != nil || textOf(parts["protocolVersion"]) != tasksVersion {
		return result
	}
	parts["capabilities"] = withMember(parts["capabilities"], `"tasks":{"list":{},"cancel":{},"requests":{"tools":{"call":{}}}}`)
	if out, err := json.Marshal(parts, json.Deterministic(true)); err == nil {
		return out
	}
	return result
}
