package protocol

// Type is the exact `type` string of a message. Types that this version does
// not know survive unchanged.
type Type string

// Direction says who sends a message type, and what it is.
type Direction string

// The directions of messages.json.
const (
	AgentRequest  Direction = "agent->host request"
	AgentResponse Direction = "agent->host response"
	HostRequest   Direction = "host->agent request"
	HostResponse  Direction = "host->agent response"
	HostEvent     Direction = "host->agent event"
)

// FromAgent reports whether the agent is the one who sends it.
func (d Direction) FromAgent() bool { return d == AgentRequest || d == AgentResponse }

// Capability is a group of message types that a session negotiates as one.
type Capability string

// The capability names of WIRE section 3. CapCore marks the messages that
// belong to the session itself and need no negotiation.
const (
	CapCore       Capability = ""
	CapSkill      Capability = "skill"
	CapTools      Capability = "tools"
	CapToolkits   Capability = "toolkits"
	CapEnv        Capability = "env"
	CapProc       Capability = "proc"
	CapMemory     Capability = "memory"
	CapLearning   Capability = "learning"
	CapChains     Capability = "chains"
	CapMCP        Capability = "mcp"
	CapMultiAgent Capability = "multi_agent"
	CapPlanning   Capability = "planning"
	CapTest       Capability = "test"
)

// PluginCapabilities lists the capabilities that plugins serve, in the order in which a
// handshake lists them.
func PluginCapabilities() []Capability {
	return []Capability{CapSkill, CapTools, CapToolkits, CapEnv, CapProc, CapMemory, CapLearning, CapChains, CapMCP, CapMultiAgent, CapPlanning}
}

// CapabilityAliases maps other spellings of capability names, which configs and handshakes
// may use, to those above.
func CapabilityAliases() map[string]Capability {
	return map[string]Capability{
		"procs": CapProc, "skills": CapSkill, "learn": CapLearning, "toolkit": CapToolkits, "chain": CapChains, "subagents": CapMultiAgent,
	}
}

// Info is one row of the message table.
type Info struct {
	Type       Type
	Capability Capability
	Direction  Direction
	Response   Type       // for a request: the type of its answer; "" where there is none
	Required   []string   // fields that must be present, beyond `type`
	New        func() any // a pointer to the zero value of the Go struct of this type
}
