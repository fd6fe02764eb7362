package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/agent"
	"a2e/host/config/yamltree"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// Limits of a file of tasks.
const (
	maxTaskFile = 64 << 20 // bytes
	maxMisfits  = 50       // problems that are printed
	maxProblems = 10_000   // problems after which the rest of the file is ignored
)

// taskReader reads a file of tasks and collects the problems in it.
type taskReader struct {
	name  string         // name of the file, for problems
	run   string         // makes generated ids different from those of other runs
	known []string       // the workers that a task may name
	lines map[string]int // lines of the values of a YAML file, by JSON Pointer; nil for JSON

	tasks    []*dispatchTask
	ids      map[string]int // from each id to its line
	problems []string
}

// readTasks reads the tasks of a file, or of stdin if path is "-". problems has a line for each
// problem in the tasks.
func readTasks(path string, stdin io.Reader, run string, workers []string) (tasks []*dispatchTask, problems []string,
	err error,
) {
	r := &taskReader{name: path, run: run, known: workers, ids: make(map[string]int)}
	in := stdin
	if path == "-" {
		r.name = "stdin"
	} else {
		file, err := os.Open(path)
		if err != nil {
			return nil, nil, err
		}
		defer file.Close()
		in = file
	}
	text, err := io.ReadAll(io.LimitReader(in, maxTaskFile+1))
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", r.name, err)
	}
	if len(text) > maxTaskFile {
		return nil, nil, fmt.Errorf("%s: more than %d bytes; split it", r.name, maxTaskFile)
	}
	r.read(bytes.TrimPrefix(text, []byte("\xef\xbb\xbf")))
	if len(r.tasks) == 0 && len(r.problems) == 0 {
		r.problems = append(r.problems, r.name+`: no task in it; a task is a line such as {"brief":"what to do"}`)
	}
	return r.tasks, r.problems, nil
}

// read reads the text: a list as JSON or YAML, or else a task on each line.
func (r *taskReader) read(text []byte) {
	body := bytes.TrimSpace(text)
	ext := strings.ToLower(filepath.Ext(r.name))
	switch {
	case len(body) == 0:
	case body[0] == '[':
		r.list(text)
	case ext == ".yaml", ext == ".yml", body[0] != '{':
		raw, lines, err := yamltree.ToJSON(text)
		if err != nil {
			r.misfit(0, "%v", err)
			return
		}
		if r.lines = lines; raw.Kind() != '[' {
			r.misfit(0, "should be a list of tasks (- brief: …), or have one as a JSON object on each line")
			return
		}
		r.list(raw)
	default:
		number := 0
		for line := range bytes.Lines(text) {
			number++
			if line = bytes.TrimSpace(line); len(line) > 0 {
				r.task(number, line, "")
			}
		}
	}
}

// list reads the tasks of a JSON list.
func (r *taskReader) list(text []byte) {
	dec := jsontext.NewDecoder(bytes.NewReader(text))
	if _, err := dec.ReadToken(); err != nil {
		r.misfit(1, "not valid JSON: %v", err)
		return
	}
	number, from := 1, int64(0) // the line at the offset from
	for i := 0; dec.PeekKind() != ']'; i++ {
		value, err := dec.ReadValue()
		end := dec.InputOffset()
		start := end - int64(len(value))
		number += bytes.Count(text[from:start], []byte("\n"))
		from = start
		if err != nil {
			r.misfit(number+r.ahead(text[from:], err, from), "not valid JSON: %v", err)
			return
		}
		line, pointer := number, ""
		if r.lines != nil {
			pointer = fmt.Sprintf("/%d", i)
			line = r.lines[pointer]
		}
		r.task(line, value, pointer)
	}
	if _, err := dec.ReadToken(); err != nil {
		r.misfit(0, "not valid JSON: %v", err)
	} else if rest := bytes.TrimSpace(text[dec.InputOffset():]); len(rest) > 0 {
		r.misfit(0, "there is text after the list: %.32q", rest)
	}
}

// ahead returns how many lines after the offset from an error is.
func (r *taskReader) ahead(text []byte, err error, from int64) int {
	var syntax *jsontext.SyntacticError
	if !errors.As(err, &syntax) || syntax.ByteOffset < from {
		return 0
	}
	return bytes.Count(text[:min(syntax.ByteOffset-from, int64(len(text)))], []byte("\n"))
}

// misfit adds a problem; line 0 means the file as a whole.
func (r *taskReader) misfit(line int, format string, args ...any) {
	where := r.name
	if line > 0 {
		where = fmt.Sprintf("%s:%d", r.name, line)
	}
	r.problems = append(r.problems, oneLine(where+": "+fmt.Sprintf(format, args...)))
}

