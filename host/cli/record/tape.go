package record

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// tape is a record that is ready to be played.
type tape struct {
	workspace string
	steps     []step
	last      []hostMessage      // what the host said after the last step
	heard     map[string]int     // how often each key occurred
	output    map[string]*output // output of processes, by the request that started them
	notes     []string
}

// step is a line of the agent.
type step struct {
	*message        // nil = the line is not JSON
	text     string // the line if it is not JSON
	entry    int64
	after    []hostMessage // what the host said since the previous step
	key      string        // key of its answer; "" = it gets no answer
	index    int           // index of its answer among those with the same key
	answer   *message
}

// hostMessage is a message of the host.
type hostMessage struct {
	*message
	key   string
	index int // index among those with the same key
	due   bool
}

// output is the output of a process.
type output struct {
	text  map[string]string // by stream
	code  jsontext.Value
	ended bool
}

// load reads a record.
func load(file string) (*tape, error) {
	t := &tape{heard: make(map[string]int), output: make(map[string]*output), notes: []string{}}
	asked := map[string][]int{} // indexes of steps, by key
	rpc, hidden, unsent := false, 0, 0
	header, damage, err := Read(file, func(e *Entry) {
		switch {
		case e.Dir == In && e.Cut:
			unsent++
		case e.Dir == In && (e.Msg != nil || e.Text != nil):
			s := step{entry: e.N, after: t.last}
			t.last = nil
			if e.Msg != nil {
				s.message = parse(e.Msg)
				s.key, rpc = s.request(), s.RPC != nil
				if masked(e.Msg) {
					hidden++
				}
			} else if s.text, s.key = *e.Text, "a2e:"; rpc { // how a broken line is answered
				s.key = "rpc:null"
			}
			if s.key != "" {
				s.index = len(asked[s.key])
				asked[s.key] = append(asked[s.key], len(t.steps))
			}
			t.steps = append(t.steps, s)
		case e.Dir == Out && e.Msg != nil:
			m := parse(e.Msg)
			collect(t.output, m)
			key, due := m.said()
			if key == "" {
				return
			}
			index := t.heard[key]
			t.heard[key]++
			steps, kind := asked[key], key[:strings.IndexByte(key, ':')]
			if index < len(steps) {
				t.steps[steps[index]].answer = m
			} else if kind == "a2e" || kind == "rpc" || kind == "task" {
				return // the record does not have its request
			}
			t.last = append(t.last, hostMessage{m, key, index, due})
		}
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	t.workspace = header.Workspace
	open := 0
	for _, s := range t.steps {
		if s.key != "" && s.answer == nil {
			open++
		}
	}
	for _, n := range []struct {
		count int
		what  string
	}{
		{damage.Broken, "lines of the record cannot be read, such as one that was cut off"},
		{int(damage.Dropped), "lines were not recorded"},
		{unsent, "lines were too long to be recorded, and are not sent"},
		{hidden, "lines are sent with secrets masked, as they were recorded"},
		{open, "requests have no answer in the record, and are not compared"},
	} {
		if n.count > 0 {
			t.notes = append(t.notes, fmt.Sprintf("%d %s", n.count, n.what))
		}
	}
	return t, nil
}

// name returns the step's name in a report.
func (s *step) name() string {
	if s.message == nil {
		return "a line that is not JSON"
	}
	return s.message.name()
}

// id returns the id of the request.
func (s *step) id() string {
	if s.message == nil {
		return ""
	}
	return text(s.ID)
}

// collect adds the output of a process. The number of events for the same output differs between runs.
func collect(all map[string]*output, m *message) {
	if m.Type != "proc/read/event" {
		return
	}
	id := text(m.ReqID)
	o := all[id]
	if o == nil {
		o = &output{text: make(map[string]string)}
		all[id] = o
	}
	switch {
	case m.Data.Text != nil && len(o.text[m.Stream]) > MaxEntry: // more is not compared
	case m.Data.Text != nil:
		o.text[m.Stream] += *m.Data.Text
	case m.Data.Code != nil || m.Stream == "killed":
		o.code, o.ended = m.Data.Code, true
	}
}

// output compares the output of a process.
func (c *comparer) output(was, is *output) []Difference {
	c.found = nil
	if is == nil {
		is = &output{}
	}
	for _, stream := range []string{"stdout", "stderr"} {
		c.compare("output."+stream, stream, quote(was.text[stream]), quote(is.text[stream]))
	}
	c.compare("output.code", "code", was.code, is.code)
	return c.found
}

// message has the fields of a line that the player needs, in each of the protocols.
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
		Meta struct {
			Version string `json:"io.modelcontextprotocol/protocolVersion"`
		} `json:"_meta"`
	} `json:"params"`
	Data struct {
		Text *string        `json:"text"`
		Code jsontext.Value `json:"code"`
	} `json:"data"`
}

// parse reads a line. Fields of an unexpected form are left out: they belong to a message that is
// compared as a whole.
func parse(raw jsontext.Value) *message {
	m := &message{raw: raw}
	var parts map[string]jsontext.Value
	if json.Unmarshal(raw, &parts, jsontext.AllowDuplicateNames(true)) != nil {
		return m
	}
	for name, to := range map[string]any{
		"type": &m.Type, "id": &m.ID, "req_id": &m.ReqID, "jsonrpc": &m.RPC, "method": &m.Method, "result": &m.Result,
		"error": &m.Error, "task_id": &m.TaskID,
		"tool_name": &m.Tool, "skill_name": &m.Skill, "code": &m.Code, "message": &m.Message, "stream_type": &m.Stream,
		"task": &m.Task, "params": &m.Params, "data": &m.Data,
	} {
		if part, ok := parts[name]; ok {
			_ = json.Unmarshal(part, to, jsontext.AllowDuplicateNames(true))
		}
	}
	return m
}

// request returns the key of the answer that a line of the agent will get, or "" if it gets none.
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

// said returns the key of a line of the host; "" = it is not waited for. due means that the line is
// expected, such as an answer. Other lines are waited for only a moment, because their number may
// differ between runs.
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

// name returns the name of a request in a report.
func (m *message) name() string {
	name := m.Type
	switch {
	case m.Method != "":
		name = m.Method
	case m.Type == "":
		name = "a line that is not a message"
	}
	if of := cmp.Or(m.Tool, m.Skill, m.Task.TaskID, m.Params.Name); of != "" {
		name += " " + of
	}
	if id := text(m.ID); id != "" {
		name += " (id " + id + ")"
	}
	return name
}

// text returns a string without quotes, or any other value as JSON.
func text(v jsontext.Value) string {
	var s string
	if v.Kind() == '"' && json.Unmarshal(v, &s) == nil {
		return s
	}
	return string(v)
}
