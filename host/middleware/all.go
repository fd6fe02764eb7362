// Package middleware has the steps around requests that no single plugin can do. It uses only the contract of
// plugins, and nothing else of the host.
//
//	kept.go        lists of tools, used again as long as nothing changes
//	search.go      the order of lists of tools and skills, by a query and by weight; rank.go ranks
//	checkpoint.go  a checkpoint before a request that may change the workspace. Before a call of a tool of a
//	               host.ToolDescriber, that plugin makes it (plugins/tools/call.go): only the plugin knows the tool
//	override.go    overrides of components: descriptions, texts, time limits
//
// The log, audit and trace of a request are made with its answer: see trail.go of the host.
package middleware

import (
	"a2e/host"
	"a2e/protocol"
)

// All returns the middlewares of a host, the outermost first, for host.Options.
func All() []host.Middleware {
	return []host.Middleware{
		host.Middleware(keepTools).Only(protocol.TypeToolListReq),
		host.Middleware(searchTools).Only(protocol.TypeToolListReq),
		host.Middleware(searchSkills).Only(protocol.TypeSkillDiscoverReq),
		keepFiles,
		override,
	}
}
