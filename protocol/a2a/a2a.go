// Package a2a has the names of the Agent2Agent protocol (A2A) over HTTP that its server, in host/dialect/a2a, and
// its client, in plugins/multiagent/worker, share. Source: the specifications of A2A 1.0 and 0.3.
package a2a

// Paths of an agent.
const (
	PathRPC  = "/jsonrpc" // of ours; the card of another names its own
	PathCard = "/.well-known/agent-card.json"
)

// VersionHeader names the version that a client of 1.0 and later speaks.
const VersionHeader = "A2A-Version"

// FleetExtension is what the card of an agent lists among its extensions that takes a TASK_DISPATCH as the text of a
// message.
const FleetExtension = "urn:a2e:fleet:2.0"
