package a2a

import (
	"strings"

	"github.com/a2aproject/a2a-go/a2a"
)

// spelling is how a client writes A2A.
type spelling int

const (
	plain spelling = iota // method names of 1.0, roles in small letters, a kind in each result
	v03
	v10
)

// object is a JSON object.
type object = map[string]any

// task returns a task in the spelling. For 0.3 the types of the library have the right JSON.
func (s spelling) task(t *a2a.Task) any {
	if s == v03 {
		return t
	}
	o := object{"id": t.ID, "contextId": t.ContextID, "status": s.status(t.Status)}
	if s == plain {
		o["kind"] = "task"
	}
	if len(t.Artifacts) > 0 {
		all := make([]any, len(t.Artifacts))
		for i, one := range t.Artifacts {
			all[i] = s.artifact(one)
		}
		o["artifacts"] = all
	}
	if len(t.History) > 0 {
		all := make([]any, len(t.History))
		for i, one := range t.History {
			all[i] = s.message(one)
		}
		o["history"] = all
	}
	return o
}

func (s spelling) status(of a2a.TaskStatus) object {
	o := object{"state": "TASK_STATE_" + strings.ToUpper(strings.ReplaceAll(string(of.State), "-", "_"))}
	if of.Message != nil {
		o["message"] = s.message(of.Message)
	}
	if of.Timestamp != nil {
		o["timestamp"] = of.Timestamp
	}
	return o
}

func (s spelling) message(m *a2a.Message) any {
	if s == v03 {
		return m
	}
	o := object{"messageId": m.ID, "contextId": m.ContextID, "role": string(m.Role), "parts": parts(m.Parts)}
	if s == v10 {
		o["role"] = "ROLE_" + strings.ToUpper(string(m.Role))
	}
	if m.TaskID != "" {
		o["taskId"] = m.TaskID
	}
	return o
}

func parts(all a2a.ContentParts) []any {
	made := make([]any, 0, len(all))
	for _, p := range all {
		switch p := p.(type) {
		case a2a.TextPart:
			made = append(made, object{"text": p.Text})
		case a2a.DataPart:
			made = append(made, object{"data": p.Data})
		}
	}
	return made
}

func (s spelling) artifact(a *a2a.Artifact) any {
	if s == v03 {
		return a
	}
	return object{"artifactId": a.ID, "name": a.Name, "parts": parts(a.Parts)}
}

// sent returns the answer to a message, which is a message or a task.
func (s spelling) sent(answer a2a.Event) any {
	switch answer := answer.(type) {
	case *a2a.Task:
		if s == v10 {
			return object{"task": s.task(answer)}
		}
		return s.task(answer)
	case *a2a.Message:
		switch s {
		case v03:
			return answer
		case v10:
			return object{"message": s.message(answer)}
		}
		return object{"kind": "message", "message": s.message(answer)}
	}
	return nil
}

// event returns an event of a stream.
func (s spelling) event(e a2a.Event) any {
	if s == v03 {
		return e
	}
	switch e := e.(type) {
	case *a2a.TaskStatusUpdateEvent:
		o := object{"taskId": e.TaskID, "contextId": e.ContextID, "status": s.status(e.Status)}
		if s == v10 {
			return object{"statusUpdate": o}
		}
		o["kind"], o["final"] = "status-update", e.Final
		return o
	case *a2a.TaskArtifactUpdateEvent:
		o := object{
			"taskId": e.TaskID, "contextId": e.ContextID, "artifact": s.artifact(e.Artifact),
			"lastChunk": e.LastChunk,
		}
		if s == v10 {
			return object{"artifactUpdate": o}
		}
		o["kind"] = "artifact-update"
		return o
	}
	return s.sent(e)
}
