package protocol

import (
	"strings"
	"unicode"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// The message types of capability `tools`.
const (
	TypeToolListReq  Type = "tool/list/req"
	TypeToolListResp Type = "tool/list/resp"
	TypeToolCallReq  Type = "tool/call/req"
	TypeToolEvent    Type = "tool/event" // its struct is Event
	TypeToolCallResp Type = "tool/call/resp"
)

// ToolListRequest asks for the tools (`tool/list/req`).
type ToolListRequest struct {
	FilterKind      string   `json:"filter_kind"` // origin: builtin, command, mcp, toolkit; "" = any
	FilterTags      []string `json:"filter_tags"` // all must match
	Query           string   `json:"query"`       // ranks by relevance when set
	IncludeDeferred bool     `json:"include_deferred"`
	Detail          bool     `json:"detail,omitzero"` // each definition with its Detail; an extension
}

// ToolListResponse answers a ToolListRequest (`tool/list/resp`).
type ToolListResponse struct {
	Tools []ToolDefinition `json:"tools"`
}

// ToolDefinition describes one tool.
type ToolDefinition struct {
	Name             string          `json:"name"`
	Description      string          `json:"description"`
	InputParameters  []ToolParameter `json:"input_parameters"`
	OutputParameters []ToolParameter `json:"output_parameters"`
	Streaming        bool            `json:"streaming"` // can send events
	Idempotent       bool            `json:"idempotent"`
	Tags             []string        `json:"tags"`
	Version          string          `json:"version"`
	Toolkit          *string         `json:"toolkit"`       // the toolkit that it belongs to; nil = none
	DeferLoading     bool            `json:"defer_loading"` // listed only with include_deferred
	// name of a group of tools for the same task: a call of that name may use any of them; an extension
	Task string `json:"task,omitzero"`
	// in a plugin's own answer to a query: > 0 = a search found the tool; an extension
	Score float64 `json:"score,omitzero"`

	// if the request asks for it; set by the host, not by plugins; an extension
	Detail *ToolDetail `json:"detail,omitzero"`
}

// ToolDetail describes a tool for a model's API and for MCP.
type ToolDetail struct {
	Title        string         `json:"title,omitzero"`
	InputSchema  jsontext.Value `json:"input_schema"`           // JSON Schema of the arguments, an object
	OutputSchema jsontext.Value `json:"output_schema,omitzero"` // JSON Schema of the result's data; absent = not known
	Hints        *ToolHints     `json:"hints,omitzero"`         // absent = not known

	// Further members from an MCP server, unchanged; absent = none.
	Annotations jsontext.Value `json:"annotations,omitzero"` // an object
	Icons       jsontext.Value `json:"icons,omitzero"`       // an array
	Meta        jsontext.Value `json:"_meta,omitzero"`       // an object
}

// ToolHints says what a call of a tool may do, in MCP's terms.
type ToolHints struct {
	ReadOnly    bool `json:"read_only"`   // it changes nothing
	Destructive bool `json:"destructive"` // it may delete or overwrite something
	Idempotent  bool `json:"idempotent"`  // a second call with the same arguments changes nothing more
	OpenWorld   bool `json:"open_world"`  // it uses things outside of this machine
}

// SetDefaults sets what the schema says for absent fields.
func (d *ToolDefinition) SetDefaults() { d.Streaming, d.Version = true, "1.0.0" }

// UnmarshalJSONFrom implements json.UnmarshalerFrom. It sets the defaults first.
func (d *ToolDefinition) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	type plain ToolDefinition
	*d = ToolDefinition{}
	d.SetDefaults()
	return json.UnmarshalDecode(dec, (*plain)(d))
}

// ToolParameter describes one parameter, or one member of an object parameter.
type ToolParameter struct {
	Name        string                     `json:"name"`
	Type        string                     `json:"type"` // string, integer, number, boolean, array, object
	Description string                     `json:"description"`
	Required    bool                       `json:"required"`
	Enum        NullableList[string]       `json:"enum"`       // nil = any value
	Properties  NullableMap[ToolParameter] `json:"properties"` // of an object; nil = any
}