// misfits adds the problems that an error names, each with its line. pointer is the position of the
// task in a YAML file.
func (r *taskReader) misfits(line int, pointer string, err error) {
	var known *protocol.Error
	if !errors.As(err, &known) {
		r.misfit(line, "%v", err)
		return
	}
	all, _ := known.Detail["errors"].([]protocol.FieldError)
	if len(all) == 0 {
		r.misfit(line, "%s", known.Message)
	}
	for _, one := range all {
		at := line
		if n := r.lines[pointer+one.Path]; n > 0 {
			at = n
		}
		r.misfit(at, "%s: %s", strings.TrimPrefix(one.Path, "/"), one.Message)
	}
}

// task reads one task.
func (r *taskReader) task(line int, text []byte, pointer string) {
	if len(r.problems) >= maxProblems {
		return
	}
	obj, err := protocol.ParseObject(text)
	if err != nil {
		r.misfits(line, pointer, err)
		return
	}
	t := &dispatchTask{line: line}
	_, typed := obj.Get("type")
	_, nested := obj.Get("task")
	if err = t.read(obj, typed || nested); err == nil {
		err = t.ReadInline() // before the defaults, which would take precedence
	}
	if err == nil {
		err = t.check(typed || nested)
	}
	if err == nil && t.Worker != "" && !slices.Contains(r.known, t.Worker) {
		err = protocol.Violation(protocol.FieldError{Path: "/worker", Message: unknown("worker of the config", t.Worker,
			r.known).Error()})
	}
	if err != nil {
		r.misfits(line, pointer, err)
		return
	}
	r.identify(t)
	r.tasks = append(r.tasks, t)
}

// identify sets the ids of a task. A task without an id in the file gets another id at its worker
// in each run, because a worker that knows an id sends the stored result.
func (r *taskReader) identify(t *dispatchTask) {
	t.id = t.Task.TaskID
	if t.id == "" {
		t.id = fmt.Sprintf("line-%d", t.line)
		for n := 2; r.ids[t.id] == t.line; n++ { // a list may have several tasks on a line
			t.id = fmt.Sprintf("line-%d-%d", t.line, n)
		}
		t.Task.TaskID = t.id + "-" + r.run
	}
	if first, ok := r.ids[t.id]; ok {
		r.misfit(t.line, "task_id %.64q is already used in line %d", t.id, first)
		return
	}
	r.ids[t.id] = t.line
}

// maxTaskID is the longest task id that a worker accepts, in bytes.
const maxTaskID = 256

// dispatchTask is a task of the file.
type dispatchTask struct {
	agent.WorkerTask
	id   string // id in the result; the worker may know another one
	line int    // line in the file
}

// taskRoute says who does a task, in addition to the fields of the protocol.
type taskRoute struct {
	Worker   string `json:"worker"`
	Model    string `json:"model"`
	Tier     string `json:"tier"`
	Retries  *int   `json:"retries"`
	Fallback bool   `json:"fallback"`
}

// wholeTask is a task in the form of the protocol.
type wholeTask struct {
	fleet.Dispatch
	taskRoute
}

// shortTask is a task in the short form for people.
type shortTask struct {
	Brief    string `json:"brief"`
	Deadline string `json:"deadline"`
	fleet.Task
	fleet.Requirements                    // may be here or in requirements
	Further            fleet.Requirements `json:"requirements"`
	taskRoute
}

// read reads a task in either form. An unknown member is an error, as it is probably a typing error.
func (t *dispatchTask) read(obj protocol.Object, whole bool) error {
	inner, needs, route := []string{"task_id", "priority", "reply_schema", "token_budget", "writes", "isolation"},
		[]string{"required_mcp", "required_capabilities"}, []string{"worker", "model", "tier", "retries", "fallback"}
	own, misplaced := slices.Concat([]string{"brief", "deadline", "requirements"}, inner, needs, route),
		map[string][]string(nil)
	if whole {
		own, misplaced = slices.Concat([]string{
			"brief", "deadline", "requirements", "type", "protocol_version", "task",
			"agent",
		}, route), map[string][]string{"task": inner, "requirements": needs}
	}
	bad := slices.Concat(strangers(obj, "/", own, misplaced), within(obj, "task", inner),
		within(obj, "requirements", needs))
	if bad != nil {
		return protocol.Violation(bad...)
	}
	if whole {
		return t.whole(obj)
	}
	return t.short(obj)
}

