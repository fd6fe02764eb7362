package protocol

import "slices"

// table has one row per message type, in the order of messages.json. Nothing
// changes it, nor the index, once the package is loaded.
var table = slices.Concat(coreRows(), toolRows(), toolkitRows(), skillRows(), envRows(),
	procRows(), memoryRows(), learnRows(), refinementRows(), chainRows(), mcpRows(),
	planningRows(), agentRows(), subagentRows(), pushRows())

// index finds a row by its type, and by the other names of WIRE section 6.
var index = indexOf(table)

func indexOf(rows []Info) map[string]*Info {
	byType := make(map[string]*Info, len(rows)+8)
	for i := range rows {
		byType[string(rows[i].Type)] = &rows[i]
	}
	for _, alias := range []Type{
		"env/spaces/req", "env/spaces/resp", "mcp/sampling/req", "mcp/sampling/resp",
		"mcp/roots/list/req", "mcp/roots/list/resp",
	} {
		byType[string(alias)] = byType[string(Canonical(alias))]
	}
	return byType
}

// row makes one row; T is the struct of its type, and response is "" for what
// has no answer.
func row[T any](t Type, c Capability, d Direction, response Type, required ...string) Info {
	return Info{
		Type: t, Capability: c, Direction: d, Response: response, Required: required,
		New: func() any { return new(T) },
	}
}

// Types lists the message types of the protocol in the order of messages.json.
// The extension `cancel` is not among them.
func Types() []Info { return slices.Clone(table) }

// Lookup finds the row of a type. Another name of WIRE section 6 finds the row of
// the type that it stands for. The row is shared: do not change it.
func Lookup(t Type) (*Info, bool) {
	info, ok := index[string(t)]
	return info, ok
}

// LookupBytes is Lookup for the bytes of a type; it allocates nothing.
func LookupBytes(t []byte) (*Info, bool) {
	info, ok := index[string(t)]
	return info, ok
}

// Canonical returns the type that another name of WIRE section 6 stands for; every
// other type comes back as it is. What depends on the direction is the host's:
// `env/plan/resp` and an `mcp/sample/req` with a `req_id`, from the agent.
func Canonical(t Type) Type {
	switch t {
	case "env/spaces/req":
		return TypeEnvSpaceReq
	case "env/spaces/resp":
		return TypeEnvSpaceResp
	case "mcp/sampling/req":
		return TypeMCPSampleReq
	case "mcp/sampling/resp":
		return TypeMCPSampleResp
	case "mcp/roots/list/req":
		return TypeMCPRootListReq
	case "mcp/roots/list/resp":
		return TypeMCPRootListResp
	}
	return t
}
