package a2a

import (
	"encoding/json"
	"sync"
	"time"

	"github.com/a2aproject/a2a-go/a2a"

	"a2e/protocol"
	"a2e/protocol/fleet"
)

// task is one task. The fields above mu do not change, except counted.
type task struct {
	id, context string
	fleetID     string // task_id of the TASK_DISPATCH
	owner       string // the agent that it belongs to; "" = no particular agent
	asked       *a2a.Message
	over        chan struct{} // closed when it has ended
	counted     bool          // it is counted as ended; guarded by tasks.mu

	mu      sync.Mutex // guards the fields below
	status  a2a.TaskStatus
	events  []a2a.Event   // events after the submission of the task
	more    chan struct{} // closed when there are further events
	result  *fleet.Result // nil = not yet
	stopped bool          // somebody has cancelled it
	late    bool          // its result must be posted
	size    int           // of the message and the result, in bytes
}

func newTask(id string, m *message, fleetID, owner string) *task {
	asked := &a2a.Message{
		ID: m.MessageID, ContextID: m.ContextID, TaskID: a2a.TaskID(id), Role: a2a.MessageRoleUser,
		Parts: a2a.ContentParts{a2a.TextPart{Text: m.text()}},
	}
	t := &task{
		id: id, context: m.ContextID, fleetID: fleetID, owner: owner, asked: asked, over: make(chan struct{}),
		more: make(chan struct{}),
		size: len(m.text()),
	}
	t.status = stamped(a2a.TaskStateSubmitted, nil)
	return t
}

func stamped(state a2a.TaskState, said *a2a.Message) a2a.TaskStatus {
	now := time.Now().UTC().Truncate(time.Millisecond)
	return a2a.TaskStatus{State: state, Message: said, Timestamp: &now}
}

// TaskInfo implements a2a.TaskInfoProvider.
func (t *task) TaskInfo() a2a.TaskInfo {
	return a2a.TaskInfo{TaskID: a2a.TaskID(t.id), ContextID: t.context}
}

// works sets the state to working, because the task was passed to the worker.
func (t *task) works() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.status.State == a2a.TaskStateSubmitted {
		t.moveLocked(a2a.TaskStateWorking, nil)
	}
}

// moveLocked changes the state and adds an event for it.
func (t *task) moveLocked(state a2a.TaskState, said *a2a.Message) {
	t.status = stamped(state, said)
	t.events = append(t.events, &a2a.TaskStatusUpdateEvent{
		TaskID: a2a.TaskID(t.id), ContextID: t.context, Status: t.status, Final: state.Terminal(),
	})
	close(t.more)
	t.more = make(chan struct{})
}

// end stores the result and ends the task. It reports whether the result must be posted.
func (t *task) end(result *fleet.Result) (late bool) {
	text := resultText(result)
	said := a2a.NewMessageForTask(a2a.MessageRoleAgent, t, a2a.TextPart{Text: text})
	t.mu.Lock()
	defer t.mu.Unlock()
	t.result, t.size = result, t.size+2*len(text)
	if artifact := artifactOf(result, text); artifact != nil {
		t.events = append(t.events, &a2a.TaskArtifactUpdateEvent{
			TaskID: a2a.TaskID(t.id), ContextID: t.context,
			Artifact: artifact, LastChunk: true,
		})
	}
	t.moveLocked(stateOf(result, t.stopped), said)
	close(t.over)
	return t.late
}

// resultText returns a TASK_RESULT as JSON.
func resultText(result *fleet.Result) string {
	text, err := protocol.AppendJSON(nil, result)
	if err != nil { // a text that is not UTF-8
		text = []byte(`{"type":"TASK_RESULT","status":"error","error":"the result does not encode"}`)
	}
	return string(text)
}

// stateOf returns the state in A2A for a result. stopped = somebody has cancelled the task.
func stateOf(result *fleet.Result, stopped bool) a2a.TaskState {
	switch {
	case result.Status == fleet.StatusDone, result.Status == fleet.StatusPartial:
		return a2a.TaskStateCompleted
	case stopped:
		return a2a.TaskStateCanceled
	case result.Status == fleet.StatusBlocked:
		return a2a.TaskStateRejected
	}
	return a2a.TaskStateFailed
}

// artifactOf returns the artifact of a result, with the summary as a text and the whole result as data; nil = the task
// was not done.
func artifactOf(result *fleet.Result, text string) *a2a.Artifact {
	if result.Status != fleet.StatusDone && result.Status != fleet.StatusPartial {
		return nil
	}
	artifact := &a2a.Artifact{ID: "result", Name: "result", Parts: a2a.ContentParts{a2a.TextPart{Text: result.Summary}}}
	var data map[string]any
	if json.Unmarshal([]byte(text), &data) == nil {
		artifact.Parts = append(artifact.Parts, a2a.DataPart{Data: data})
	}
	return artifact
}

// seen returns the task as it is now. history is the number of messages to show; negative = all.
func (t *task) seen(history int, artifacts bool) *a2a.Task {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := &a2a.Task{ID: a2a.TaskID(t.id), ContextID: t.context, Status: t.status}
	if history != 0 {
		now.History = []*a2a.Message{t.asked}
	}
	for _, e := range t.events {
		if made, ok := e.(*a2a.TaskArtifactUpdateEvent); ok && artifacts {
			now.Artifacts = append(now.Artifacts, made.Artifact)
		}
	}
	return now
}

// since returns the events from the index at on, a channel that is closed when there are further ones, and whether the
// task has ended.
func (t *task) since(at int) (some []a2a.Event, more <-chan struct{}, over bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.events[at:], t.more, t.result != nil
}

// fails ends a task that could not be passed to the worker.
func (t *task) fails(err error) {
	r := fleet.Blocked(t.fleetID, err.Error())
	t.end(r)
}

// cancelled marks the task as cancelled; false = it has ended already.
func (t *task) cancelled() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stopped = t.stopped || t.result == nil
	return t.result == nil
}

// post arranges that the result is posted when it comes; false = the task has ended already.
func (t *task) post() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.late = t.result == nil
	return t.late
}
