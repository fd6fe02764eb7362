// Package fleet has the messages of the fleet protocol 2.0, by which an orchestrator hands tasks to
// workers. A worker announces itself, takes tasks and sends exactly one result for each.
package fleet

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/protocol"
)

// Version is the value of protocol_version in every message.
const Version = "2.0"

// Speaks reports whether this package understands a protocol version: all of major version 2, as
// minor versions only add to it.
func Speaks(version string) bool {
	major, _, _ := strings.Cut(version, ".")
	return major == "2"
}

// WrongVersion returns the text of the error for a refused protocol version.
func WrongVersion(version string) string {
	return fmt.Sprintf("protocol_version is %.32q; should be 2.x, such as %q", version, Version)
}

// The message types.
const (
	TypeAnnounce protocol.Type = "SESSION_ANNOUNCE"
	TypeDispatch protocol.Type = "TASK_DISPATCH"
	TypeResult   protocol.Type = "TASK_RESULT"
)

// An extension of the protocol: messages about a task under way, for a worker that announces
// ExtensionSteer or ExtensionCancel. The only answer to them is the task's result. If the worker
// cannot carry one out, it sends a result without a task_id.
const (
	TypeSteer  protocol.Type = "TASK_STEER"  // a text for the worker
	TypeCancel protocol.Type = "TASK_CANCEL" // stop the task and send its result

	ExtensionSteer  = "steer"
	ExtensionCancel = "cancel"
)

// Control is a message about a task under way (TASK_STEER, TASK_CANCEL).
type Control struct {
	Type            protocol.Type `json:"type"`
	ProtocolVersion string        `json:"protocol_version"`
	TaskID          string        `json:"task_id"`
	Text            string        `json:"text,omitzero"` // only in TASK_STEER
}

// Announce says what a worker is and what it can do (SESSION_ANNOUNCE).
type Announce struct {
	Type            protocol.Type     `json:"type"`
	ProtocolVersion string            `json:"protocol_version"`
	Worker          Worker            `json:"worker"`
	Capabilities    Capabilities      `json:"capabilities"`
	MCPHealth       map[string]Health `json:"mcp_health"` // by server id
	Session         Session           `json:"session"`
}

// Worker identifies a worker and its model.
type Worker struct {
	AgentID       string `json:"agent_id"`
	Model         string `json:"model"`
	ModelTier     string `json:"model_tier"`
	ContextWindow int    `json:"context_window"` // tokens
}

// Capabilities is what a worker can use.
type Capabilities struct {
	Tools      []string `json:"tools"`
	MCPServers []string `json:"mcp_servers"`
	Extensions []string `json:"extensions,omitzero"` // protocol extensions that it accepts, such as ExtensionCancel
}

// Health is the state of an MCP server of the worker.
type Health string

// The values of Health.
const (
	HealthOK      Health = "ok"
	HealthTimeout Health = "timeout"
	HealthError   Health = "error"
)

// Session is the state that a worker is in.
type Session struct {
	ContextID    string     `json:"context_id"`
	ActiveTasks  int        `json:"active_tasks"`
	RepoState    *RepoState `json:"repo_state"` // nil = the workspace is not a repository
	SessionFresh bool       `json:"session_fresh"`
}

// RepoState is the state of the workspace's git repository.
type RepoState struct {
	Branch string `json:"branch"`
	Clean  bool   `json:"clean"`
}

// Priority orders tasks; higher ones start first.
type Priority string

// The priorities, lowest first.
const (
	PriorityLow    Priority = "low"
	PriorityNormal Priority = "normal"
	PriorityHigh   Priority = "high"
	PriorityUrgent Priority = "urgent"
)

// Rank returns 0 for the lowest priority and 3 for the highest, or -1 for an unknown priority.
func (p Priority) Rank() int {
	return slices.Index([]Priority{PriorityLow, PriorityNormal, PriorityHigh, PriorityUrgent}, p)
}

// ReplySchema is the format of the result's summary that the orchestrator wants. It does not change the
// other fields of the result.
type ReplySchema string

// The values of ReplySchema.
const (
	ReplyProse      ReplySchema = "prose"      // the text of the worker
	ReplyStructured ReplySchema = "structured" // the summary of the worker's own result, or else its text as JSON
	ReplyJSON       ReplySchema = "json"       // a JSON text
)

// Dispatch hands a task to a worker (TASK_DISPATCH).
type Dispatch struct {
	Type            protocol.Type `json:"type"`
	ProtocolVersion string        `json:"protocol_version"`
	Task            Task          `json:"task"`
	Requirements    Requirements  `json:"requirements"`
	Deadline        string        `json:"deadline"` // RFC 3339; "" = none
	Brief           string        `json:"brief"`    // the text of the task
	AuthToken       string        `json:"auth_token,omitzero"`
	Agent           *Agent        `json:"agent,omitzero"` // an extension; nil = unknown
}

