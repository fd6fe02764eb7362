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
	DoneColumn  string   `json:"done_column,omitzero"` // column of done tasks; "" = "done", or else the last
	Delete      bool     `json:"delete,omitzero"`      // delete the plan PlanID and its tasks instead of making a plan
	PlanID      string   `json:"plan_id,omitzero"`
	Force       bool     `json:"force,omitzero"` // delete the plan even if a task is claimed
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

// PlanListRequest asks for the plans (`planning/plan/list`).
type PlanListRequest struct {
	Folder string `json:"folder,omitzero"` // only plans made in this folder; "." = the workspace; "" = all
}

// PlanListResponse answers a PlanListRequest.
type PlanListResponse struct {
	Plans []map[string]any `json:"plans"`
}

// TaskAddRequest adds a task to a plan (`planning/task/add`). An absent status stays
// empty, although the schema's default is "backlog", as not every plan has that
// column.
type TaskAddRequest struct {
	PlanID      string   `json:"plan_id"`
	Title       string   `json:"title"`
	Status      string   `json:"status"` // one of the plan's columns; "" or a missing "backlog" = the first column
	Description string   `json:"description"`
	Assignee    string   `json:"assignee"`
	Deps        []string `json:"deps"` // task ids that come first
	Metadata    Object   `json:"metadata"`
	Priority    string   `json:"priority,omitzero"` // low, normal, high or urgent; "" = normal
	Due         string   `json:"due,omitzero"`      // RFC 3339, or a date
	Estimate    string   `json:"estimate,omitzero"` // such as 1h30m
	Force       bool     `json:"force,omitzero"`    // allow a done task although its deps are not done
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
	TaskClaim   = "claim"   // claim the task for Owner for Lease seconds; without a TaskID, the first ready task
	TaskRenew   = "renew"   // extend the claim to Lease seconds from now
	TaskRelease = "release" // end the claim
	TaskDelete  = "delete"
)

// TaskUpdateRequest changes a task (`planning/task/update`). An empty field changes
// nothing, not even an empty list of deps.
type TaskUpdateRequest struct {
	PlanID      string   `json:"plan_id"`
	TaskID      string   `json:"task_id"`
	Status      string   `json:"status"`
	Assignee    string   `json:"assignee"`
	Deps        []string `json:"deps"`
	Title       string   `json:"title,omitzero"`
	Description string   `json:"description,omitzero"`
	Metadata    Object   `json:"metadata,omitzero"` // replaces the whole metadata
	Priority    string   `json:"priority,omitzero"`
	Due         string   `json:"due,omitzero"`
	Estimate    string   `json:"estimate,omitzero"`
	Comment     string   `json:"comment,omitzero"` // a comment to add
	Clear       []string `json:"clear,omitzero"`   // fields to empty
	Action      string   `json:"action,omitzero"`
	Owner       string   `json:"owner,omitzero"`      // who claims, or has claimed; "" = the session's agent_id
	Lease       int      `json:"lease,omitzero"`      // seconds; 0 = 300
	IfVersion   int      `json:"if_version,omitzero"` // only if the task has this version; 0 = any
	// change the task even if its deps are not done, somebody else has claimed it, or others wait for it
	Force bool `json:"force,omitzero"`
}

// TaskUpdateResponse answers a TaskUpdateRequest.
type TaskUpdateResponse struct {
	Success   bool           `json:"success"`
	TaskID    string         `json:"task_id"`
	Error     string         `json:"error,omitzero"`     // why there is no success; not in the schema
	Task      map[string]any `json:"task,omitzero"`      // its present state, also without success
	Remaining *int           `json:"remaining,omitzero"` // number of tasks that are not done, if no task was ready
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
	PlanMermaid  = "mermaid" // graph of the dependencies
)

// PlanBoardResponse answers a PlanBoardRequest.
type PlanBoardResponse struct {
	Boards []map[string]any `json:"boards"`
	Text   string           `json:"text,omitzero"` // the plan as text instead of a board, if the request has a Format
}
