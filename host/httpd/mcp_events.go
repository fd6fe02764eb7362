package httpd

import (
	"context"
	"iter"
	"math"
	"slices"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// What an event and a stream take in memory beside the text, in bytes.
const (
	eventSize  = 50
	streamSize = 250
)

// keptEvents is the mcp.EventStore of one session: what was sent, for a client that connects
// anew. The oldest events go first, and their streams with them: each request has one.
type keptEvents struct {
	most int // bytes

	mu      sync.Mutex // guards the fields below
	bytes   int
	streams map[string]*keptStream
	order   []*keptStream // of each event, the oldest first
}

type keptStream struct {
	id     string
	first  int // number of the oldest event, or of the next
	events [][]byte
}

// Open implements mcp.EventStore.
func (k *keptEvents) Open(_ context.Context, _, stream string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.openLocked(stream, 0)
	return nil
}

func (k *keptEvents) openLocked(id string, first int) *keptStream {
	if k.streams == nil {
		k.streams = map[string]*keptStream{}
	}
	s := k.streams[id]
	if s == nil {
		s = &keptStream{id: id, first: first}
		k.streams[id], k.bytes = s, k.bytes+streamSize
	}
	return s
}

// Append implements mcp.EventStore.
func (k *keptEvents) Append(_ context.Context, _, stream string, data []byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.openLocked(stream, math.MaxInt32) // of one that has gone nobody knows the numbers
	s.events, k.order = append(s.events, data), append(k.order, s)
	k.bytes += eventSize + len(data)
	for k.bytes > k.most && len(k.order) > 1 {
		k.dropLocked()
	}
	return nil
}

func (k *keptEvents) dropLocked() {
	s := k.order[0]
	k.bytes -= eventSize + len(s.events[0])
	s.events[0], k.order[0] = nil, nil
	s.events, k.order = s.events[1:], k.order[1:]
	if s.first++; len(s.events) == 0 && s.id != "" { // that one goes on
		delete(k.streams, s.id)
		k.bytes -= streamSize
	}
}

// After implements mcp.EventStore. A client that knows no event gets all that are kept, and
// from there on they are numbered anew.
func (k *keptEvents) After(_ context.Context, _, stream string, index int) iter.Seq2[[]byte, error] {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := k.streams[stream]
	if s == nil {
		s = &keptStream{first: math.MaxInt32}
	}
	if index < 0 {
		s.first = 0
	}
	start := index + 1 - s.first
	if start < 0 || start > len(s.events) {
		return func(yield func([]byte, error) bool) { yield(nil, mcp.ErrEventsPurged) }
	}
	found := slices.Clone(s.events[start:])
	return func(yield func([]byte, error) bool) {
		for _, data := range found {
			if !yield(data, nil) {
				return
			}
		}
	}
}

// SessionClosed implements mcp.EventStore.
func (k *keptEvents) SessionClosed(context.Context, string) error { return nil }
