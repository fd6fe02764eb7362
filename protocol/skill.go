package protocol

import "github.com/go-json-experiment/json/jsontext"

// The message types of capability `skill`.
const (
	TypeSkillDiscoverReq  Type = "skill/discover/req"
	TypeSkillDiscoverResp Type = "skill/discover/resp"
	TypeSkillCallReq      Type = "skill/call/req"
	TypeSkillCallResp     Type = "skill/call/resp"
	TypeSkillEvent        Type = "skill/event" // its struct is Event
)

// SkillStatus is where a skill is in its life.
type SkillStatus string

// The states of a skill.
const (
	SkillCreated   SkillStatus = "Created"
	SkillBlocked   SkillStatus = "Blocked"
	SkillPublished SkillStatus = "Published"
	SkillArchived  SkillStatus = "Archived"
)

// SkillDiscoverRequest asks for the skills there are (`skill/discover/req`).
type SkillDiscoverRequest struct {
	FilterTags       []string `json:"filter_tags"`
	FilterCategories []string `json:"filter_categories"`
	Query            string   `json:"query,omitzero"` // ranks by relevance when set; an extension
}

// SkillDiscoverResponse answers a SkillDiscoverRequest (`skill/discover/resp`).
type SkillDiscoverResponse struct {
	Skills []SkillDefinition `json:"skills"`
}

// SkillDefinition describes one skill.
type SkillDefinition struct {
	Name           string                       `json:"name"`
	Version        string                       `json:"version"`
	Description    string                       `json:"description"`
	Triggers       []string                     `json:"triggers"`
	Tools          NullableList[jsontext.Value] `json:"tools"`
	Toolkits       NullableList[jsontext.Value] `json:"toolkits"`
	Status         SkillStatus                  `json:"status"`
	InputSchema    map[string]any               `json:"input_schema"`  // JSON Schema
	OutputSchema   map[string]any               `json:"output_schema"` // JSON Schema
	Instructions   *string                      `json:"instructions"`
	FilePath       *string                      `json:"file_path"`
	LLMConfig      *LLMConfig                   `json:"llm_config"`
	Arguments      NullableList[string]         `json:"arguments"` // names
	WhenToUse      string                       `json:"when_to_use"`
	ArgumentHint   string                       `json:"argument_hint"`
	Source         string                       `json:"source"`
	Category       *string                      `json:"category"`
	Tags           NullableList[string]         `json:"tags"`
	MaxTurns       *int                         `json:"max_turns"`
	TimeoutSeconds *int                         `json:"timeout_seconds"`
	Icon           *string                      `json:"icon"`
	Metadata       NullableMap[any]             `json:"metadata"`
}

// LLMConfig says which language model a skill uses. ProviderCredentials is
// secret: never log it.
type LLMConfig struct {
	ProviderName        string  `json:"provider_name"`
	ProviderCredentials Object  `json:"provider_credentials"`
	ProviderConfig      *Object `json:"provider_config"`
	IsDefault           *bool   `json:"is_default"` // nil counts as false
}

// SkillCallRequest runs one skill (`skill/call/req`).
type SkillCallRequest struct {
	Name          string     `json:"name"`
	Arguments     Object     `json:"arguments"`
	CorrelationID string     `json:"correlation_id"` // names the call in later feedback
	Timeout       int        `json:"timeout"`        // seconds
	Streaming     bool       `json:"streaming"`      // send events before the answer
	LLMOverride   *LLMConfig `json:"llm_override"`
	Metadata      Object     `json:"metadata"`
}

// SetDefaults sets what the schema says for absent fields.
func (r *SkillCallRequest) SetDefaults() { r.Timeout, r.Streaming = 60, true }

// SkillCallResponse answers a SkillCallRequest (`skill/call/resp`).
type SkillCallResponse struct {
	Name      string           `json:"name"`
	Data      *SkillResult     `json:"data"`
	Error     NullableMap[any] `json:"error"`
	CreatedAt float64          `json:"created_at"` // seconds since 1970
}

// SkillResult is the result of a skill that ran, successful or not.
type SkillResult struct {
	Success    bool           `json:"success"`
	Data       jsontext.Value `json:"data"`      // nil = null
	Summary    jsontext.Value `json:"summary"`   // nil = null; mostly a JSON string for a person
	Truncated  *bool          `json:"truncated"` // nil counts as false
	Error      *string        `json:"error"`     // why Success is false
	ErrorCode  *ErrorCode     `json:"error_code"`
	DurationMS int64          `json:"duration_ms"`
	Events     []PastEvent    `json:"events"`
}
