package protocol

// The short spelling of capability `multi_agent`; subagent.go has the long one.
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

// AgentListRequest asks for the child agents there are (`multi_agent/list`).
type AgentListRequest struct{}

// AgentListResponse answers an AgentListRequest.
type AgentListResponse struct {
	Subagents []map[string]any `json:"subagents"`
}

// AgentTerminateRequest stops a child agent (`multi_agent/terminate`).
type AgentTerminateRequest struct {
	SubagentID string `json:"subagent_id"`
}

// AgentTerminateResponse answers an AgentTerminateRequest. It answers
// SUBAGENT_CANCEL_REQ and SUBAGENT_TERMINATE_REQ too, which have no answer type
// of their own.
type AgentTerminateResponse struct {
	Success    bool   `json:"success"`
	SubagentID string `json:"subagent_id"`
}
