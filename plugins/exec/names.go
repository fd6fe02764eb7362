package exec

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/go-json-experiment/json"

	"a2e/host"
	"a2e/host/child"
	"a2e/plugins/tools"
	"a2e/protocol"
)

const (
	maxNames     = 10000            // of one kind that are remembered
	maxNameBytes = 1 << 10          // of one of them
	refusedFor   = 10 * time.Second // how long a name that the child does not know is not asked for
	slowAfter    = 100 * time.Millisecond
)

// The fields that name what a child lists.
const (
	fieldTool  = "tool_name"
	fieldSkill = "name"
	fieldEnv   = "env_name"
	fieldProc  = "proc_id"
)

// names remembers which tools, environments, episodes and so on are the child's, so that
// a slow child does not hold up what belongs to other plugins. It is keyed by the field
// that names the thing.
type names struct {
	now func() time.Time

	mu     sync.Mutex // guards the fields below
	own    map[string]map[string]struct{}
	not    map[string]map[string]refusal
	listed map[string]bool // own has all that the child listed
}

// refusal is what the child said of a name that is not its own.
type refusal struct {
	until time.Time
	err   *protocol.Error
}

// whose is what is known of a name.
type whose int

const (
	unknown  whose = iota
	unlisted       // it is not in the child's list, which may be old
	theirs         // the child said that it is not its own
	ours
)

func (n *names) init(now func() time.Time) {
	n.now = now
	n.reset()
}

// reset forgets all but the tools and skills, which a child that was started anew most
// likely has again.
func (n *names) reset() {
	n.mu.Lock()
	defer n.mu.Unlock()
	kept := map[string]map[string]struct{}{}
	for _, field := range []string{fieldTool, fieldSkill, fieldEnv} {
		if n.own[field] != nil {
			kept[field] = n.own[field]
		}
	}
	n.own, n.not, n.listed = kept, map[string]map[string]refusal{}, map[string]bool{}
}

// of tells whose a name is, and what the child said of one that is not its own.
func (n *names) of(field, name string) (whose, *protocol.Error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, ok := n.own[field][name]; ok {
		return ours, nil
	}
	if r, ok := n.not[field][name]; ok && n.now().Before(r.until) {
		return theirs, r.err
	}
	if n.listed[field] {
		return unlisted, nil
	}
	return unknown, nil
}

// known lists the names of a field that are the child's.
func (n *names) known(field string) []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Sorted(maps.Keys(n.own[field]))
}

// learn notes names as the child's.
func (n *names) learn(field string, all ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.learnLocked(field, all)
}

func (n *names) learnLocked(field string, all []string) {
	if n.own[field] == nil {
		n.own[field] = make(map[string]struct{})
	}
	for _, name := range all {
		delete(n.not[field], name)
		if len(n.own[field]) < maxNames && len(name) <= maxNameBytes {
			n.own[field][name] = struct{}{}
		}
	}
}

// replace makes these all the names that there are.
func (n *names) replace(field string, all []string) {
	if len(all) >= maxNames {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.own, field)
	delete(n.not, field)
	n.listed[field] = true
	n.learnLocked(field, all) // at once, or a call would find none
}

// refuse notes a name as one that the child does not know. Only what it lists is kept:
// an id that it does not know now may come to be.
func (n *names) refuse(field, name string, err *protocol.Error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.own[field], name)
	if field != fieldTool && field != fieldSkill && field != fieldEnv || len(name) > maxNameBytes {
		return
	}
	if len(n.not[field]) >= maxNames {
		delete(n.not, field)
	}
	if n.not[field] == nil {
		n.not[field] = make(map[string]refusal)
	}
	n.not[field][name] = refusal{n.now().Add(refusedFor), err}
}

// heard learns the names in an answer to a request of type t.
func (n *names) heard(t protocol.Type, body []byte) {
	switch t {
	case protocol.TypeToolListReq:
		n.learn(fieldTool, listedNames(body, "tools")...)
	case protocol.TypeSkillDiscoverReq:
		n.learn(fieldSkill, listedNames(body, "skills")...)
	case protocol.TypeEnvResetReq:
		var resp struct {
			Obs struct {
				EpisodeID string `json:"episode_id"`
			} `json:"obs"`
		}
		if decode(body, &resp) == nil && resp.Obs.EpisodeID != "" {
			n.learn("episode_id", resp.Obs.EpisodeID)
		}
	default:
		if field := givenIn(t); field != "" {
			obj, _ := protocol.ParseObject(body)
			val, _ := obj.Get(field)
			if name, ok := val.Str(); ok && name != "" {
				n.learn(field, name)
			}
		}
	}
}

// givenIn names the field of an answer that names a new thing; "" = none does.
func givenIn(t protocol.Type) string {
	switch t {
	case protocol.TypeProcSpawnReq:
		return "proc_id"
	case protocol.TypeMemoryInitReq:
		return "memory_id"
	case protocol.TypePlanCreateReq:
		return "plan_id"
	case protocol.TypeAgentSpawnReq, protocol.TypeSubagentSpawnReq:
		return "subagent_id"
	}
	return ""
}

// listedNames returns the names of the objects in a list of an answer.
func listedNames(body []byte, list string) []string {
	var all []string
	obj, err := protocol.ParseObject(body)
	if err != nil {
		return nil
	}
	val, _ := obj.Get(list)
	var rows []struct {
		Name string `json:"name"`
	}
	if json.Unmarshal(val, &rows) != nil {
		return nil
	}
	for _, row := range rows {
		all = append(all, row.Name)
	}
	return all
}

