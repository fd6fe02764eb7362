package protocol

import (
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// The long spelling of capability `multi_agent`.
const (
	TypeSubagentAwaitReq     Type = "SUBAGENT_AWAIT_REQ"
	TypeSubagentAwaitResp    Type = "SUBAGENT_AWAIT_RESP"
	TypeSubagentCancelReq    Type = "SUBAGENT_CANCEL_REQ"
	TypeSubagentDelegateReq  Type = "SUBAGENT_DELEGATE_REQ"
	TypeSubagentDelegateResp Type = "SUBAGENT_DELEGATE_RESP"
	TypeSubagentEvent        Type = "SUBAGENT_EVENT"
	TypeSubagentListReq      Type = "SUBAGENT_LIST_REQ"
	TypeSubagentListResp     Type = "SUBAGENT_LIST_RESP"
	TypeSubagentMergeReq     Type = "SUBAGENT_MERGE_REQ"
	TypeSubagentMergeResp    Type = "SUBAGENT_MERGE_RESP"
	TypeSubagentMessageReq   Type = "SUBAGENT_MESSAGE_REQ"
	TypeSubagentMessageResp  Type = "SUBAGENT_MESSAGE_RESP"
	TypeSubagentSpawnReq     Type = "SUBAGENT_SPAWN_REQ"
	TypeSubagentSpawnResp    Type = "SUBAGENT_SPAWN_RESP"
	TypeSubagentTerminateReq Type = "SUBAGENT_TERMINATE_REQ"
)

// SubagentStatus is where a child agent is in its life.
type SubagentStatus string

// The states of a child agent. The zero value is not a state: an answer with
// a status must set it.
const (
	SubagentReady      SubagentStatus = "READY"
	SubagentRunning    SubagentStatus = "RUNNING"
	SubagentWaiting    SubagentStatus = "WAITING"
	SubagentCompleted  SubagentStatus = "COMPLETED"
	SubagentFailed     SubagentStatus = "FAILED"
	SubagentCancelled  SubagentStatus = "CANCELLED"
	SubagentTerminated SubagentStatus = "TERMINATED"
)

// MemoryScope says which memory a child agent sees.
type MemoryScope string

// The memory scopes.
const (
	MemoryShared   MemoryScope = "shared"
	MemoryIsolated MemoryScope = "isolated"
	MemorySnapshot MemoryScope = "snapshot"
)

// ToolScope says which tools a child agent has.
type ToolScope string

// The tool scopes.
const (
	ToolsShared     ToolScope = "shared"
	ToolsRestricted ToolScope = "restricted"
	ToolsIsolated   ToolScope = "isolated"
)

// SubagentConfig describes a child agent.
type SubagentConfig struct {
	Name           string      `json:"name"`
	Role           *string     `json:"role"`
	Model          string      `json:"model"`
	SystemPrompt   *string     `json:"system_prompt"`
	Capabilities   []string    `json:"capabilities"`
	MemoryScope    MemoryScope `json:"memory_scope"`
	ToolScope      ToolScope   `json:"tool_scope"`
	MaxSteps       int         `json:"max_steps"`
	TimeoutSeconds int         `json:"timeout_seconds"`
	Metadata       Object      `json:"metadata"`
}

// SetDefaults sets what the schema says for absent fields.
func (c *SubagentConfig) SetDefaults() {
	c.MemoryScope, c.ToolScope, c.MaxSteps, c.TimeoutSeconds = MemoryShared, ToolsRestricted, 40, 600
}

// UnmarshalJSONFrom implements json.UnmarshalerFrom. It sets the defaults first.
func (c *SubagentConfig) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	type plain SubagentConfig
	*c = SubagentConfig{}
	c.SetDefaults()
	return json.UnmarshalDecode(dec, (*plain)(c))
}

// SubagentInfo is one child agent of a list.
type SubagentInfo struct {
	SubagentID    string         `json:"subagent_id"`
	Name          string         `json:"name"`
	Status        SubagentStatus `json:"status"`
	ParentAgentID *string        `json:"parent_agent_id"`
	RootAgentID   *string        `json:"root_agent_id"`
	Depth         int            `json:"depth"` // 0 = started by the agent of the session
	Config        SubagentConfig `json:"config"`
}

