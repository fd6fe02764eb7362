package learning

import (
	"context"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"

	"a2e/host"
	"a2e/host/agent"
	"a2e/host/state/store"
	"a2e/protocol"
)

// kindModel is the kind of a component that only feedback or experiences name and that is not called here:
// a model, or a prompt.
const kindModel = "model"

// resolver finds the components that agents name.
type resolver struct {
	calls   map[string]component // components of recent calls, by correlation
	offered map[string]component // what the host has, by name; nil = it was not asked
	actors  map[component]*int64 // components of actors that were found before
}

func newResolver() *resolver { return &resolver{actors: make(map[component]*int64)} }

// resolver makes a resolver for these names. If a name is not that of a called component, it asks other
// plugins what they have, so no transaction may be running.
func (p *Plugin) resolver(ctx context.Context, names []component) (*resolver, error) {
	r := newResolver()
	known := true
	err := p.kept.Read(ctx, func(tx *store.Tx) error {
		for i := 0; i < len(names) && known; i++ {
			_, called, err := recorded(tx, names[i])
			if err != nil {
				return err
			}
			known = called || names[i].name == ""
		}
		return nil
	})
	if err == nil && !known {
		r.offered = offers(ctx, p.services)
	}
	return r, err
}

// recorded returns the number of the component with a name that is not a model: the one of the given kind,
// else the one that was called last; 0 = there is none.
func recorded(tx *store.Tx, of component) (number int64, called bool, err error) {
	_, err = tx.Get("SELECT number, calls > 0 FROM learning_components WHERE name = $1 AND kind <> $2 ORDER BY kind "+
		"= $3 DESC, last_called DESC, number LIMIT 1",
		[]any{of.name, kindModel, of.kind}, &number, &called)
	return number, called, err
}

// offers returns the tools, skills, environments, workers and servers of a host, by name. If several share
// a name, the first in this order is used. A plugin that does not answer is left out.
func offers(ctx context.Context, s *host.Services) map[string]component {
	all := make(map[string]component)
	add := func(kind, as, name string) {
		if _, there := all[as]; !there {
			all[as] = component{kind, name}
		}
	}
	ctx = host.WithKnown(ctx)
	var tools protocol.ToolListResponse
	_ = s.Call(ctx, protocol.TypeToolListReq, &protocol.ToolListRequest{IncludeDeferred: true}, &tools, nil)
	for _, t := range tools.Tools {
		add(host.KindTool, t.Name, t.Name)
	}
	var skills protocol.SkillDiscoverResponse
	_ = s.Call(ctx, protocol.TypeSkillDiscoverReq, &protocol.SkillDiscoverRequest{}, &skills, nil)
	for _, skill := range skills.Skills {
		add(host.KindSkill, skill.Name, skill.Name)
	}
	for _, p := range s.Plugins() {
		if info := p.Info(); info.Capability == protocol.CapEnv {
			name, _ := info.Metadata["env"].(string)
			add(host.KindEnv, name, name)
			add(host.KindEnv, info.Name, name) // env_name may be the name of the plugin
		}
	}
	if pool := agent.Workers(s); pool != nil {
		for _, w := range pool.Workers() {
			add(host.KindWorker, w.Name, w.Name)
		}
	}
	var servers protocol.MCPServerListResponse
	_ = s.Call(ctx, protocol.TypeMCPServerListReq, &protocol.MCPServerListRequest{}, &servers, nil)
	for _, server := range servers.Servers {
		id, _ := server["server_id"].(string)
		add(host.KindServer, id, id)
	}
	return all
}

// find returns the number of the component that is named: that of the first known name, else a new
// component with the last name and its kind; nil = no name is given.
func (r *resolver) find(tx *store.Tx, names []component) (*int64, error) {
	var unknown component
	for _, of := range names {
		for _, name := range []string{of.name, unversioned(of.name)} {
			number, called, err := recorded(tx, component{of.kind, name})
			if offered, ok := r.offered[name]; ok && !called && err == nil {
				number, err = ensureComponent(tx, offered)
			}
			if err != nil || number != 0 {
				return &number, err
			}
		}
		if of.name != "" {
			unknown = of
		}
	}
	if unknown.name == "" {
		return nil, nil
	}
	number, err := ensureComponent(tx, unknown)
	return &number, err
}

// unversioned returns a name without its version, as in sql-skill-v1.0 and sql-skill@1.0; "" = it has no
// version.
func unversioned(name string) string {
	i := max(strings.LastIndex(name, "-v"), strings.LastIndex(name, "@"))
	if i < 0 || strings.Trim(strings.TrimLeft(name[i:], "-@v"), "0123456789.") != "" {
		return ""
	}
	return name[:i]
}

// turnNames returns the components that rated_turn names. The version comes first, as it says more than
// the model.
func turnNames(f *protocol.Feedback) (names []component) {
	if t := f.RatedTurn; t != nil {
		if t.Version != nil {
			names = append(names, component{kindModel, *t.Version})
		}
		names = append(names, component{kindModel, t.Model})
	}
	return names
}

// actor returns the component that acted in an experience, by its action; name "" = the action does not
// say.
func actor(x *protocol.Experience) component {
	for _, by := range []struct{ key, kind string }{
		{"component_name", kindModel},
		{"tool_name", host.KindTool},
		{"skill_name", host.KindSkill},
		{"worker", host.KindWorker},
		{"env_name", host.KindEnv},
		{"model", kindModel},
	} {
		var name string
		if value, there := x.Action.Get(by.key); there && json.Unmarshal(value, &name) == nil && name != "" {
			return component{by.kind, name}
		}
	}
	return component{}
}

// about returns the component of a feedback: that of the call with its correlation, or that which an
// earlier feedback with the same id and correlation had, else what rated_turn names.
func (r *resolver) about(tx *store.Tx, f *protocol.Feedback, old rating, oldRecord []byte) (*int64, error) {
	if c, ok := r.calls[f.CorrelationID]; ok {
		number, err := ensureComponent(tx, c)
		return &number, err
	}
	if old.component != nil && f.CorrelationID != "" {
		var earlier protocol.Feedback
		if err := json.Unmarshal(oldRecord, &earlier); err == nil && earlier.CorrelationID == f.CorrelationID &&
			slices.Equal(turnNames(&earlier), turnNames(f)) {
			return old.component, nil
		}
	}
	return r.find(tx, turnNames(f))
}
