package protocol

import "github.com/go-json-experiment/json/jsontext"

// The message types of capability `chains`.
const (
	TypeChainReq   Type = "chain/req"
	TypeChainEvent Type = "chain/event"
	TypeChainResp  Type = "chain/resp"
)

// ChainRequest runs a graph of nodes (`chain/req`).
type ChainRequest struct {
	SessionID     string   `json:"session_id"`
	ChainID       string   `json:"chain_id"`
	Nodes         []Object `json:"nodes"`
	EntryNode     string   `json:"entry_node"`
	InitialInput  Object   `json:"initial_input"`
	CorrelationID string   `json:"correlation_id"`
	Streaming     bool     `json:"streaming"` // send events before the answer
	Timeout       int      `json:"timeout"`   // seconds

	Journal bool   `json:"journal"` // keep a journal of the chain under its chain_id
	Resume  bool   `json:"resume"`  // continue where the chain with this chain_id stopped
	Resolve Object `json:"resolve"` // what to do with nodes that were running when it stopped, by path
}

// SetDefaults sets what the schema says for absent fields.
func (r *ChainRequest) SetDefaults() { r.Streaming, r.Timeout = true, 300 }

// ChainPhase is the phase of a node that a ChainEvent reports.
type ChainPhase string

// PhaseStart is the phase of a node that starts, and the default.
const PhaseStart ChainPhase = "start"

// ChainEvent reports about one node of a running chain (`chain/event`).
type ChainEvent struct {
	Event
	NodeID string         `json:"node_id"`
	Phase  ChainPhase     `json:"phase"`
	Output jsontext.Value `json:"output"` // nil = null
	Error  string         `json:"error"`
}

// SetDefaults sets what the schema says for absent fields.
func (e *ChainEvent) SetDefaults() {
	e.Event.SetDefaults()
	e.Phase = PhaseStart
}

// ChainResponse answers a ChainRequest (`chain/resp`).
type ChainResponse struct {
	ChainID     string           `json:"chain_id"`
	Success     bool             `json:"success"`
	Outputs     map[string]any   `json:"outputs"`      // node id to its output
	FinalOutput jsontext.Value   `json:"final_output"` // nil = null
	DurationMS  int64            `json:"duration_ms"`
	NodesRun    int              `json:"nodes_run"`
	Error       NullableMap[any] `json:"error"`

	Handled        []ChainFailure `json:"handled,omitzero"`       // failures that other nodes handled, the first 100
	HandledTotal   int            `json:"handled_total,omitzero"` // number of all handled failures
	Cached         []string       `json:"cached,omitzero"`        // nodes with outputs from a cache, the first 100
	CachedTotal    int            `json:"cached_total,omitzero"`
	Truncated      []string       `json:"truncated,omitzero"` // nodes whose outputs were cut, the first 100
	TruncatedTotal int            `json:"truncated_total,omitzero"`
	FromJournal    int            `json:"from_journal,omitzero"` // outputs from the journal, of inner nodes too
}

// ChainFailure is the failure of a node.
type ChainFailure struct {
	NodeID    string    `json:"node_id"`
	Item      *int      `json:"item,omitzero"` // index of the item of a map; nil = the node itself
	Code      ErrorCode `json:"code"`
	Message   string    `json:"message"`
	HandledBy string    `json:"handled_by,omitzero"`
}
