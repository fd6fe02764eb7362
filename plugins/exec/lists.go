package exec

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"a2e/host"
	"a2e/plugins/tools"
	"a2e/protocol"
)

const (
	maxSaid      = 16      // lists that are kept
	maxSaidBytes = 1 << 20 // of one, with its request

	muteFirst = 15 * time.Second // until a list that did not come is asked for again; twice as long each time
	muteMost  = 5 * time.Minute
)

// lists are for a child that is slow, as the lists of other plugins wait for its own: what
// it listed last is its answer while it is busy, and one that it did not give in time is
// not asked for again for a while.
type lists struct {
	mu   sync.Mutex                // guards the fields below
	said []said                    // the oldest first
	mute map[protocol.Type]silence // by the type of the answer
}

// said is the answer to one request.
type said struct {
	typ       protocol.Type
	req, resp []byte
}

// silence is how often a list did not come, in a row.
type silence struct {
	times int
	until time.Time // when it is asked for again
	err   *protocol.Error
}

// seldom reports whether a request is for a list that seldom changes.
func seldom(t protocol.Type) bool {
	return t == protocol.TypeToolListReq || t == protocol.TypeSkillDiscoverReq || t == protocol.TypeToolkitListReq
}

// last returns the last answer to a request; nil = there is none.
func (l *lists) last(q *request) []byte {
	if !seldom(q.typ) {
		return nil
	}
	req := bodyOf(q.obj)
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := l.findLocked(q.typ, req); i >= 0 {
		return l.said[i].resp
	}
	return nil
}

func (l *lists) findLocked(t protocol.Type, req []byte) int {
	return slices.IndexFunc(l.said, func(s said) bool { return s.typ == t && bytes.Equal(s.req, req) })
}

// keep notes an answer.
func (l *lists) keep(q *request, resp []byte) {
	if !seldom(q.typ) {
		return
	}
	req := bodyOf(q.obj)
	if len(req)+len(resp) > maxSaidBytes {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := l.findLocked(q.typ, req); i >= 0 {
		l.said[i].resp = resp
		return
	}
	if len(l.said) >= maxSaid {
		l.said = l.said[1:]
	}
	l.said = append(l.said, said{q.typ, req, resp})
}

// refuse is the error of a list that is not asked for now.
func (l *lists) refuse(q *request, now time.Time) *protocol.Error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.mute[q.want]; q.list && now.Before(s.until) {
		return s.err
	}
	return nil
}

// late notes a list that did not come in time.
func (l *lists) late(q *request, err error, now time.Time) {
	var own *protocol.Error
	if !q.list || !errors.As(err, &own) || own.Code != protocol.CodeTimeout {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mute == nil {
		l.mute = make(map[protocol.Type]silence)
	}
	times := l.mute[q.want].times + 1
	l.mute[q.want] = silence{times, now.Add(min(muteFirst<<min(times-1, 10), muteMost)), own}
}

// heard asks for a list again, as one has come, however late.
func (l *lists) heard(answer protocol.Type) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.mute, answer)
}

// forget drops all, as a new child may have others.
func (l *lists) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.said, l.mute = nil, nil
}

// catalogWait bounds how long the first calls wait for the child's list of its tools.
const catalogWait = time.Second

// catalog is what the child says of its tools: by it their arguments are checked, and its
// lists are searched where it does not do that itself.
type catalog struct {
	mu    sync.Mutex // guards the fields below
	defs  map[string]protocol.ToolDefinition
	check map[string]tools.Check
}

// hear takes in the tools of a list; all says that there are no others.
func (g *catalog) hear(defs []protocol.ToolDefinition, all bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if all || g.defs == nil {
		g.defs, g.check = make(map[string]protocol.ToolDefinition), make(map[string]tools.Check)
	}
	for _, def := range defs {
		if _, known := g.defs[def.Name]; !known && (len(g.defs) >= maxNames || len(def.Name) > maxNameBytes) {
			continue
		}
		g.defs[def.Name] = def
		delete(g.check, def.Name)
		if len(def.InputParameters) == 0 { // it says nothing of what it takes
			continue
		}
		if check, err := tools.NewCheck(def.InputParameters); err == nil {
			g.check[def.Name] = check
		}
	}
}

// fit holds the arguments of a call against what the tool declares.
func (g *catalog) fit(q *request) error {
	g.mu.Lock()
	check := g.check[q.name]
	g.mu.Unlock()
	val, _ := q.obj.Get("arguments")
	args, err := protocol.ParseObject(val)
	if check == nil || err != nil { // what is no object is the child's to refuse
		return nil
	}
	fitting, err := check(args)
	if err != nil || string(fitting.Raw()) == string(args.Raw()) {
		return err
	}
	body := bodyOf(q.obj, "arguments")
	body = append(append(append(body[:len(body)-1], `,"arguments":`...), fitting.Raw()...), '}')
	q.obj, err = protocol.ParseObject(body)
	return err
}

// narrow leaves in a list what the request asks for, as a child may not have looked at that.
func (g *catalog) narrow(q *request, body []byte) ([]byte, error) {
	var req protocol.ToolListRequest
	var resp protocol.ToolListResponse
	if err := protocol.Decode(q.obj, nil, &req); err != nil {
		return nil, err
	}
	if err := decode(body, &resp); err != nil {
		return nil, err
	}
	g.hear(resp.Tools, false)
	g.mu.Lock()
	known := make([]protocol.ToolDefinition, 0, len(g.defs))
	for _, def := range g.defs {
		known = append(known, def)
	}
	g.mu.Unlock()
	if !tools.Narrow(&resp, &req, known) {
		return body, nil
	}
	return protocol.AppendJSON(nil, &resp)
}

// known answers a list by what a child has said that is slow now.
func (g *catalog) known(q *request) ([]byte, error) {
	if q.typ != protocol.TypeToolListReq {
		return nil, host.NotOwner(protocol.Errorf(protocol.CodeRuntimeError, "the child is busy"))
	}
	g.mu.Lock()
	resp := protocol.ToolListResponse{Tools: make([]protocol.ToolDefinition, 0, len(g.defs))}
	for _, name := range slices.Sorted(maps.Keys(g.defs)) {
		resp.Tools = append(resp.Tools, g.defs[name])
	}
	g.mu.Unlock()
	body, err := protocol.AppendJSON(nil, &resp)
	if err != nil {
		return nil, err
	}
	return g.narrow(q, body)
}

// awaitCatalog waits until the child has listed its tools, or is not going to soon.
func (c *peer) awaitCatalog(ctx context.Context) {
	select {
	case <-c.listed:
		return
	default:
	}
	host.HandOff(ctx)
	late := time.NewTimer(catalogWait)
	defer late.Stop()
	select {
	case <-c.listed:
	case <-c.Done():
	case <-ctx.Done():
	case <-late.C:
	}
}