// strangers returns an error for each member with an unknown name. misplaced has the names that
// belong in a member of the object.
func strangers(obj protocol.Object, at string, known []string,
	misplaced map[string][]string,
) (bad []protocol.FieldError) {
	for key := range obj.All() {
		name := string(key)
		if slices.Contains(known, name) {
			continue
		}
		wrong := protocol.FieldError{Path: at + name, Message: "is not known; there are: " + strings.Join(known, ", ")}
		for into, names := range misplaced {
			if slices.Contains(names, name) {
				wrong.Message = "belongs in " + into
			}
		}
		bad = append(bad, wrong)
	}
	return bad
}

// within checks the names inside a member like strangers; a member that is not an object is ignored.
func within(obj protocol.Object, member string, known []string) []protocol.FieldError {
	raw, _ := obj.Get(member)
	inner, err := protocol.ParseObject(raw)
	if err != nil {
		return nil
	}
	return strangers(inner, "/"+member+"/", known, nil)
}

// take copies the route to the task.
func (t *dispatchTask) take(r *taskRoute) {
	t.Worker, t.Model, t.Tier, t.Retries, t.Fallback = r.Worker, r.Model, r.Tier, r.Retries, r.Fallback
}

// whole reads a task in the form of a TASK_DISPATCH.
func (t *dispatchTask) whole(obj protocol.Object) error {
	var w wholeTask
	if err := protocol.Decode(obj, []string{"task"}, &w); err != nil {
		return err
	}
	switch {
	case w.Type != "" && w.Type != fleet.TypeDispatch:
		return protocol.Violation(protocol.FieldError{Path: "/type", Message: fmt.Sprintf("is %.64q; should be %s",
			w.Type, fleet.TypeDispatch)})
	case w.ProtocolVersion != "" && !fleet.Speaks(w.ProtocolVersion):
		_, message, _ := strings.Cut(fleet.WrongVersion(w.ProtocolVersion), " ")
		return protocol.Violation(protocol.FieldError{Path: "/protocol_version", Message: message})
	}
	t.Dispatch = w.Dispatch
	t.take(&w.taskRoute)
	return nil
}

// short reads a task in the short form.
func (t *dispatchTask) short(obj protocol.Object) error {
	var s shortTask
	if err := protocol.Decode(obj, []string{"brief"}, &s); err != nil {
		return err
	}
	t.Brief, t.Deadline, t.Task = s.Brief, s.Deadline, s.Task
	t.Requirements = fleet.Requirements{
		RequiredMCP:          append(s.RequiredMCP, s.Further.RequiredMCP...),
		RequiredCapabilities: append(s.RequiredCapabilities, s.Further.RequiredCapabilities...),
	}
	t.take(&s.taskRoute)
	return nil
}

// check sets defaults and returns everything that is wrong with the task. nested means that the
// task has the form of the protocol.
func (t *dispatchTask) check(nested bool) error {
	var bad []protocol.FieldError
	within := "/"
	if nested {
		within = "/task/"
	}
	wrong := func(path, format string, args ...any) {
		bad = append(bad, protocol.FieldError{Path: path, Message: fmt.Sprintf(format, args...)})
	}
	if t.Task.Priority == "" {
		t.Task.Priority = fleet.PriorityNormal
	}
	if t.Task.ReplySchema == "" {
		t.Task.ReplySchema = fleet.ReplyProse
	}
	if strings.TrimSpace(t.Brief) == "" {
		wrong("/brief", "is empty; it should say what to do")
	}
	if len(t.Task.TaskID) > maxTaskID {
		wrong(within+"task_id", "has %d bytes; at most %d are possible", len(t.Task.TaskID), maxTaskID)
	}
	if fault := t.Check(); fault != nil {
		if !nested {
			fault.Path = strings.TrimPrefix(fault.Path, "/task")
		}
		bad = append(bad, *fault)
	}
	if _, _, err := t.DeadlineTime(); err != nil {
		wrong("/deadline", "%.64q is not an RFC 3339 time, such as 2026-11-21T15:04:05Z", t.Deadline)
	}
	if t.Retries != nil && (*t.Retries < 0 || *t.Retries > maxRetries) {
		wrong("/retries", "is %d; should be between 0 and %d", *t.Retries, maxRetries)
	}
	if bad != nil {
		return protocol.Violation(bad...)
	}
	return nil
}

// taskPriorities returns the priorities, highest first.
func taskPriorities() []fleet.Priority {
	return []fleet.Priority{fleet.PriorityUrgent, fleet.PriorityHigh, fleet.PriorityNormal, fleet.PriorityLow}
}
