package protocol

import (
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// MCPSeparator stands between the id of an MCP server and the name of its tool or prompt, and so in no id.
const MCPSeparator = "__"

// MCPName is the name that a tool or prompt of an MCP server has at the host.
func MCPName(server, name string) string { return server + MCPSeparator + name }

// The message types of capability `mcp`.
const (
	TypeMCPServerListReq         Type = "mcp/server/list/req"
	TypeMCPServerListResp        Type = "mcp/server/list/resp"
	TypeMCPServerRegisterReq     Type = "mcp/server/register/req"
	TypeMCPServerRegisterResp    Type = "mcp/server/register/resp"
	TypeMCPServerUnregisterReq   Type = "mcp/server/unregister/req"
	TypeMCPServerUnregisterResp  Type = "mcp/server/unregister/resp"
	TypeMCPResourceListReq       Type = "mcp/resource/list/req"
	TypeMCPResourceListResp      Type = "mcp/resource/list/resp"
	TypeMCPResourceReadReq       Type = "mcp/resource/read/req"
	TypeMCPResourceReadResp      Type = "mcp/resource/read/resp"
	TypeMCPResourceSubscribeReq  Type = "mcp/resource/subscribe/req"
	TypeMCPResourceSubscribeResp Type = "mcp/resource/subscribe/resp"
	TypeMCPPromptListReq         Type = "mcp/prompt/list/req"
	TypeMCPPromptListResp        Type = "mcp/prompt/list/resp"
	TypeMCPPromptGetReq          Type = "mcp/prompt/get/req"
	TypeMCPPromptGetResp         Type = "mcp/prompt/get/resp"
	TypeMCPRootListReq           Type = "mcp/root/list/req"  // from the host
	TypeMCPRootListResp          Type = "mcp/root/list/resp" // from the agent
	TypeMCPSampleReq             Type = "mcp/sample/req"     // from the host
	TypeMCPSampleResp            Type = "mcp/sample/resp"    // from the agent
	TypeMCPServerPush            Type = "mcp/server/push"

	// Questions of an MCP server to the user: extensions of this host that the table does not have.
	TypeMCPElicitReq  Type = "mcp/elicit/req"  // from the host
	TypeMCPElicitResp Type = "mcp/elicit/resp" // from the agent
)

// MCPServerListRequest asks for the MCP servers there are (`mcp/server/list/req`).
type MCPServerListRequest struct {
	StatusFilter string `json:"status_filter"` // "" = any
}

// MCPServerListResponse answers an MCPServerListRequest (`mcp/server/list/resp`).
type MCPServerListResponse struct {
	Servers []map[string]any `json:"servers"`
}

// MCPServerRegisterRequest adds an MCP server (`mcp/server/register/req`).
type MCPServerRegisterRequest struct {
	Config Object `json:"config"`
}

// MCPServerRegisterResponse answers an MCPServerRegisterRequest (`mcp/server/register/resp`).
type MCPServerRegisterResponse struct {
	OK     bool           `json:"ok"`
	Server map[string]any `json:"server"`
	Error  string         `json:"error"`
}

// MCPServerUnregisterRequest removes an MCP server (`mcp/server/unregister/req`).
type MCPServerUnregisterRequest struct {
	ServerID string `json:"server_id"`
}

// MCPServerUnregisterResponse answers an MCPServerUnregisterRequest (`mcp/server/unregister/resp`).
type MCPServerUnregisterResponse struct {
	OK       bool   `json:"ok"`
	ServerID string `json:"server_id"`
}

// MCPResourceListRequest asks for a page of resources (`mcp/resource/list/req`).
type MCPResourceListRequest struct {
	ServerID string `json:"server_id"` // "" = all
	Cursor   string `json:"cursor"`    // next_cursor of the previous page; "" = the first page
}

// MCPResourceListResponse answers an MCPResourceListRequest (`mcp/resource/list/resp`).
type MCPResourceListResponse struct {
	Resources  []map[string]any `json:"resources"`
	NextCursor string           `json:"next_cursor"` // "" = the last page
}

// MCPResourceReadRequest reads a resource (`mcp/resource/read/req`).
type MCPResourceReadRequest struct {
	URI      string `json:"uri"`
	ServerID string `json:"server_id"`
}

// MCPResourceReadResponse answers an MCPResourceReadRequest (`mcp/resource/read/resp`).
type MCPResourceReadResponse struct {
	Contents []map[string]any `json:"contents"`
	ServerID string           `json:"server_id"`
	Error    string           `json:"error"`
	Meta     jsontext.Value   `json:"_meta,omitzero"` // from the server's result, an object; an extension
}

// MCPResourceSubscribeRequest asks for pushes of a resource's changes (`mcp/resource/subscribe/req`).
type MCPResourceSubscribeRequest struct {
	URI      string `json:"uri"`
	ServerID string `json:"server_id"`
}

// MCPResourceSubscribeResponse answers an MCPResourceSubscribeRequest (`mcp/resource/subscribe/resp`).
type MCPResourceSubscribeResponse struct {
	OK    bool   `json:"ok"`
	Error string `json:"error"`
}

// MCPPromptListRequest asks for a page of prompts (`mcp/prompt/list/req`).
type MCPPromptListRequest struct {
	ServerID string `json:"server_id"` // "" = all
	Cursor   string `json:"cursor"`    // next_cursor of the previous page; "" = the first page
}

// MCPPromptListResponse answers an MCPPromptListRequest (`mcp/prompt/list/resp`).
type MCPPromptListResponse struct {
	Prompts    []map[string]any `json:"prompts"`
	NextCursor string           `json:"next_cursor"` // "" = the last page
}

// MCPPromptGetRequest fills a prompt (`mcp/prompt/get/req`).
type MCPPromptGetRequest struct {
	Name      string `json:"name"`
	Arguments Object `json:"arguments"`
	ServerID  string `json:"server_id"`
}

// MCPPromptGetResponse answers an MCPPromptGetRequest (`mcp/prompt/get/resp`).
type MCPPromptGetResponse struct {
	Description string           `json:"description"`
	Messages    []map[string]any `json:"messages"`
	ServerID    string           `json:"server_id"`
	Error       string           `json:"error"`
	Meta        jsontext.Value   `json:"_meta,omitzero"` // from the server's result, an object; an extension
}

// SingleText returns the text of a prompt that consists of one message with only a text; ok reports
// whether the prompt is such a prompt.
func (r *MCPPromptGetResponse) SingleText() (text string, ok bool) {
	if len(r.Messages) != 1 {
		return "", false
	}
	var content struct {
		Type string  `json:"type"`
		Text *string `json:"text"`
	}
	raw, err := json.Marshal(r.Messages[0]["content"])
	if err != nil || json.Unmarshal(raw, &content) != nil || content.Type != "text" || content.Text == nil {
		return "", false
	}
	return *content.Text, true
}

// MCPRootListRequest asks the agent for its roots (`mcp/root/list/req`, from the host).
type MCPRootListRequest struct {
	ServerID     string `json:"server_id"`
	MCPRequestID string `json:"mcp_request_id"`
}

// MCPRootListResponse is the agent's answer to an MCPRootListRequest (`mcp/root/list/resp`).
type MCPRootListResponse struct {
	ServerID     string   `json:"server_id"`
	MCPRequestID string   `json:"mcp_request_id"`
	Roots        []Object `json:"roots"`
}

// MCPSampleRequest asks the agent's model (`mcp/sample/req`, from the host). Its
// objects pass through as the MCP server sent them.
type MCPSampleRequest struct {
	ServerID         string   `json:"server_id"`
	MCPRequestID     string   `json:"mcp_request_id"`
	Messages         []Object `json:"messages"`
	ModelPreferences Object   `json:"model_preferences"`
	SystemPrompt     string   `json:"system_prompt"`
	IncludeContext   string   `json:"include_context"`
	Temperature      float64  `json:"temperature"`
	MaxTokens        int      `json:"max_tokens"`
	StopSequences    []string `json:"stop_sequences"`
	Metadata         Object   `json:"metadata"`
	Extra            Object   `json:"extra,omitzero"` // further members of the server's params, as in MCP; an extension
}

// SetDefaults sets what the schema says for absent fields.
func (r *MCPSampleRequest) SetDefaults() {
	r.IncludeContext, r.Temperature, r.MaxTokens = "none", 1, 1024
}

// MCPSampleResponse is the agent's answer to an MCPSampleRequest (`mcp/sample/resp`).
type MCPSampleResponse struct {
	ServerID     string `json:"server_id"`
	MCPRequestID string `json:"mcp_request_id"`
	Role         string `json:"role"`
	Content      Object `json:"content"`
	Model        string `json:"model"`
	StopReason   string `json:"stop_reason"`
	Error        string `json:"error"`          // why there is no content
	Extra        Object `json:"extra,omitzero"` // further members of the result for the server; an extension
}

// SetDefaults sets what the schema says for absent fields.
func (r *MCPSampleResponse) SetDefaults() { r.Role = "assistant" }

// MCPElicitRequest asks the user something for an MCP server (`mcp/elicit/req`, from the
// host).
type MCPElicitRequest struct {
	ServerID        string `json:"server_id"`
	MCPRequestID    string `json:"mcp_request_id"`
	Mode            string `json:"mode"` // form or url
	Message         string `json:"message"`
	RequestedSchema Object `json:"requested_schema"` // JSON Schema of the content, in mode form
	URL             string `json:"url"`              // to be opened, in mode url
	Extra           Object `json:"extra,omitzero"`   // further members of the server's params, under MCP's names
}

// MCPElicitResponse is the agent's answer to an MCPElicitRequest (`mcp/elicit/resp`).
type MCPElicitResponse struct {
	ServerID     string `json:"server_id"`
	MCPRequestID string `json:"mcp_request_id"`
	Action       string `json:"action"`         // accept, decline or cancel
	Content      Object `json:"content"`        // with accept: what the user filled in
	Extra        Object `json:"extra,omitzero"` // further members of the result for the server
}

// MCPServerPush passes on a notification of an MCP server (`mcp/server/push`).
type MCPServerPush struct {
	ServerID string `json:"server_id"`
	Method   string `json:"method"`
	Params   Object `json:"params"`
}
