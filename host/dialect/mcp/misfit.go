package mcp

import (
	"fmt"
	"strings"

	"a2e/protocol"
)

// misfit rewrites an error of the go-sdk about params that do not decode, in words of MCP: the go-sdk uses the names of
// its own types.
func misfit(method string, e *rpcError) *rpcError {
	text, ok := strings.CutPrefix(e.Message, "handling '"+method+"': ")
	if !ok {
		return e
	}
	e.Message = "the params of " + method + " do not fit MCP: " + strings.TrimPrefix(text, "invalid params: ")
	if !strings.Contains(text, "unmarshaling ") {
		return e
	}
	e.Message = "the params of " + method + " do not fit MCP: a member has the wrong type"
	at := strings.LastIndex(text, "Go struct field ")
	member, kind, ok := strings.Cut(text[max(at, 0):], " of type ")
	if _, name, named := strings.Cut(member[strings.LastIndex(member, " ")+1:], "."); at >= 0 && ok && named {
		_, name, _ = strings.Cut(name, ".") // the part after the package and the type
		name = protocol.Clip(name, maxAgentID)
		e.Message = fmt.Sprintf("the params of %s do not fit MCP: %q should be %s", method, name, wanted(kind))
	}
	return e
}

// wanted returns the name of the JSON type for a type of the go-sdk.
func wanted(kind string) string {
	switch kind = strings.TrimPrefix(kind, "*"); {
	case strings.HasPrefix(kind, "[]"):
		return "an array"
	case kind == "string", kind == "mcp.LoggingLevel", kind == "mcp.Role":
		return "a string"
	case kind == "bool":
		return "true or false"
	case strings.HasPrefix(kind, "int"), strings.HasPrefix(kind, "float"):
		return "a number"
	}
	return "an object"
}
