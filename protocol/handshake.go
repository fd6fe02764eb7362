package protocol

import (
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// The message types of the session itself.
const (
	TypeHandshakeReq  Type = "handshake/req"
	TypeHandshakeResp Type = "handshake/resp"
	TypePing          Type = "ping"
	TypePong          Type = "pong"
	TypeShutdown      Type = "shutdown"
	TypeError         Type = "error" // its struct is Error
	// TypeCancel is this host's extension; it is no row of the table.
	TypeCancel Type = "cancel"
)

// HandshakeReason is the `reason` of a refused handshake; empty when it is ok.
type HandshakeReason string

// The reasons of WIRE section 3.
const (
	ReasonAuthFailed      HandshakeReason = "auth_failed"
	ReasonVersionMismatch HandshakeReason = "version_mismatch"
	ReasonNoCaps          HandshakeReason = "no_caps"
	ReasonServerError     HandshakeReason = "server_error"
)

// HandshakeRequest opens a session (`handshake/req`).
type HandshakeRequest struct {
	AgentID   string       `json:"agent_id"`
	AgentCaps []Capability `json:"agent_caps"` // what the agent wants; names that are none survive
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
}

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

// UnmarshalJSONFrom implements json.UnmarshalerFrom: defaults first.
func (c *CapabilityRow) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	type plain CapabilityRow
	*c = CapabilityRow{}
	c.SetDefaults()
	return json.UnmarshalDecode(dec, (*plain)(c))
}

// Ping asks whether the host lives (`ping`). It is answered even before the handshake.
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
