package host

import (
	"a2e/protocol"
	"context"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// order says what a request is to the others of its capability.
type order int

const (
	anyOrder order = iota
	reads          // sees what came before it; runs beside other reads
	changes        // runs alone
)

// rwQueue is a fair queue of readers and writers: it keeps the requests of one capability in
// the order in which they came, so that an agent that does not wait for each answer finds
// what it has just stored. A request in it has its slot already, and waits in that.
type rwQueue struct {
	// guarded by Host.mu: of the changes and the reads that have not ended, a channel
	// each that is closed then
	changing, reading []<-chan struct{}
}

// joinLocked puts a call at the end of the queue and notes what it has to wait for: all
// of it, as one that waits itself may be stopped and end before those ahead of it.
func (l *rwQueue) joinLocked(c *call) {
	c.passed = make(chan struct{})
	l.changing, l.reading = slices.DeleteFunc(l.changing, isClosed), slices.DeleteFunc(l.reading, isClosed)
	c.before = slices.Clone(l.changing)
	if c.dest.order == reads {
		l.reading = append(l.reading, c.passed)
		return
	}
	c.before = append(c.before, l.reading...)
	l.changing = append(l.changing, c.passed)
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// awaitOrder waits for the calls before this one; the error is why it was stopped meanwhile.
func (c *call) awaitOrder() error {
	for _, before := range c.before {
		if isClosed(before) {
			continue
		}
		HandOff(c)
		select {
		case <-before:
		case <-c.Done():
			return context.Cause(c)
		}
	}
	if std := c.std.Load(); std != nil && std.Err() != nil {
		return context.Cause(std)
	}
	return nil
}

// filesSpace is the space of the keys of requests that are about files; see Route.About.
const filesSpace = "files"

// Files says which files of the workspace a request is about.
type Files struct {
	// Path is that of a file or folder, with all below it: relative to the workspace, with
	// slashes, in any spelling. One that leads elsewhere stands for the whole workspace.
	Path string
	Use  Use
}

// Use is what a request does with what it is about.
type Use int

// The uses. All of them but Nothing wait for the changes that came before.
const (
	Nothing       Use = iota // it is about nothing
	Sees                     // for how long nobody knows: nothing waits for it
	Reads                    // a change that comes later waits for it
	ChangesAtOnce            // all that comes later waits for it, and it for no use
	Changes                  // all that comes later waits for it
)

// waitsFor reports whether a use waits for an earlier one of the same thing.
func (u Use) waitsFor(earlier Use) bool {
	return u != Nothing && earlier >= ChangesAtOnce || u == Changes && earlier == Reads
}

// conflictKeys is what a request that keeps its order is about; see Route.InOrderOf and Route.About.
type conflictKeys struct {
	all bool // everything
	one string
	set map[string]struct{} // in place of one
	use Use                 // of a request about files, which are those at one and below it
}

// Tools says which tools a request is about.
type Tools struct {
	Prefix string // what their names begin with; "" = all of them
	Use    Use
	// Files says of a change that the tools may use files of the workspace, and that nobody
	// knows which until they are there.
	Files bool
}

// followLocked notes which of the calls under way c has to wait for: those that are about
// the same thing. They came before it, and wait for those before them in the same way.
func (h *Host) followLocked(c *call) {
	if len(h.running) == 1 && len(h.aside) == 0 {
		return // as mostly, nothing else runs
	}
	for r := range h.underWayLocked {
		if r == c || !c.dest.changesTools && !r.dest.changesTools || !c.toolsLocked().waitsFor(r.toolsLocked()) {
			continue
		}
		c.follow(r)
		if r.tools.Files && c.tools.Use == Reads {
			c.keys = &conflictKeys{all: true, use: Changes}
		}
	}
	if c.dest.space == "" {
		return
	}
	for r := range h.underWayLocked {
		if r != c && r.dest.space == c.dest.space && c.aboutLocked().waitsFor(r.aboutLocked()) {
			c.follow(r)
		}
	}
}

// underWayLocked gives the calls that others may have to wait for.
func (h *Host) underWayLocked(yield func(*call) bool) {
	for _, r := range h.running {
		if !yield(r) {
			return
		}
	}
	for r := range h.aside {
		if r.sequence != "" && !yield(r) {
			return
		}
	}
}

func (c *call) follow(r *call) {
	if r.passed == nil {
		r.passed = make(chan struct{})
	}
	c.before = append(c.before, r.passed)
}

func (c *call) aboutLocked() *conflictKeys {
	if c.keys == nil {
		switch d := c.dest; {
		case d.keyField != "":
			c.keys = keysIn(c.line.Object(), d.keyField)
		case d.space == filesSpace:
			c.keys = d.filesIn(c.line.Object())
		default:
			c.keys = &conflictKeys{all: true}
		}
	}
	return c.keys
}

func (c *call) toolsLocked() *Tools {
	if c.tools != nil {
		return c.tools
	}
	c.tools = &Tools{}
	for _, route := range c.dest.routes {
		if route.tools != nil && c.tools.Use == Nothing {
			*c.tools = route.tools(c.line.Object())
		}
	}
	if g := c.dest.groups; g != nil && (*g.current.Load())[c.tools.Prefix] != nil { // any of the group's
		*c.tools = Tools{Use: Sees}
	}
	return c.tools
}

// waitsFor reports whether a request about t waits for an earlier one about other.
func (t *Tools) waitsFor(other *Tools) bool {
	return t.Use.waitsFor(other.Use) && (strings.HasPrefix(t.Prefix, other.Prefix) || strings.HasPrefix(other.Prefix, t.Prefix))
}

// keysIn reads the names in a field of a request.
func keysIn(obj protocol.Object, field string) *conflictKeys {
	n := &conflictKeys{}
	val, _ := obj.Get(field)
	list, _ := val.Strings()
	switch one, _ := val.Str(); {
	case len(list) == 1:
		n.one = list[0]
	case len(list) > 1:
		n.set = make(map[string]struct{}, len(list))
		for _, name := range list {
			n.set[name] = struct{}{}
		}
	default:
		n.one, n.all = one, one == ""
	}
	return n
}

// filesIn returns what a request is about, by the files that the plugins name.
func (d *destination) filesIn(obj protocol.Object) *conflictKeys {
	f := d.about(obj)
	if f.Use == Nothing {
		return &conflictKeys{set: map[string]struct{}{}} // nothing
	}
	at, within := f.within()
	// some file systems take upper and lower case as the same
	return &conflictKeys{all: !within, one: strings.ToLower(at), use: f.Use}
}

// about asks the plugins which files a request is about.
func (d *destination) about(obj protocol.Object) (f Files) {
	for _, route := range d.routes {
		if route.about == nil {
			continue
		}
		f, grouped := d.groups.filesOf(obj, route.about)
		if !grouped {
			f = route.about(obj)
		}
		if f.Use != Nothing {
			return f
		}
	}
	return f
}

// within returns the clean path, with slashes, and whether it names a part of the workspace.
func (f Files) within() (at string, ok bool) {
	at = path.Clean(strings.ReplaceAll(f.Path, `\`, "/"))
	return at, at != "." && at != ".." && at[0] != '/' && !filepath.IsAbs(f.Path) && !strings.HasPrefix(at, "../")
}

// waitsFor reports whether a request about n waits for an earlier one about other.
func (n *conflictKeys) waitsFor(other *conflictKeys) bool {
	if n.use != Nothing || other.use != Nothing {
		return n.use.waitsFor(other.use) && n.sharesFiles(other)
	}
	return n.meets(other)
}

// sharesFiles reports whether one of the two is the other, or in it.
func (n *conflictKeys) sharesFiles(other *conflictKeys) bool {
	return n.all || other.all || within(n.one, other.one) || within(other.one, n.one)
}

func within(file, folder string) bool {
	rest, ok := strings.CutPrefix(file, folder)
	return ok && (rest == "" || rest[0] == '/')
}

func (n *conflictKeys) meets(other *conflictKeys) bool {
	switch {
	case n.all || other.all:
		return true
	case n.set == nil && other.set == nil:
		return n.one == other.one
	case n.set == nil:
		return other.has(n.one)
	case other.set == nil:
		return n.has(other.one)
	}
	for name := range n.set {
		if other.has(name) {
			return true
		}
	}
	return false
}

func (n *conflictKeys) has(name string) bool {
	_, ok := n.set[name]
	return ok
}

// sequences keep the immediate requests in order. They wait behind no others, but those about
// the same thing, such as one process, take effect in the order in which they came: one of
// them is under way, and the others wait for it here, as text, not as goroutines.
//
//	immediate ─┬─ nothing of its key is under way: run here ──► answer ─► pass
//	           └─ else: parked ◄──────────── a worker runs it next ──────────┘
type sequences struct {
	// guarded by Host.mu
	parked map[string][]*call // by key; a sequence that is under way has an entry
	calls  int                // parked
	bytes  int                // of those
}

// admitAheadLocked begins an immediate request, or parks it behind those before it.
func (h *Host) admitAheadLocked(c *call, t *leader) (started bool, err error) {
	c.sequence = c.keyOf()
	waiting, busy := h.sequences.parked[c.sequence]
	if !busy {
		h.sequences.parked[c.sequence] = nil
		h.aside[c] = struct{}{}
		return true, nil
	}
	s := &h.sequences
	if s.calls >= h.opts.Limits.Queue || s.bytes+c.size() > h.opts.Limits.QueueBytes {
		return false, protocol.Errorf(protocol.CodeOverloaded,
			"%d requests wait for an earlier %s or its like, which is all that limits.max_queue allows; send it again later", s.calls, c.dest.typ)
	}
	if err := c.keepLine(t); err != nil {
		return false, err
	}
	c.parked = true
	s.calls++
	s.bytes += c.size()
	s.parked[c.sequence] = append(waiting, c)
	h.aside[c] = struct{}{}
	return false, nil
}

// keyOf names what an immediate request is about: the same for all of its capability
// unless the route has a field that says so.
func (c *call) keyOf() string {
	key := c.dest.space + "\x00"
	if c.dest.keyField == "" {
		return key
	}
	return key + c.line.Object().Text(c.dest.keyField)
}

// passLocked ends an immediate request's place in its sequence, and returns the one that follows it.
func (h *Host) passLocked(c *call) (next []*call) {
	if c.sequence == "" {
		return nil // it has passed already
	}
	key := c.sequence
	c.sequence = ""
	if c.passed != nil {
		close(c.passed)
	}
	s := &h.sequences
	waiting := s.parked[key]
	if len(waiting) == 0 {
		delete(s.parked, key)
		return nil
	}
	first := waiting[0]
	waiting[0] = nil // the memory of the list lives on
	s.parked[key] = waiting[1:]
	s.calls--
	s.bytes -= first.size()
	first.parked = false
	first.begins()
	return []*call{first}
}
