package worker

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"a2e/protocol/fleet"
)

// nobodyError says that no worker may do a task, or none that has not tried.
type nobodyError struct{ reasons []string }

// Error implements error.
func (e *nobodyError) Error() string { return strings.Join(e.reasons, "; ") }

// downError says that a worker cannot be started.
type downError struct{ reason string }

// Error implements error.
func (e *downError) Error() string { return e.reason }

// candidate is a worker that may do a task.
type candidate struct {
	*runner
	class  class
	free   bool
	weight float64
}

// class orders candidates before free places do: smaller is better.
type class struct {
	unsure bool      // it does not say that it has the wanted capabilities
	health condition // whether it runs
	tier   bool      // its model is not of the wanted tier
	model  bool      // its model is not that of the default worker
}

// compare is negative where c is better.
func (c class) compare(o class) int {
	return cmp.Or(cmp.Compare(c.health, o.health), worse(c.unsure, o.unsure), worse(c.tier, o.tier), worse(c.model, o.model))
}

// worse compares flags, of which false is better.
func worse(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// bestLocked gives the workers that the task should go to, all of one class, the best
// first: by free places, priority, learned weight and the order of the config. The
// error is a *nobodyError or a *downError.
func (p *Pool) bestLocked(t *task) ([]*runner, error) {
	all, err := p.candidatesLocked(t)
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(all, func(a, b candidate) int {
		return cmp.Or(a.class.compare(b.class), worse(!a.free, !b.free),
			cmp.Compare(b.Priority, a.Priority), cmp.Compare(b.weight, a.weight), cmp.Compare(a.order, b.order))
	})
	if all[0].class.health == conditionDown {
		return nil, &downError{all[0].health.Reason(p.env.Now())}
	}
	best := make([]*runner, 0, len(all))
	for _, c := range all {
		if c.class == all[0].class {
			best = append(best, c.runner)
		}
	}
	return best, nil
}

// candidatesLocked gives the workers that may do the task and have not tried yet.
func (p *Pool) candidatesLocked(t *task) ([]candidate, error) {
	among := p.amongLocked(t)
	main := p.defaultModelLocked()
	now := p.env.Now()
	var all []candidate
	none := &nobodyError{}
	for _, r := range among {
		if t.tried(r) {
			continue
		}
		unsure, lacks := r.fitLocked(&t.Requirements)
		if lacks != "" {
			none.reasons = append(none.reasons, "worker "+r.Name+" "+lacks)
			continue
		}
		c := candidate{runner: r, free: r.freeLocked(), weight: 1}
		if t.weigh != nil && len(among) > 1 {
			c.weight = t.weigh(r.Name)
		}
		c.class = class{unsure: unsure, health: r.health.condition(now), tier: t.Tier != "" && r.tierLocked() != t.Tier, model: r.Model != main}
		all = append(all, c)
	}
	if len(all) == 0 {
		return nil, none
	}
	return all, nil
}

// amongLocked gives the workers to choose from: the one that the task names, else those
// with its model, else all.
func (p *Pool) amongLocked(t *task) []*runner {
	if t.Worker != "" {
		return []*runner{p.runner(t.Worker)}
	}
	if t.Model != "" {
		var same []*runner
		for _, r := range p.runners {
			if r.modelLocked() == t.Model {
				same = append(same, r)
			}
		}
		if same != nil {
			return same
		}
	}
	return p.runners
}

// runner gives the worker with a name, or nil.
func (p *Pool) runner(name string) *runner {
	for _, r := range p.runners {
		if r.Name == name {
			return r
		}
	}
	return nil
}

// defaultModelLocked gives the model of the default worker, which tasks go to that ask for
// none: that of the first worker, unless others have a higher priority.
func (p *Pool) defaultModelLocked() string {
	first := p.runners[0]
	for _, r := range p.runners {
		if r.Priority > first.Priority {
			first = r
		}
	}
	return first.Model
}

// fitLocked tells what a worker lacks for a task; "" = nothing that is known. It is unsure
// where a child does not announce a capability by name: it may have it all the same, and
// answers blocked before any work otherwise.
func (r *runner) fitLocked(need *fleet.Requirements) (unsure bool, lacks string) {
	a := r.health.announced
	if r.child == nil {
		a = nil // what it has is known again when it runs
	}
	for _, name := range need.RequiredMCP {
		switch {
		case slices.Contains(r.Capabilities, name):
		case a == nil && (r.Mode == ModeFleet || r.Capabilities == nil):
		case a == nil || !slices.Contains(a.Capabilities.MCPServers, name):
			return false, fmt.Sprintf("has no MCP server %.64q", name)
		case a.MCPHealth[name] != "" && a.MCPHealth[name] != fleet.HealthOK:
			return false, fmt.Sprintf("has an MCP server %.64q that does not work (%.16s)", name, a.MCPHealth[name])
		}
	}
	for _, name := range need.RequiredCapabilities {
		switch {
		case slices.Contains(r.Capabilities, name), r.Mode == ModeOneshot && r.Capabilities == nil:
		case r.Mode == ModeOneshot:
			return false, fmt.Sprintf("does not list the capability %.64q", name)
		case a == nil || !slices.Contains(a.Capabilities.Tools, name):
			unsure = true
		}
	}
	return unsure, ""
}

// modelLocked gives the model that the config says, else the one that was announced.
func (r *runner) modelLocked() string {
	if a := r.health.announced; r.Model == "" && a != nil {
		return a.Worker.Model
	}
	return r.Model
}

// tierLocked gives the tier of the model likewise.
func (r *runner) tierLocked() string {
	if a := r.health.announced; r.ModelTier == "" && a != nil {
		return a.Worker.ModelTier
	}
	return r.ModelTier
}
