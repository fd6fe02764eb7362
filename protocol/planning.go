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
	DoneColumn  string   `json:"done_column,omitzero"` // where tasks are done; "" = done, or else the last one
	Delete      bool     `json:"delete,omitzero"`      // the plan PlanID and its tasks, in place of making one
	PlanID      string   `json:"plan_id,omitzero"`
	Force       bool     `json:"force,omitzero"` // also where somebody works on a task of it
}

// SetDefaults sets what the schema says for absent fields.
func (r *PlanCreateRequest) SetDefaults() { r.Name = "default" }

// PlanCreateResponse answers a PlanCreateRequest.
type PlanCreateResponse struct {
	Success bool     `json:"success"`
	PlanID  string   `json:"plan_id"`
	Columns []string `json:"columns"`
	Error   string   `json:"error,omitzero"` // why there is no success
}

// PlanListRequest asks for the plans there are (`planning/plan/list`).
type PlanListRequest struct {
	Folder string `json:"folder,omitzero"` // only those made in it; "." = the workspace; "" = all
}

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
	Priority    string   `json:"priority,omitzero"` // low, normal, high or urgent; "" = normal
	Due         string   `json:"due,omitzero"`      // RFC 3339, or a date
	Estimate    string   `json:"estimate,omitzero"` // such as 1h30m
	Force       bool     `json:"force,omitzero"`    // done already, although its deps are not
}

// TaskAddResponse answers a TaskAddRequest.
type TaskAddResponse struct {
	Success bool   `json:"success"`
	TaskID  string `json:"task_id"`
	Status  string `json:"status"`
	Error   string `json:"error,omitzero"` // why there is no success; not in the schema
}

// The actions of a TaskUpdateRequest.
const (
	TaskClaim   = "claim"   // the task is Owner's for Lease seconds; without a TaskID the first that is ready
	TaskRenew   = "renew"   // for Lease seconds more
	TaskRelease = "release" // it is nobody's again
	TaskDelete  = "delete"
)

// TaskUpdateRequest changes a task (`planning/task/update`); what is empty stays,
// an empty list of deps too.
type TaskUpdateRequest struct {
	PlanID      string   `json:"plan_id"`
	TaskID      string   `json:"task_id"`
	Status      string   `json:"status"`
	Assignee    string   `json:"assignee"`
	Deps        []string `json:"deps"`
	Title       string   `json:"title,omitzero"`
	Description string   `json:"description,omitzero"`
	Metadata    Object   `json:"metadata,omitzero"` // all of it
	Priority    string   `json:"priority,omitzero"`
	Due         string   `json:"due,omitzero"`
	Estimate    string   `json:"estimate,omitzero"`
	Comment     string   `json:"comment,omitzero"` // one more
	Clear       []string `json:"clear,omitzero"`   // fields to be empty
	Action      string   `json:"action,omitzero"`
	Owner       string   `json:"owner,omitzero"`      // who claims, or has claimed; "" = the session's agent_id
	Lease       int      `json:"lease,omitzero"`      // seconds; 0 = 300
	IfVersion   int      `json:"if_version,omitzero"` // only if the task has this version; 0 = any
	// although its deps are not done, somebody else has it, or others wait for it
	Force bool `json:"force,omitzero"`
}

// TaskUpdateResponse answers a TaskUpdateRequest.
type TaskUpdateResponse struct {
	Success   bool           `json:"success"`
	TaskID    string         `json:"task_id"`
	Error     string         `json:"error,omitzero"`     // why there is no success; not in the schema
	Task      map[string]any `json:"task,omitzero"`      // as it is now, also without success
	Remaining *int           `json:"remaining,omitzero"` // tasks of the plan that are not done, where none was ready
}

// TaskListRequest asks for tasks (`planning/task/list`).
type TaskListRequest struct {
	PlanID   string `json:"plan_id"` // "" = all
	Status   string `json:"status"`  // "" = any
	TaskID   string `json:"task_id,omitzero"`
	Assignee string `json:"assignee,omitzero"`
	Ready    bool   `json:"ready,omitzero"` // not done, claimed by nobody, deps done; by priority, due and age
	Limit    int    `json:"limit,omitzero"` // 0 = all
}

// TaskListResponse answers a TaskListRequest.
type TaskListResponse struct {
	Tasks []map[string]any `json:"tasks"`
}

// PlanBoardRequest asks for plans as boards (`planning/plan/board`).
type PlanBoardRequest struct {
	PlanID string `json:"plan_id"` // "" = all
	Format string `json:"format,omitzero"`
}

// The formats of a PlanBoardRequest; "" is a board.
const (
	PlanMarkdown = "markdown"
	PlanMermaid  = "mermaid" // who waits for whom
)

// PlanBoardResponse answers a PlanBoardRequest.
type PlanBoardResponse struct {
	Boards []map[string]any `json:"boards"`
	Text   string           `json:"text,omitzero"` // of the plan, in place of a board, where a Format was asked for
}
