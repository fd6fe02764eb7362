package jsonrpc

import (
	"context"
	"slices"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
)

// entry is what is known of a session that is kept.
type entry struct {
	ID       string  `json:"session_id"`
	Title    string  `json:"title"`
	Titled   bool    `json:"titled,omitzero"` // the client gave the title
	Model    string  `json:"model"`           // the name of its worker; "" = the selected one
	Created  float64 `json:"created_at"`      // seconds since 1970
	Updated  float64 `json:"updated_at"`
	Messages int     `json:"message_count"`
}

// message is one message of a session.
type message struct {
	ID        string     `json:"message_id"`
	Role      string     `json:"role"` // user, assistant or tool
	Text      string     `json:"text"`
	Truncated bool       `json:"truncated,omitzero"` // the text was longer
	Images    []image    `json:"images,omitzero"`
	ToolCalls []toolCall `json:"tool_calls,omitzero"`
	Steered   bool       `json:"steered,omitzero"` // given to the worker while it worked
	Tokens    int        `json:"tokens,omitzero"`
	At        string     `json:"created_at"` // RFC 3339
}

// toolCall is a tool that a message is of.
type toolCall struct {
	ID        string         `json:"tool_call_id"`
	Name      string         `json:"tool_name"`
	Arguments jsontext.Value `json:"arguments,omitzero"`
	Success   bool           `json:"success"`
	Duration  int64          `json:"duration_ms"`
}

const (
	maxMessages   = 2000    // of one session; the oldest go first
	maxHistory    = 8 << 20 // bytes of those
	bookBytes     = 64 << 20
	entryOverhead = 256
)

// book keeps sessions and their messages, and settings by name.
type book interface {
	list(ctx context.Context, limit, offset int) (entries []entry, total int, err error)
	find(ctx context.Context, id string) (e entry, found bool, err error)
	// put keeps a session, whose messages stay. change changes the one that is kept, which
	// another host may have changed as well; e is for where there is none. kept is what is
	// kept now, gone the sessions that went for it.
	put(ctx context.Context, e entry, change func(*entry)) (kept entry, gone []string, err error)
	add(ctx context.Context, id string, m message) error
	// messages gives limit of them from offset on; a negative offset counts from the end.
	messages(ctx context.Context, id string, limit, offset int) (some []message, total int, err error)
	clear(ctx context.Context, id string) (removed int, err error)
	setting(ctx context.Context, name string) (string, error) // "" = there is none
	set(ctx context.Context, name, value string) error
}

// memory is a book that ends with the host.
type memory struct {
	max int

	mu       sync.Mutex // guards the fields below
	kept     map[string]*record
	bytes    int
	settings map[string]string
}

// record is a session in memory.
type record struct {
	entry
	messages []message
	bytes    int
}

func newMemory(most int) *memory {
	return &memory{max: most, kept: make(map[string]*record), settings: make(map[string]string)}
}

func (b *memory) list(_ context.Context, limit, offset int) ([]entry, int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := make([]entry, 0, len(b.kept))
	for _, r := range b.kept {
		all = append(all, r.entry)
	}
	slices.SortFunc(all, newestFirst)
	from := min(offset, len(all))
	return all[from:min(from+limit, len(all))], len(all), nil
}

func newestFirst(x, y entry) int {
	switch {
	case x.Updated > y.Updated:
		return -1
	case x.Updated < y.Updated:
		return 1
	case x.ID < y.ID:
		return -1
	}
	return 1
}

func (b *memory) find(_ context.Context, id string) (entry, bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if r := b.kept[id]; r != nil {
		return r.entry, true, nil
	}
	return entry{}, false, nil
}

func (b *memory) put(_ context.Context, e entry, change func(*entry)) (kept entry, gone []string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.kept[e.ID]
	if r == nil {
		e.Messages = 0
		r = &record{entry: e}
		b.kept[e.ID] = r
	}
	change(&r.entry)
	return r.entry, b.shrinkLocked(e.ID), nil
}

// shrinkLocked takes the oldest sessions out where there is too much; not keep.
func (b *memory) shrinkLocked(keep string) (gone []string) {
	for len(b.kept) > b.max || b.bytes > bookBytes {
		var oldest *record
		for _, r := range b.kept {
			if r.ID != keep && (oldest == nil || r.Updated < oldest.Updated) {
				oldest = r
			}
		}
		if oldest == nil {
			break
		}
		b.bytes -= oldest.bytes
		delete(b.kept, oldest.ID)
		gone = append(gone, oldest.ID)
	}
	return gone
}

// cost is what a message counts for.
func (m *message) cost() int {
	n := entryOverhead + len(m.Text)
	for _, t := range m.ToolCalls {
		n += len(t.Name) + len(t.Arguments)
	}
	for _, i := range m.Images {
		n += len(i.Path)
	}
	return n
}

func (b *memory) add(_ context.Context, id string, m message) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.kept[id]
	if r == nil {
		return nil // it was the oldest of too many
	}
	r.messages = append(r.messages, m)
	r.bytes += m.cost()
	b.bytes += m.cost()
	for len(r.messages) > 1 && (len(r.messages) > maxMessages || r.bytes > maxHistory) {
		first := r.messages[0].cost()
		r.messages[0] = message{} // the memory of the list lives on
		r.messages = r.messages[1:]
		r.bytes -= first
		b.bytes -= first
	}
	r.Messages = len(r.messages)
	return nil // the next put looks whether there is too much
}

func (b *memory) messages(_ context.Context, id string, limit, offset int) ([]message, int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.kept[id]
	if r == nil {
		return []message{}, 0, nil
	}
	from := place(offset, len(r.messages))
	return append([]message{}, r.messages[from:min(from+limit, len(r.messages))]...), len(r.messages), nil
}

// place says where an offset is; a negative one counts from the end.
func place(offset, total int) int {
	if offset < 0 {
		offset += total
	}
	return min(max(offset, 0), total)
}

func (b *memory) clear(_ context.Context, id string) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.kept[id]
	if r == nil {
		return 0, nil
	}
	removed := len(r.messages)
	b.bytes -= r.bytes
	r.messages, r.bytes, r.Messages = nil, 0, 0
	return removed, nil
}

func (b *memory) setting(_ context.Context, name string) (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.settings[name], nil
}

func (b *memory) set(_ context.Context, name, value string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.settings[name] = value
	return nil
}