// TaskDefinition is the task of a SubagentDelegateRequest.
type TaskDefinition struct {
	Name            string   `json:"name"`
	Instruction     string   `json:"instruction"`
	SuccessCriteria []string `json:"success_criteria"`
	Metadata        Object   `json:"metadata"`
}

// SubagentPayload is the content of a message from one child agent to another.
type SubagentPayload struct {
	Type    string         `json:"type"`
	Content jsontext.Value `json:"content"` // nil = null
}

// SubagentAwaitRequest waits for a child agent's result (`SUBAGENT_AWAIT_REQ`).
type SubagentAwaitRequest struct {
	SubagentID string `json:"subagent_id"`
}

// SubagentAwaitResponse answers a SubagentAwaitRequest (`SUBAGENT_AWAIT_RESP`).
type SubagentAwaitResponse struct {
	SubagentID string           `json:"subagent_id"`
	Status     SubagentStatus   `json:"status"`
	Result     NullableMap[any] `json:"result"`
	Error      *string          `json:"error"`
}

// SubagentCancelRequest stops a child agent's task (`SUBAGENT_CANCEL_REQ`); an
// AgentTerminateResponse answers it.
type SubagentCancelRequest struct {
	SubagentID string `json:"subagent_id"`
}

// SubagentDelegateRequest gives a child agent a task (`SUBAGENT_DELEGATE_REQ`).
type SubagentDelegateRequest struct {
	SubagentID string         `json:"subagent_id"`
	Task       TaskDefinition `json:"task"`
}

// SubagentDelegateResponse answers a SubagentDelegateRequest (`SUBAGENT_DELEGATE_RESP`).
type SubagentDelegateResponse struct {
	Accepted bool           `json:"accepted"`
	Status   SubagentStatus `json:"status"`
}

// SetDefaults sets what the schema says for absent fields.
func (r *SubagentDelegateResponse) SetDefaults() { r.Accepted = true }

// SubagentEvent reports what a child agent does (`SUBAGENT_EVENT`).
type SubagentEvent struct {
	SubagentID string         `json:"subagent_id"`
	Event      string         `json:"event"`
	Content    map[string]any `json:"content"`
}

// SubagentListRequest asks for the child agents (`SUBAGENT_LIST_REQ`).
type SubagentListRequest struct{}

// SubagentListResponse answers a SubagentListRequest (`SUBAGENT_LIST_RESP`).
type SubagentListResponse struct {
	Subagents []SubagentInfo `json:"subagents"`
}

// SubagentMergeRequest merges the results of child agents (`SUBAGENT_MERGE_REQ`).
type SubagentMergeRequest struct {
	SubagentIDs []string `json:"subagent_ids"`
	Strategy    string   `json:"strategy"`
}

// SetDefaults sets what the schema says for absent fields.
func (r *SubagentMergeRequest) SetDefaults() { r.Strategy = "hierarchical_summary" }

// SubagentMergeResponse answers a SubagentMergeRequest (`SUBAGENT_MERGE_RESP`).
type SubagentMergeResponse struct {
	MergedResult map[string]any `json:"merged_result"`
}

// SubagentMessageRequest passes a message between child agents (`SUBAGENT_MESSAGE_REQ`).
type SubagentMessageRequest struct {
	FromSubagentID string          `json:"from_subagent_id"`
	ToSubagentID   string          `json:"to_subagent_id"`
	Message        SubagentPayload `json:"message"`
}

// SubagentMessageResponse answers a SubagentMessageRequest (`SUBAGENT_MESSAGE_RESP`).
type SubagentMessageResponse struct {
	Delivered bool `json:"delivered"`
}

// SetDefaults sets what the schema says for absent fields.
func (r *SubagentMessageResponse) SetDefaults() { r.Delivered = true }

// SubagentSpawnRequest starts a child agent (`SUBAGENT_SPAWN_REQ`).
type SubagentSpawnRequest struct {
	Agent         SubagentConfig `json:"agent"`
	ParentAgentID *string        `json:"parent_agent_id"`
	RootAgentID   *string        `json:"root_agent_id"`
}

