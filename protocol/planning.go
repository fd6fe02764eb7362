package protocol

// The message types of capability `planning`; a request's type plus "/resp" is
// the type of its answer.
const (
	TypePlanCreateReq  Type = "planning/plan/create"
	TypePlanListReq    Type = "planning/plan/list"
	TypeTaskAddReq     Type = "planning/task/add"
	TypeTaskUpdateReq  Type = "planning/task/update"
	TypeTaskListReq    Type = "planning/task/list"
	TypePlanBoardReq   Type = "planning/plan/board"
	TypePlanCreateResp Type = "planning/plan/create/resp"
	TypePlanListResp   Type = "planning/plan/list/resp"
	TypeTaskAddResp    Type = "planning/task/add/resp"
	TypeTaskUpdateResp Type = "planning/task/update/resp"
	TypeTaskListResp   Type = "planning/task/list/resp"
	TypePlanBoardResp  Type = "planning/plan/board/resp"
)

// PlanCreateRequest makes a plan (`planning/plan/create`).
type PlanCreateRequest struct {
	Name        string   `json:"name"`
	Columns     []string `json:"columns"` // the states of its tasks, in order
	Description string   `json:"description"`
}

// SetDefaults sets what the schema says for absent fields.
func (r *PlanCreateRequest) SetDefaults() { r.Name = "default" }

// PlanCreateResponse answers a PlanCreateRequest.
type PlanCreateResponse struct {
	Success bool     `json:"success"`
	PlanID  string   `json:"plan_id"`
	Columns []string `json:"columns"`
}

// PlanListRequest asks for the plans there are (`planning/plan/list`).
type PlanListRequest struct{}

// PlanListResponse answers a PlanListRequest.
type PlanListResponse struct {
	Plans []map[string]any `json:"plans"`
}

// TaskAddRequest adds a task to a plan (`planning/task/add`). Where no status was
// sent there is none here, though the schema says "backlog": that is no column of
// every plan.
type TaskAddRequest struct {
	PlanID      string   `json:"plan_id"`
	Title       string   `json:"title"`
	Status      string   `json:"status"` // one of the plan's columns; "" or "backlog" = the one where tasks begin
	Description string   `json:"description"`
	Assignee    string   `json:"assignee"`
	Deps        []string `json:"deps"` // task ids that come first
	Metadata    Object   `json:"metadata"`
}

// TaskAddResponse answers a TaskAddRequest.
type TaskAddResponse struct {
	Success bool   `json:"success"`
	TaskID  string `json:"task_id"`
	Status  string `json:"status"`
	Error   string `json:"error,omitzero"` // why there is no success; not in the schema
}

// TaskUpdateRequest changes a task (`planning/task/update`); what is empty stays,
// an empty list of deps too.
type TaskUpdateRequest struct {
	PlanID   string   `json:"plan_id"`
	TaskID   string   `json:"task_id"`
	Status   string   `json:"status"`
	Assignee string   `json:"assignee"`
	Deps     []string `json:"deps"`
}

// TaskUpdateResponse answers a TaskUpdateRequest.
type TaskUpdateResponse struct {
	Success bool   `json:"success"`
	TaskID  string `json:"task_id"`
	Error   string `json:"error,omitzero"` // why there is no success; not in the schema
}

// TaskListRequest asks for tasks (`planning/task/list`).
type TaskListRequest struct {
	PlanID string `json:"plan_id"` // "" = all
	Status string `json:"status"`  // "" = any
}

// TaskListResponse answers a TaskListRequest.
type TaskListResponse struct {
	Tasks []map[string]any `json:"tasks"`
}

// PlanBoardRequest asks for plans as boards (`planning/plan/board`).
type PlanBoardRequest struct {
	PlanID string `json:"plan_id"` // "" = all
}

// PlanBoardResponse answers a PlanBoardRequest.
type PlanBoardResponse struct {
	Boards []map[string]any `json:"boards"`
}
