package protocol

import "github.com/go-json-experiment/json/jsontext"

// The message types of capability `memory`.
const (
	TypeMemoryInitReq      Type = "memory/init/req"
	TypeMemoryInitResp     Type = "memory/init/resp"
	TypeMemoryStoreReq     Type = "memory/store/req"
	TypeMemoryStoreResp    Type = "memory/store/resp"
	TypeMemoryRetrieveReq  Type = "memory/retrieve/req"
	TypeMemoryRetrieveResp Type = "memory/retrieve/resp"
	TypeMemoryForgetReq    Type = "memory/forget/req"
	TypeMemoryForgetResp   Type = "memory/forget/resp"
)

// MemoryTier says whom an entry belongs to.
type MemoryTier string

// The tiers of WIRE section 7.
const (
	TierWorking  MemoryTier = "working"  // dies with the session
	TierEpisodic MemoryTier = "episodic" // belongs to the agent id
	TierSemantic MemoryTier = "semantic" // belongs to all
)

// MemoryInitRequest opens a memory (`memory/init/req`).
type MemoryInitRequest struct {
	Namespace string            `json:"namespace"`
	Scope     map[string]string `json:"scope"`
	Metadata  Object            `json:"metadata"`
}

// SetDefaults sets what the schema says for absent fields.
func (r *MemoryInitRequest) SetDefaults() { r.Namespace = "default" }

// MemoryInitResponse answers a MemoryInitRequest (`memory/init/resp`).
type MemoryInitResponse struct {
	MemoryID  string `json:"memory_id"`
	Namespace string `json:"namespace"`
	Success   bool   `json:"success"`
}

// SetDefaults sets what the schema says for absent fields.
func (r *MemoryInitResponse) SetDefaults() { r.Success = true }

// MemoryStoreRequest writes entries (`memory/store/req`).
type MemoryStoreRequest struct {
	MemoryID string   `json:"memory_id"`
	Entries  []Object `json:"entries"`
}

// MemoryStoreResponse answers a MemoryStoreRequest (`memory/store/resp`).
type MemoryStoreResponse struct {
	Stored []Object       `json:"stored"` // the keys written
	Errors []string       `json:"errors"` // one for each entry refused
	Detail map[string]any `json:"detail,omitzero"`
}

// MemoryEntry is an entry as it is read (SDK: MemoryEntry).
type MemoryEntry struct {
	Key       Object         `json:"key"`
	Content   jsontext.Value `json:"content"` // any JSON
	Tier      MemoryTier     `json:"tier"`
	Tags      []string       `json:"tags"`
	Source    string         `json:"source"`
	Score     float64        `json:"score"` // relevance to the query, 0 to 1; without one the weight that it was stored with
	TTL       float64        `json:"ttl"`   // seconds from updated_at; 0 = for ever
	CreatedAt float64        `json:"created_at"`
	UpdatedAt float64        `json:"updated_at"`
}

// MemoryRetrieveRequest reads entries; its conditions are ANDed (`memory/retrieve/req`).
type MemoryRetrieveRequest struct {
	MemoryID string     `json:"memory_id"`
	Keys     []Object   `json:"keys"`
	Query    string     `json:"query"` // ranks by relevance when set
	Tags     []string   `json:"tags"`  // any of them
	Tier     MemoryTier `json:"tier"`  // "" = all
	Limit    int        `json:"limit"`
	MinScore float64    `json:"min_score"` // relevance, 0 to 1
}

// SetDefaults sets what the schema says for absent fields.
func (r *MemoryRetrieveRequest) SetDefaults() { r.Limit = 10 }

// MemoryRetrieveResponse answers a MemoryRetrieveRequest (`memory/retrieve/resp`).
type MemoryRetrieveResponse struct {
	Entries []MemoryEntry  `json:"entries"`
	Total   int            `json:"total"` // matches before the limit
	Detail  map[string]any `json:"detail,omitzero"`
}

// MemoryForgetRequest deletes entries (`memory/forget/req`). With neither keys
// nor tags it deletes nothing.
type MemoryForgetRequest struct {
	MemoryID string     `json:"memory_id"`
	Keys     []Object   `json:"keys"`
	Tags     []string   `json:"tags"`
	Tier     MemoryTier `json:"tier"`
}

// SetDefaults sets what the schema says for absent fields.
func (r *MemoryForgetRequest) SetDefaults() { r.Tier = TierEpisodic }

// MemoryForgetResponse answers a MemoryForgetRequest (`memory/forget/resp`).
type MemoryForgetResponse struct {
	Deleted int `json:"deleted"`
}
