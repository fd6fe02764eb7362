// Package middleware is what the host does around requests that no plugin can see to alone. It uses
// the contract of plugins and no more of the host.
//
//	kept.go        lists of tools, answered again as long as nothing changes
//	search.go      the order of lists of tools and skills, by a query and by weight; rank.go ranks
//	checkpoint.go  the state of the workspace is kept before a request that may change it
//	override.go    what components were set to: descriptions, texts, time limits
//
// What is measured of a request (log, audit, trace) comes with its answer: see trail.go of the host.
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