// EnvAgent is the environment variable in which a process that does a task finds its
// Agent, as JSON. A host that is started with it serves only that agent, and offers no more
// than the Agent grants.
const EnvAgent = "A2E_AGENT"

// Agent is the child agent that does a task, and what it may use.
type Agent struct {
	AgentID       string               `json:"agent_id"`
	ParentAgentID string               `json:"parent_agent_id,omitzero"`
	RootAgentID   string               `json:"root_agent_id,omitzero"`
	Depth         int                  `json:"depth"` // 1 = child of the agent of the first host
	MemoryScope   protocol.MemoryScope `json:"memory_scope"`
	ToolScope     protocol.ToolScope   `json:"tool_scope"`
	// names of the tools and capabilities that ToolsRestricted grants
	Capabilities []string `json:"capabilities"`
	MaxSteps     int      `json:"max_steps"` // most calls of tools; 0 = no limit
	// Token proves that the agent is the child with AgentID, see NewChild; "" for other agents.
	Token string `json:"agent_token,omitzero"`
}

// Grants reports whether the agent may use the tool or capability with the name. It always grants
// memory; MemoryScope decides which memory the agent sees.
func (a *Agent) Grants(name string) bool {
	switch {
	case a == nil || a.ToolScope == protocol.ToolsShared || name == string(protocol.CapMemory):
		return true
	case a.ToolScope == protocol.ToolsIsolated:
		return false
	}
	return slices.Contains(a.Capabilities, name)
}

// Task names a task and says how it is to be done.
type Task struct {
	TaskID      string      `json:"task_id"`
	Priority    Priority    `json:"priority"`     // "" = normal
	ReplySchema ReplySchema `json:"reply_schema"` // "" = prose
	TokenBudget int         `json:"token_budget"` // 0 = none
	// Writes says whether the task changes files, an extension; nil = see Dispatch.Writes.
	Writes *bool `json:"writes,omitzero"`
	// Isolation says where the task is done, an extension; "" = the setting in the worker's config.
	Isolation Isolation `json:"isolation,omitzero"`
	// ContextID is the conversation that the task belongs to, an extension: a worker that can do so continues
	// that conversation. "" = none.
	ContextID string `json:"context_id,omitzero"`
}

// Isolation says where a task is done.
type Isolation string

// The values of Isolation.
const (
	IsolationNone     Isolation = "none"     // in the workspace
	IsolationWorktree Isolation = "worktree" // in a git worktree of its own
)

// Requirements are what the worker must have.
type Requirements struct {
	RequiredMCP          []string `json:"required_mcp"`
	RequiredCapabilities []string `json:"required_capabilities"` // tools, toolkits, capabilities or Words
}

// Status is how a task ended.
type Status string

// The values of Status.
const (
	StatusDone    Status = "done"
	StatusBlocked Status = "blocked" // no work was done
	StatusError   Status = "error"
	StatusPartial Status = "partial"
)

// Result is the one answer to a Dispatch (TASK_RESULT).
type Result struct {
	Type            protocol.Type  `json:"type"`
	ProtocolVersion string         `json:"protocol_version"`
	TaskID          string         `json:"task_id"`
	Status          Status         `json:"status"`
	TokensSpent     int            `json:"tokens_spent"`
	TokensEstimated bool           `json:"tokens_estimated,omitzero"` // tokens_spent is an estimate from the text
	NextSteps       []string       `json:"next_steps"`
	BlockedReason   *string        `json:"blocked_reason"`
	Artifacts       Artifacts      `json:"artifacts"`
	Summary         string         `json:"summary"`
	Error           string         `json:"error,omitzero"`
	Remaining       jsontext.Value `json:"remaining,omitzero"` // what is left to do, with StatusPartial
	Duplicate       bool           `json:"duplicate,omitzero"` // blocked because a task with the same id is under way
}

// Artifacts lists the changes that a task made.
type Artifacts struct {
	PR           *string  `json:"pr"`
	FilesChanged []string `json:"files_changed"` // relative to the workspace
	// Written is the part of FilesChanged that calls of tools wrote. It is not sent.
	Written []string `json:"-"`
	// Branch is the branch of the workspace's repository with the changes; "" = the changes are
	// in the workspace itself. An extension.
	Branch string `json:"branch,omitzero"`
	// Patch has the changes of the branch in the format of git apply, and Files the contents of
	// the changed files, for an orchestrator on another machine. Extensions; a worker on a
	// pipe leaves them out.
	Patch string `json:"patch,omitzero"`
	Files []File `json:"files,omitzero"`
}

// File is a file as a task left it.
type File struct {
	Path    string `json:"path"`              // as in files_changed
	Content []byte `json:"content,omitzero"`  // base64
	Gone    bool   `json:"gone,omitzero"`     // the task deleted it
	Left    string `json:"left_out,omitzero"` // why its content is left out
}

