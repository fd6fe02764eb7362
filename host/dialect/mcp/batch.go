package mcp

import (
	"bytes"
	"errors"
	"sync"
	"time"

	"a2e/host"
	"a2e/protocol"
)

// batchVersion is the only version of MCP with batches. A batch is an array of messages on one line.
const batchVersion = "2025-03-26"

// maxBatch is how many messages a batch may have.
const maxBatch = 1000

// batch collects the answers to the requests of one line. They go out as one line, too.
type batch struct {
	mu    sync.Mutex
	left  int      // requests not answered yet; guarded by mu
	lines [][]byte // answers; guarded by mu
}

// add adds an answer, or nil for a request that gets none. After the last one it sends all of them.
func (b *batch) add(s *server, line []byte) {
	if b == nil {
		return
	}
	b.mu.Lock()
	if line != nil {
		b.lines = append(b.lines, line)
	}
	b.left--
	last := b.left == 0 && len(b.lines) > 0
	b.mu.Unlock()
	if last { // so nobody adds to b any more
		s.out.Send(append(append([]byte{'['}, bytes.Join(b.lines, []byte{','})...), ']'))
	}
}

// Batch implements host.BatchTaker.
func (s *server) Batch(line []byte) (works []*host.Work, ok bool) {
	if !s.batches.Load() {
		return nil, false
	}
	items, ok := protocol.SplitArray(line)
	if !ok || len(items) == 0 || len(items) > maxBatch {
		return nil, false
	}
	b := &batch{left: 1} // 1 holds the answers back until all items are taken in
	for _, item := range items {
		if w := s.takeItem(item, b); w != nil {
			works = append(works, w)
		}
	}
	b.add(s, nil)
	return works, true
}

// takeItem takes in one message of a batch. A faulty message does not harm the others.
func (s *server) takeItem(item []byte, b *batch) *host.Work {
	var line protocol.Line
	err := line.Scan(item)
	m, bad := parse(line.Object())
	fault, _ := errors.AsType[*protocol.Error](err)
	if err != nil || bad != nil || m.kind == aRequest {
		b.expect()
	}
	from := origin{id: m.id, method: m.method, came: time.Now(), batch: b}
	switch {
	case item[0] != '{':
		s.reply(from, nil, rpcErrorf(codeInvalidRequest, "a batch holds objects, each one message"))
	case err != nil:
		s.broken(&line, fault, b)
	case bad == nil && m.kind == aRequest && m.method == methodInitialize:
		s.reply(from, nil, rpcErrorf(codeInvalidRequest, "initialize cannot be part of a batch"))
	default:
		return s.take(line.Object(), b)
	}
	return nil
}

// expect counts one more request to be answered.
func (b *batch) expect() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left++
}