// ToolCallRequest calls one tool (`tool/call/req`).
type ToolCallRequest struct {
	SessionID     string `json:"session_id"`
	ToolName      string `json:"tool_name"`
	Arguments     Object `json:"arguments"`
	CorrelationID string `json:"correlation_id"` // names the call in later feedback
	Streaming     bool   `json:"streaming"`      // send events before the answer
	Timeout       int    `json:"timeout"`        // seconds
}

// SetDefaults sets what the schema says for absent fields.
func (r *ToolCallRequest) SetDefaults() { r.Timeout = 30 }

// DecodeLine implements LineDecoder: calls are the most frequent requests.
func (r *ToolCallRequest) DecodeLine(obj Object) error {
	var f fieldReader
	for i := 0; i < len(obj.members); i += obj.members[i].step() {
		m := &obj.members[i]
		val := Value(m.val.of(obj.text))
		switch string(m.key.text(obj.text)) {
		case "session_id":
			f.text("session_id", val, &r.SessionID)
		case "tool_name":
			f.text("tool_name", val, &r.ToolName)
		case "arguments":
			f.object("arguments", obj, i, &r.Arguments)
		case "correlation_id":
			f.text("correlation_id", val, &r.CorrelationID)
		case "streaming":
			f.boolean("streaming", val, &r.Streaming)
		case "timeout":
			f.integer("timeout", val, &r.Timeout)
		}
	}
	return f.err()
}

// ToolCallResponse answers a ToolCallRequest (`tool/call/resp`).
type ToolCallResponse struct {
	Data      ToolResult `json:"data"`
	CreatedAt float64    `json:"created_at"`     // seconds since 1970
	Group     string     `json:"group,omitzero"` // the group that was called; Data names the chosen tool; an extension
}

// ToolResult is the result of a tool that ran, successful or not.
type ToolResult struct {
	Success    bool           `json:"success"`
	ToolName   string         `json:"tool_name"`
	Data       jsontext.Value `json:"data"`      // nil = null
	Summary    jsontext.Value `json:"summary"`   // nil = null; mostly a JSON string for a person
	Truncated  *bool          `json:"truncated"` // data was cut to the output limit; nil counts as false
	ExitCode   *int           `json:"exit_code"` // of a child process
	Error      *string        `json:"error"`     // why Success is false
	ErrorCode  *ErrorCode     `json:"error_code"`
	DurationMS int64          `json:"duration_ms"`
	Events     []PastEvent    `json:"events"`
}

// The message types of capability `toolkits`.
const (
	TypeToolkitListReq       Type = "toolkit/list/req"
	TypeToolkitListResp      Type = "toolkit/list/resp"
	TypeToolkitConfigureReq  Type = "toolkit/configure/req"
	TypeToolkitConfigureResp Type = "toolkit/configure/resp"
)

// ToolkitListRequest asks for the toolkits (`toolkit/list/req`).
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
	Problem     string         `json:"problem,omitzero"` // why it has no tools although it is configured; an extension
}

// SetDefaults sets what the schema says for absent fields.
func (d *ToolkitDefinition) SetDefaults() { d.Version = "1.0.0" }

// UnmarshalJSONFrom implements json.UnmarshalerFrom. It sets the defaults first.
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

// MaxTaskName is the maximum length of the name of a group of tools, in bytes.
const MaxTaskName = 128

// IsTaskName reports whether a name can name a group of tools: it is not too long, and has only printable
// characters and no spaces.
func IsTaskName(name string) bool {
	return name != "" && len(name) <= MaxTaskName && !strings.ContainsFunc(name,
		func(c rune) bool { return c == ' ' || !unicode.IsPrint(c) })
}
