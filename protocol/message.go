package protocol

import (
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Type is the exact `type` string of a message. Unknown types stay unchanged.
type Type string

// Direction says who sends a message type, and whether it is a request, a response or an event.
type Direction string

// The directions of testdata/wire/messages.json.
const (
	AgentRequest  Direction = "agent->host request"
	AgentResponse Direction = "agent->host response"
	HostRequest   Direction = "host->agent request"
	HostResponse  Direction = "host->agent response"
	HostEvent     Direction = "host->agent event"
)

// FromAgent reports whether the agent sends the message.
func (d Direction) FromAgent() bool { return d == AgentRequest || d == AgentResponse }

// Capability is a group of message types that a session negotiates as one.
type Capability string

// The capability names of protocol/README.md, section 3. CapCore marks the messages that
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
	return []Capability{
		CapSkill, CapTools, CapToolkits, CapEnv, CapProc, CapMemory, CapLearning, CapChains, CapMCP,
		CapMultiAgent, CapPlanning,
	}
}

// CapabilityAliases maps other spellings of capability names, which configs and handshakes
// may use, to those above.
func CapabilityAliases() map[string]Capability {
	return map[string]Capability{
		"procs": CapProc, "skills": CapSkill, "learn": CapLearning, "toolkit": CapToolkits, "chain": CapChains,
		"subagents": CapMultiAgent,
	}
}

// FlagEnvPush in agent_caps asks for `env/state/push`; agents without it do not get that event. It is
// not a capability and no list has it.
const FlagEnvPush Capability = "env_push"

// Info is one row of the message table.
type Info struct {
	Type       Type
	Capability Capability
	Direction  Direction
	Response   Type       // for a request: the type of its answer; "" = no answer
	Required   []string   // fields that must be present, beyond `type`
	New        func() any // a pointer to the zero value of the Go struct of this type
	Order      []Claim    // for a request: what it uses; see Claim
	NoSlot     bool       // the request takes no slot of max_parallel: it is quick, and waits only for its claims
}

// TypeInvokeEvent is the event that tools and skills stream.
const TypeInvokeEvent Type = "invoke/event"

// EventKind says what an event's `data` holds.
type EventKind string

// The kinds of protocol/README.md, section 5, each with its payload struct.
const (
	EventProgress EventKind = "progress" // Progress
	EventArtifact EventKind = "artifact" // Artifact
	EventLog      EventKind = "log"      // Log
	EventStatus   EventKind = "status"   // Status
)

// Event is the shape that `invoke/event`, `tool/event` and `skill/event` share,
// with its data as any JSON object.
type Event = EventOf[map[string]any]

// EventOf is an event whose data is a D: one of the payload structs below for a
// known kind, a map for others.
type EventOf[D any] struct {
	Kind EventKind `json:"kind"`
	Data D         `json:"data"`
	Seq  int       `json:"seq"` // 0,1,2… within one request
}

// SetDefaults sets the schema's values for absent fields.
func (e *EventOf[D]) SetDefaults() { e.Kind = EventStatus }

// Progress is the data of a `progress` event.
type Progress struct {
	Pct     float64 `json:"pct"` // 0 to 100
	Message string  `json:"message"`
}

// Artifact is the data of an `artifact` event: a piece of a file.
type Artifact struct {
	Name  string `json:"name"`
	Mime  string `json:"mime"`
	Chunk []byte `json:"chunk"` // base64 on the wire
	Final bool   `json:"final"` // the last piece
}

// Log is the data of a `log` event: one line of output.
type Log struct {
	Level   string `json:"level"`
	Message string `json:"message"`
	Stream  string `json:"stream,omitzero"` // "stdout", "stderr" or absent
}

// Status is the data of a `status` event.
type Status struct {
	Message string `json:"message"`
}

// Stamp is the envelope of a message inside another one, such as the
// events in a tool's result. Fields that are not set are left out.
type Stamp struct {
	Type    Type    `json:"type,omitzero"`
	ID      string  `json:"id,omitzero"`
	Version string  `json:"version,omitzero"`
	TS      float64 `json:"ts,omitzero"` // seconds since 1970
	ReqID   string  `json:"req_id,omitzero"`
}

