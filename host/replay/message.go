package replay

import (
	"cmp"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// message is what the player needs to know of a line, in each of the protocols.
type message struct {
	raw     jsontext.Value
	Type    string         `json:"type"`
	ID      jsontext.Value `json:"id"`
	ReqID   jsontext.Value `json:"req_id"`
	RPC     jsontext.Value `json:"jsonrpc"`
	Method  string         `json:"method"`
	Result  jsontext.Value `json:"result"`
	Error   jsontext.Value `json:"error"`
	TaskID  string         `json:"task_id"`
	Tool    string         `json:"tool_name"`
	Skill   string         `json:"skill_name"`
	Code    string         `json:"code"`
	Message string         `json:"message"`
	Stream  string         `json:"stream_type"`

	Task struct {
		TaskID string `json:"task_id"`
	} `json:"task"`
	Params struct {
		Type string `json:"type"`
		Name string `json:"name"`
	} `json:"params"`
	Data struct {
		Text *string        `json:"text"`
		Code jsontext.Value `json:"code"`
	} `json:"data"`
}

// parse reads a line. Fields of another shape than expected are left out: they are of a message
// that is compared as a whole.
func parse(raw jsontext.Value) *message {
	m := &message{raw: raw}
	var parts map[string]jsontext.Value
	if json.Unmarshal(raw, &parts, jsontext.AllowDuplicateNames(true)) != nil {
		return m
	}
	for name, to := range map[string]any{
		"type": &m.Type, "id": &m.ID, "req_id": &m.ReqID, "jsonrpc": &m.RPC, "method": &m.Method, "result": &m.Result, "error": &m.Error, "task_id": &m.TaskID,
		"tool_name": &m.Tool, "skill_name": &m.Skill, "code": &m.Code, "message": &m.Message, "stream_type": &m.Stream, "task": &m.Task, "params": &m.Params, "data": &m.Data,
	} {
		if part, ok := parts[name]; ok {
			_ = json.Unmarshal(part, to, jsontext.AllowDuplicateNames(true))
		}
	}
	return m
}

// request is the key of the answer that a line of the agent will get; "" = none.
func (m *message) request() string {
	switch {
	case m.RPC != nil && m.Method != "" && m.ID != nil:
		return "rpc:" + string(m.ID)
	case m.RPC != nil, m.Type == "cancel":
		return ""
	case m.Type == "TASK_DISPATCH":
		return "task:" + m.Task.TaskID
	case m.answersHost():
		return ""
	}
	return "a2e:" + text(m.ID)
}

// answersHost reports whether a line of the agent answers a request of the host.
func (m *message) answersHost() bool {
	if m.RPC != nil {
		return m.Method == "" && m.ID != nil
	}
	return m.ReqID != nil && m.Type != "cancel"
}

// said is the key of what a line of the host is. An answer is due. Others are only
// waited for a moment: how many there are may change from run to run.
func (m *message) said() (key string, due bool) {
	switch {
	case m.RPC != nil && m.Method == "":
		return "rpc:" + string(m.ID), true
	case m.RPC != nil && m.ID != nil:
		return "ask:" + m.Method, true
	case m.RPC != nil:
		if slices.Contains([]string{"session.completed", "session.interrupted", "session.error"}, m.Params.Type) {
			return "note:" + m.Params.Type, true
		}
		return "", false
	case m.Type == "TASK_RESULT":
		return "task:" + m.TaskID, true
	case strings.HasSuffix(m.Type, "/push"), m.Type == "SESSION_ANNOUNCE":
		return "push:" + m.Type, false
	case m.Type == "proc/read/event" && (m.Data.Code != nil || m.Stream == "killed"):
		return "end:" + text(m.ReqID), true
	case strings.HasSuffix(m.Type, "/event"):
		return "", false
	case m.ReqID == nil && strings.HasSuffix(m.Type, "/req"):
		return "ask:" + m.Type, true
	case m.ReqID == nil:
		return "push:" + m.Type, false
	}
	return "a2e:" + text(m.ReqID), true
}

// name is how a report calls a request.
func (m *message) name() string {
	name := m.Type
	switch {
	case m.Method != "":
		name = m.Method
	case m.Type == "":
		name = "a line that is no message"
	}
	if of := cmp.Or(m.Tool, m.Skill, m.Task.TaskID, m.Params.Name); of != "" {
		name += " " + of
	}
	if id := text(m.ID); id != "" {
		name += " (id " + id + ")"
	}
	return name
}

// text is a value as it is shown.
func text(v jsontext.Value) string {
	var s string
	if v.Kind() == '"' && json.Unmarshal(v, &s) == nil {
		return s
	}
	return string(v)
}
