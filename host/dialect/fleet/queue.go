package fleet

import (
	"container/heap"
	"context"
	"slices"
	"time"

	"a2e/host"
	"a2e/protocol/fleet"
)

// task is one dispatch on its way to its result.
type task struct {
	fleet.Dispatch
	origin
	kept   bool       // the result is that of an earlier dispatch
	number uint64     // in the order in which tasks began to wait; set by push
	place  int        // in the queue; -1 = not in it
	late   chan error // why it is to be answered without its worker; takes one

	patience time.Time // how long it waits for MCP servers; set by awaitServers

	// Guarded by Front.mu.
	size     int // bytes that it counts for
	answered bool
	due      *time.Timer             // its deadline; of a task that is to stop, the end of patience
	stop     context.CancelCauseFunc // set when it starts, as are those below
	steer    chan host.Steering
	over     <-chan struct{} // closed when it is to stop or has ended
}

// priorities orders the values, lowest first; an empty one counts as normal.
func priorities() []fleet.Priority {
	return []fleet.Priority{fleet.PriorityLow, fleet.PriorityNormal, fleet.PriorityHigh, fleet.PriorityUrgent}
}

// rank is higher for what starts first.
func (t *task) rank() int { return slices.Index(priorities(), t.Task.Priority) }

// queue holds the tasks that wait for a place: the highest priority first, equal ones in
// order. It implements heap.Interface.
type queue struct {
	tasks  []*task
	number uint64
}

// Len implements heap.Interface.
func (q *queue) Len() int { return len(q.tasks) }

// Less implements heap.Interface.
func (q *queue) Less(i, j int) bool {
	a, b := q.tasks[i], q.tasks[j]
	if a.rank() != b.rank() {
		return a.rank() > b.rank()
	}
	return a.number < b.number
}

// Swap implements heap.Interface.
func (q *queue) Swap(i, j int) {
	q.tasks[i], q.tasks[j] = q.tasks[j], q.tasks[i]
	q.tasks[i].place, q.tasks[j].place = i, j
}

// Push implements heap.Interface.
func (q *queue) Push(x any) {
	t := x.(*task)
	t.place = len(q.tasks)
	q.tasks = append(q.tasks, t)
}

// Pop implements heap.Interface.
func (q *queue) Pop() any {
	last := len(q.tasks) - 1
	t := q.tasks[last]
	q.tasks[last] = nil
	q.tasks = q.tasks[:last]
	t.place = -1
	return t
}

// push adds a task.
func (q *queue) push(t *task) {
	q.number++
	t.number = q.number
	heap.Push(q, t)
}

// next takes the task out that starts first.
func (q *queue) next() *task { return heap.Pop(q).(*task) }

// remove takes a task out wherever it stands; false means that it is not in it.
func (q *queue) remove(t *task) bool {
	if t.place < 0 || t.place >= len(q.tasks) || q.tasks[t.place] != t {
		return false
	}
	heap.Remove(q, t.place)
	return true
}
