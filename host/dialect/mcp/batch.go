package mcp

import (
	"bytes"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/protocol"
)

// batchVersion is the one version of MCP that has batches: an array of messages as one line.
const batchVersion = "2025-03-26"

// maxBatch is how many messages a batch may have.
const maxBatch = 1000

// batch gathers the answers to the requests of one line; they are one line as well.
type batch struct {
	mu    sync.Mutex
	left  int      // requests without an answer; guarded by mu
	lines [][]byte // answers; guarded by mu
}

// add takes in an answer, nil for a request that gets none, and sends them all after the last.
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
	if last { // nobody adds to it any more
		s.send(append(append([]byte{'['}, bytes.Join(b.lines, []byte{','})...), ']'))
	}
}

// Batch implements host.BatchTaker.
func (s *server) Batch(line []byte) bool {
	if !s.batches.Load() {
		return false
	}
	var items []jsontext.Value
	if json.Unmarshal(line, &items) != nil || len(items) == 0 || len(items) > maxBatch {
		return false
	}
	b := &batch{left: 1} // held back until all were taken in
	for _, item := range items {
		obj, err := protocol.ParseObject(item)
		if err != nil {
			b.expect()
			s.reply(origin{came: time.Now(), batch: b}, nil, rpcErrorf(codeInvalidRequest, "a batch holds objects, each one message"))
			continue
		}
		m, bad := parse(obj)
		if bad != nil || m.kind == aRequest {
			b.expect()
		}
		if bad == nil && m.kind == aRequest && m.method == methodInitialize {
			s.reply(origin{id: m.id, method: m.method, came: time.Now(), batch: b}, nil, rpcErrorf(codeInvalidRequest, "initialize is no part of a batch"))
			continue
		}
		s.take(obj, b)
	}
	b.add(s, nil)
	return true
}

// expect notes one more request.
func (b *batch) expect() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left++
}