// SetDefaults sets what the schema says for absent fields.
func (r *SubagentSpawnRequest) SetDefaults() { r.Agent.SetDefaults() }

// SubagentSpawnResponse answers a SubagentSpawnRequest (`SUBAGENT_SPAWN_RESP`).
type SubagentSpawnResponse struct {
	SubagentID string         `json:"subagent_id"`
	Status     SubagentStatus `json:"status"`
}

// SubagentTerminateRequest stops a child agent (`SUBAGENT_TERMINATE_REQ`); an
// AgentTerminateResponse answers it.
type SubagentTerminateRequest struct {
	SubagentID string `json:"subagent_id"`
}

// The short spelling of capability `multi_agent`; the long one is above.
// A request's type plus "/resp" is the type of its answer.
const (
	TypeAgentSpawnReq      Type = "multi_agent/spawn"
	TypeAgentDelegateReq   Type = "multi_agent/delegate"
	TypeAgentAwaitReq      Type = "multi_agent/await"
	TypeAgentListReq       Type = "multi_agent/list"
	TypeAgentTerminateReq  Type = "multi_agent/terminate"
	TypeAgentSpawnResp     Type = "multi_agent/spawn/resp"
	TypeAgentDelegateResp  Type = "multi_agent/delegate/resp"
	TypeAgentAwaitResp     Type = "multi_agent/await/resp"
	TypeAgentListResp      Type = "multi_agent/list/resp"
	TypeAgentTerminateResp Type = "multi_agent/terminate/resp"
)

// AgentSpawnRequest starts a child agent (`multi_agent/spawn`).
type AgentSpawnRequest struct {
	Name     string `json:"name"`
	Role     string `json:"role"`
	Model    string `json:"model"`
	MaxSteps int    `json:"max_steps"`
	Metadata Object `json:"metadata"`
}

// SetDefaults sets what the schema says for absent fields.
func (r *AgentSpawnRequest) SetDefaults() { r.Model, r.MaxSteps = "default", 20 }

// AgentSpawnResponse answers an AgentSpawnRequest.
type AgentSpawnResponse struct {
	SubagentID string         `json:"subagent_id"`
	Status     SubagentStatus `json:"status"`
}

// AgentDelegateRequest gives a child agent a task (`multi_agent/delegate`).
type AgentDelegateRequest struct {
	SubagentID      string   `json:"subagent_id"`
	TaskName        string   `json:"task_name"`
	Instruction     string   `json:"instruction"`
	SuccessCriteria []string `json:"success_criteria"`
}

// AgentDelegateResponse answers an AgentDelegateRequest.
type AgentDelegateResponse struct {
	Accepted bool           `json:"accepted"`
	Status   SubagentStatus `json:"status"`
}

// SetDefaults sets what the schema says for absent fields.
func (r *AgentDelegateResponse) SetDefaults() { r.Accepted = true }

// AgentAwaitRequest waits for a child agent's result (`multi_agent/await`).
type AgentAwaitRequest struct {
	SubagentID string `json:"subagent_id"`
}

// AgentAwaitResponse answers an AgentAwaitRequest.
type AgentAwaitResponse struct {
	SubagentID string           `json:"subagent_id"`
	Status     SubagentStatus   `json:"status"`
	Result     NullableMap[any] `json:"result"`
	Error      *string          `json:"error"`
}

// AgentListRequest asks for the child agents (`multi_agent/list`).
type AgentListRequest struct{}

// AgentListResponse answers an AgentListRequest.
type AgentListResponse struct {
	Subagents []map[string]any `json:"subagents"`
}

// AgentTerminateRequest stops a child agent (`multi_agent/terminate`).
type AgentTerminateRequest struct {
	SubagentID string `json:"subagent_id"`
}

// AgentTerminateResponse answers an AgentTerminateRequest. It also answers
// SUBAGENT_CANCEL_REQ and SUBAGENT_TERMINATE_REQ, which have no answer type
// of their own.
type AgentTerminateResponse struct {
	Success    bool   `json:"success"`
	SubagentID string `json:"subagent_id"`
}