// PastEvent is an event kept in the result of the call that sent it. Its Type is
// `tool/event` in a tool's result and `skill/event` in a skill's, or empty.
type PastEvent struct {
	Stamp
	Event
}

// The message types of the session itself.
const (
	TypeHandshakeReq  Type = "handshake/req"
	TypeHandshakeResp Type = "handshake/resp"
	TypePing          Type = "ping"
	TypePong          Type = "pong"
	TypeShutdown      Type = "shutdown"
	TypeError         Type = "error" // its struct is Error
	// TypeCancel is an extension of this host; the table of messages does not have it.
	TypeCancel Type = "cancel"
)

// HandshakeReason is the `reason` of a refused handshake; empty when it is ok.
type HandshakeReason string

// The reasons of protocol/README.md, section 3.
const (
	ReasonAuthFailed      HandshakeReason = "auth_failed"
	ReasonVersionMismatch HandshakeReason = "version_mismatch"
	ReasonNoCaps          HandshakeReason = "no_caps"
	ReasonServerError     HandshakeReason = "server_error"
)

// HandshakeRequest opens a session (`handshake/req`).
type HandshakeRequest struct {
	AgentID   string       `json:"agent_id"`
	AgentCaps []Capability `json:"agent_caps"` // what the agent wants; unknown names stay
	AuthToken string       `json:"auth_token"` // secret: never log it
}

// HandshakeResponse says whether there is a session (`handshake/resp`). With OK
// false AcceptedCaps is empty and Reason says why.
type HandshakeResponse struct {
	SessionID    string          `json:"session_id"`
	AcceptedCaps []CapabilityRow `json:"accepted_caps"`
	MaxParallel  int             `json:"max_parallel"` // requests that run at once
	OK           bool            `json:"ok"`
	Reason       HandshakeReason `json:"reason"`
	Metadata     map[string]any  `json:"metadata,omitempty"` // see the keys below; absent if all names were known
}

// The keys of a handshake answer's metadata, each with a list of names. The names are not in
// accepted_caps because peers decode its capability names as a closed enumeration.
const (
	MetaUnknownCaps   = "unknown_caps"   // names in agent_caps that are not capabilities
	MetaAvailableCaps = "available_caps" // the capabilities of the host, if none was accepted
)

// SetDefaults sets what the schema says for absent fields.
func (r *HandshakeResponse) SetDefaults() { r.MaxParallel, r.OK = 4, true }

// CapabilityRow is one capability of a handshake's answer.
type CapabilityRow struct {
	Capability Capability     `json:"capability"`
	Enabled    bool           `json:"enabled"`
	Metadata   map[string]any `json:"metadata"` // {name,type,priority,exclusive}, or {reason} when not enabled
}

// SetDefaults sets what the schema says for absent fields.
func (c *CapabilityRow) SetDefaults() { c.Enabled = true }

// UnmarshalJSONFrom implements json.UnmarshalerFrom. It sets the defaults first.
func (c *CapabilityRow) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	type plain CapabilityRow
	*c = CapabilityRow{}
	c.SetDefaults()
	return json.UnmarshalDecode(dec, (*plain)(c))
}

// Ping asks whether the host is alive (`ping`). The host answers it even before the handshake.
type Ping struct{}

// Pong answers a Ping (`pong`).
type Pong struct {
	UptimeSeconds float64 `json:"uptime_seconds"`
}

// Shutdown ends the host (`shutdown`). It has no answer.
type Shutdown struct {
	Timeout int `json:"timeout"` // seconds that running requests get to finish
}

// SetDefaults sets what the schema says for absent fields.
func (s *Shutdown) SetDefaults() { s.Timeout = 10 }

// Cancel stops a request, which is then answered by the error `cancelled`
// (`cancel`, an extension of this host). It has no answer of its own.
type Cancel struct {
	ReqID string `json:"req_id"` // the `id` of the request to stop
}
