package protocol

import (
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// The message types of capability `toolkits`.
const (
	TypeToolkitListReq       Type = "toolkit/list/req"
	TypeToolkitListResp      Type = "toolkit/list/resp"
	TypeToolkitConfigureReq  Type = "toolkit/configure/req"
	TypeToolkitConfigureResp Type = "toolkit/configure/resp"
)

// ToolkitListRequest asks for the toolkits there are (`toolkit/list/req`).
type ToolkitListRequest struct {
	FilterKind string   `json:"filter_kind"`
	FilterTags []string `json:"filter_tags"`
}

// ToolkitListResponse answers a ToolkitListRequest (`toolkit/list/resp`).
type ToolkitListResponse struct {
	Toolkits []ToolkitDefinition `json:"toolkits"`
}

// ToolkitDefinition describes a named set of tools.
type ToolkitDefinition struct {
	Name        string         `json:"name"`
	Alias       string         `json:"alias"`
	Description string         `json:"description"`
	Category    string         `json:"category"`
	Tags        []string       `json:"tags"`
	IconSVG     *string        `json:"icon_svg"`
	Schema      map[string]any `json:"schema"` // JSON Schema of its configuration
	Tools       []string       `json:"tools"`  // names of its tools
	Configured  bool           `json:"configured"`
	Version     string         `json:"version"`
}

// SetDefaults sets what the schema says for absent fields.
func (d *ToolkitDefinition) SetDefaults() { d.Version = "1.0.0" }

// UnmarshalJSONFrom implements json.UnmarshalerFrom: defaults first.
func (d *ToolkitDefinition) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	type plain ToolkitDefinition
	*d = ToolkitDefinition{}
	d.SetDefaults()
	return json.UnmarshalDecode(dec, (*plain)(d))
}

// ToolkitConfigureRequest sets a toolkit up (`toolkit/configure/req`).
type ToolkitConfigureRequest struct {
	SessionID   string `json:"session_id"`
	ToolkitName string `json:"toolkit_name"`
	Config      Object `json:"config"`
}

// ToolkitConfigureResponse answers a ToolkitConfigureRequest (`toolkit/configure/resp`).
type ToolkitConfigureResponse struct {
	ToolkitName string  `json:"toolkit_name"`
	Status      string  `json:"status"` // "ok" when the toolkit is ready
	Message     *string `json:"message"`
}

// SetDefaults sets what the schema says for absent fields.
func (r *ToolkitConfigureResponse) SetDefaults() { r.Status = "ok" }
