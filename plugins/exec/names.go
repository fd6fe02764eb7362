package exec

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/go-json-experiment/json"

	"a2e/host"
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
	delete(n.own, field)
	delete(n.not, field)
	n.listed[field] = true
	n.mu.Unlock()
	n.learn(field, all...)
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
	case known == unlisted && q.names == fieldTool && p.elsewhere(q.name):
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

// elsewhere reports whether another plugin has a tool.
func (p *Plugin) elsewhere(tool string) bool {
	if _, ok := p.services.Tool(tool); ok {
		return true
	}
	return slices.ContainsFunc(p.services.Plugins(), func(plugin host.Plugin) bool {
		other, ok := host.As[*Plugin](plugin)
		if !ok || other == p {
			return false
		}
		known, _ := other.names.of(fieldTool, tool)
		return known == ours
	})
}

// alone reports whether no other plugin serves the capability of a type.
func (p *Plugin) alone(t protocol.Type) bool {
	info, _ := protocol.Lookup(t)
	return !slices.ContainsFunc(p.services.Plugins(), func(other host.Plugin) bool {
		o := other.Info()
		return o.Name != p.name && (o.Capability == info.Capability || slices.Contains(o.Also, info.Capability))
	})
}