// owns tells, without asking the child, whether the thing that a request names may be its
// own; the error is host.NotOwner. A quick child says that best by itself; what belongs to
// others shall not wait for a slow one.
func (p *Plugin) owns(ctx context.Context, c *peer, q *request) error {
	if q.name == "" {
		return nil
	}
	known, said := p.names.of(q.names, q.name)
	switch {
	case known == ours:
		return nil
	case known == theirs:
		return host.NotOwner(said)
	case q.names == fieldProc: // its answer to a foreign one is no error
		return host.NotOwner(protocol.Errorf(protocol.CodeUnknownProc, "unknown process %.64q", q.name))
	case q.names == fieldTool && p.elsewhere(q.name):
	case c.owes() < slowAfter || p.alone(q.typ):
		return nil
	case known == unknown:
		return host.NotOwner(protocol.Errorf(protocol.CodeRuntimeError, "plugin %q: the child is busy and cannot tell whether %s %.64q is its own", p.name, q.names, q.name))
	case q.names == fieldSkill:
		return host.NotOwner(protocol.Errorf(protocol.CodeUnknownSkill, "unknown skill %.64q", q.name).With("known", p.names.known(fieldSkill)))
	}
	return host.NotOwner(protocol.Errorf(protocol.CodeUnknownTool, "unknown tool %.64q", q.name).With("known", p.names.known(fieldTool)))
}

// mayBeElsewhere reports whether another plugin may do a request that the child died of:
// that it would be done twice can be ruled out.
func (p *Plugin) mayBeElsewhere(q *request) bool {
	known, _ := p.names.of(q.names, q.name)
	return q.name != "" && known != ours && (known == unlisted || q.names != fieldTool && q.names != fieldSkill)
}

// elsewhere reports whether another plugin has a tool, or may have it as it has not listed its tools yet.
func (p *Plugin) elsewhere(tool string) bool {
	if _, ok := p.services.Tool(tool); ok {
		return true
	}
	return slices.ContainsFunc(p.services.Plugins(), func(plugin host.Plugin) bool {
		other, ok := host.As[*Plugin](plugin)
		if !ok || other == p {
			return false
		}
		listing := other.listing() // first: names has the list before listing is false
		known, _ := other.names.of(fieldTool, tool)
		return known == ours || known == unknown && listing
	})
}

// listing reports whether the child is about to list its tools.
func (p *Plugin) listing() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.child == nil {
		return p.offer == nil && p.starting != nil
	}
	if _, ok := p.child.offer.Load().serves(protocol.TypeToolCallReq); !ok {
		return false
	}
	select {
	case <-p.child.listed:
		return false
	default:
		return true
	}
}

// alone reports whether no other plugin serves the capability of a type.
func (p *Plugin) alone(t protocol.Type) bool {
	info, _ := protocol.Lookup(t)
	return !slices.ContainsFunc(p.services.Plugins(), func(other host.Plugin) bool {
		o := other.Info()
		return o.Name != p.name && (o.Capability == info.Capability || slices.Contains(o.Also, info.Capability))
	})
}

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
	mu   sync.Mutex                       // guards the fields below
	said map[string][]byte                // answers, by their requests
	mute map[protocol.Type]*child.Backoff // lists that did not come, by the type of the answer
}

// asked is what a request for a list that seldom changes asks for; "" = it is for none.
func (q *request) asked() string {
	switch q.typ {
	case protocol.TypeToolListReq, protocol.TypeSkillDiscoverReq, protocol.TypeToolkitListReq:
		return string(q.typ) + string(bodyOf(q.obj))
	}
	return ""
}

// last returns the last answer to a request; nil = there is none.
func (l *lists) last(q *request) []byte {
	asked := q.asked()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.said[asked]
}

// keep notes an answer. When there are too many all others go: agents ask for few.
func (l *lists) keep(q *request, resp []byte) {
	asked := q.asked()
	if asked == "" || len(asked)+len(resp) > maxSaidBytes {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.said == nil || len(l.said) >= maxSaid {
		l.said = make(map[string][]byte)
	}
	l.said[asked] = resp
}

// refuse is the error of a list that is not asked for now.
func (l *lists) refuse(q *request, now time.Time) *protocol.Error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if b := l.mute[q.want]; q.list && b != nil && b.Wait(now) > 0 {
		late, _ := errors.AsType[*protocol.Error](b.Last)
		return late
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
		l.mute = make(map[protocol.Type]*child.Backoff)
	}
	if l.mute[q.want] == nil {
		l.mute[q.want] = &child.Backoff{First: muteFirst, Most: muteMost}
	}
	l.mute[q.want].Down(now, own, 0, false)
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

// catalogWait bounds how long a call waits for the tool list of a child that nobody else could answer for.
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

// awaitCatalog waits until the child has listed its tools, or does not within its time: until then
// nobody knows whose a tool is. The error is that of ctx.
func (c *peer) awaitCatalog(ctx context.Context) error {
	select {
	case <-c.listed:
		return nil
	default:
	}
	var late <-chan time.Time
	if c.plugin.alone(protocol.TypeToolCallReq) {
		late = time.After(catalogWait)
	}
	host.HandOff(ctx)
	select {
	case <-c.listed:
	case <-c.Done():
	case <-late:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}
