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

// The tiers of protocol/README.md, section 7.
const (
	TierWorking  MemoryTier = "working"  // deleted at the end of the session
	TierEpisodic MemoryTier = "episodic" // belongs to the agent id
	TierSemantic MemoryTier = "semantic" // belongs to all agents
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
	Stored   []Object       `json:"stored"`            // the keys written
	Errors   []string       `json:"errors"`            // one for each entry refused
	Versions []int          `json:"versions,omitzero"` // of the entries written, in the order of stored
	Detail   map[string]any `json:"detail,omitzero"`
}

// MemoryEntry is an entry in an answer (SDK: MemoryEntry).
type MemoryEntry struct {
	Key     Object         `json:"key"`
	Content jsontext.Value `json:"content"` // any JSON
	Tier    MemoryTier     `json:"tier"`
	Tags    []string       `json:"tags"`
	Source  string         `json:"source"`
	// relevance to the query, 0 to 1; without a query the weight that the entry was stored with
	Score float64 `json:"score"`
	// seconds from updated_at, or from the last read with refresh_ttl; 0 = no limit
	TTL       float64 `json:"ttl"`
	CreatedAt float64 `json:"created_at"`
	UpdatedAt float64 `json:"updated_at"`
	ExpiresAt float64 `json:"expires_at,omitzero"` // 0 = never
	Version   int     `json:"version,omitzero"`    // 1 at the first store, and one more at each further store
	Folder    string  `json:"folder,omitzero"`     // of the host that stored this version; "" = not recorded
	Namespace *string `json:"namespace,omitzero"`  // only if the request had a namespace_prefix
}

// MemorySelection selects the entries of a memory for a request. All conditions must hold; an
// empty field is no condition.
type MemorySelection struct {
	Keys    []Object   `json:"keys"`
	Tags    []string   `json:"tags"` // any of them
	Tier    MemoryTier `json:"tier"` // "" = all
	AllTags []string   `json:"all_tags,omitzero"`
	Filter  Object     `json:"filter,omitzero"` // conditions on fields of the content, by path
	Source  string     `json:"source,omitzero"`
	Folder  string     `json:"folder,omitzero"` // where the entry was last stored; "." = the workspace
	Since   float64    `json:"since,omitzero"`  // updated_at is this or later; seconds since 1970
	Until   float64    `json:"until,omitzero"`  // updated_at is before this
	// selects all memories of the same scope whose namespace is this or below; "" = all of the scope
	NamespacePrefix *string `json:"namespace_prefix,omitzero"`
}

// MemoryRetrieveRequest reads entries (`memory/retrieve/req`).
type MemoryRetrieveRequest struct {
	MemoryID string `json:"memory_id"`
	MemorySelection
	Query          string  `json:"query"` // ranks by relevance when set
	Limit          int     `json:"limit"`
	MinScore       float64 `json:"min_score"`       // relevance, 0 to 1
	Offset         int     `json:"offset,omitzero"` // entries to skip
	Cursor         string  `json:"cursor,omitzero"` // next_cursor of the previous answer
	RefreshTTL     bool    `json:"refresh_ttl,omitzero"`
	History        bool    `json:"history,omitzero"`         // all versions of keys, the newest first
	ListNamespaces bool    `json:"list_namespaces,omitzero"` // list namespaces instead of entries
	MaxDepth       int     `json:"max_depth,omitzero"`       // names between slashes in a namespace; 0 = all
}

// SetDefaults sets what the schema says for absent fields.
func (r *MemoryRetrieveRequest) SetDefaults() { r.Limit = 10 }

// MemoryRetrieveResponse answers a MemoryRetrieveRequest (`memory/retrieve/resp`).
type MemoryRetrieveResponse struct {
	Entries    []MemoryEntry     `json:"entries"`
	Total      int               `json:"total"` // matches before the limit
	NextCursor string            `json:"next_cursor,omitzero"`
	Namespaces []MemoryNamespace `json:"namespaces,omitzero"`
	Detail     map[string]any    `json:"detail,omitzero"`
}

// MemoryNamespace is a namespace of a listing.
type MemoryNamespace struct {
	Namespace string `json:"namespace"`
	Entries   int    `json:"entries"` // number of entries that the agent can see
}

// MemoryForgetRequest deletes entries (`memory/forget/req`). Without conditions it
// deletes nothing, unless all and confirm are true.
type MemoryForgetRequest struct {
	MemoryID string `json:"memory_id"`
	MemorySelection
	All     bool `json:"all,omitzero"`
	Confirm bool `json:"confirm,omitzero"`
}

// MemoryForgetResponse answers a MemoryForgetRequest (`memory/forget/resp`).
type MemoryForgetResponse struct {
	Deleted int `json:"deleted"`
}