// NewResult returns a result whose lists are empty but not nil.
func NewResult(taskID string, status Status) *Result {
	return &Result{
		Type: TypeResult, ProtocolVersion: Version, TaskID: taskID, Status: status,
		NextSteps: []string{}, Artifacts: Artifacts{FilesChanged: []string{}},
	}
}

// Blocked returns the result of a task for which no work was done.
func Blocked(taskID, reason string) *Result {
	r := NewResult(taskID, StatusBlocked)
	r.BlockedReason = &reason
	return r
}

// Writes reports whether a task changes files: as its field Writes says or, without that field, whether it
// requires a tool or capability that can change them.
func (d *Dispatch) Writes() bool {
	if d.Task.Writes != nil {
		return *d.Task.Writes
	}
	return slices.ContainsFunc(d.Requirements.RequiredCapabilities, func(name string) bool {
		return slices.Contains([]string{
			"terminal", "file", "patch", "run_command", "bash", "write_file", "edit_file",
			"proc",
		}, name)
	})
}

// maxNeeds is how many entries each list of requirements may have: other tasks wait while they are
// looked up.
const (
	maxNeeds     = 1024
	maxContextID = 256 // bytes
)

// Check returns what is wrong with the fields of the task, or nil.
func (d *Dispatch) Check() *protocol.FieldError {
	wrong := func(path, format string, args ...any) *protocol.FieldError {
		return &protocol.FieldError{Path: path, Message: fmt.Sprintf(format, args...)}
	}
	need := &d.Requirements
	switch {
	case strings.ContainsRune(d.Task.TaskID, 0): // programs get the id in their environment
		return wrong("/task/task_id", "has a NUL character; should be text without any")
	case d.Task.Priority != "" && d.Task.Priority.Rank() < 0:
		return wrong("/task/priority", "is %.32q; should be low, normal, high or urgent", d.Task.Priority)
	case !slices.Contains([]ReplySchema{"", ReplyProse, ReplyStructured, ReplyJSON}, d.Task.ReplySchema):
		return wrong("/task/reply_schema", "is %.32q; should be prose, structured or json", d.Task.ReplySchema)
	case !slices.Contains([]Isolation{"", IsolationNone, IsolationWorktree}, d.Task.Isolation):
		return wrong("/task/isolation", "is %.32q; should be none or worktree", d.Task.Isolation)
	case len(d.Task.ContextID) > maxContextID || strings.ContainsRune(d.Task.ContextID, 0):
		return wrong("/task/context_id", "should have at most %d bytes, none of them NUL", maxContextID)
	case d.Task.TokenBudget < 0:
		return wrong("/task/token_budget", "is %d; should be 0 for none, or more", d.Task.TokenBudget)
	case len(need.RequiredMCP) > maxNeeds:
		return wrong("/requirements/required_mcp", "has %d entries; it may have %d", len(need.RequiredMCP), maxNeeds)
	case len(need.RequiredCapabilities) > maxNeeds:
		return wrong("/requirements/required_capabilities", "has %d entries; it may have %d",
			len(need.RequiredCapabilities), maxNeeds)
	}
	return nil
}

// DeadlineTime parses the deadline; ok reports whether there is one. The error says what
// is wrong with it.
func (d *Dispatch) DeadlineTime() (at time.Time, ok bool, err error) {
	if d.Deadline == "" {
		return time.Time{}, false, nil
	}
	at, err = time.Parse(time.RFC3339, strings.ToUpper(d.Deadline)) // T and Z may be in lower case
	if err != nil {
		return time.Time{}, false, protocol.Errorf(protocol.CodeSchemaViolation,
			"deadline %.64q is not an RFC 3339 time, such as 2026-11-21T15:04:05Z", d.Deadline)
	}
	return at, true, nil
}

// Words are the protocol's own names of capabilities.
func Words() []string { return []string{"terminal", "file", "patch", "browser", "search", "memory"} }

// served returns what a word of the protocol means on this host: a worker needs all names of any one of the lists.
func served(word string) [][]string {
	switch word {
	case "terminal":
		return [][]string{{"run_command"}, {"proc"}, {"bash"}}
	case "file":
		return [][]string{{"read_file", "write_file"}}
	case "patch":
		return [][]string{{"edit_file"}}
	case "browser":
		return [][]string{{"http_get"}}
	case "search":
		return [][]string{{"grep"}}
	}
	return nil // memory is also the name of the capability
}

// Serves reports whether a required name is available. has reports whether there is a tool or capability
// with a name; a word of the protocol is also available if has is true for its names in served.
func Serves(has func(name string) bool, required string) bool {
	lacks := func(name string) bool { return !has(name) }
	return has(required) || slices.ContainsFunc(served(required),
		func(all []string) bool { return !slices.ContainsFunc(all, lacks) })
}
