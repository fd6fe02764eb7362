package worker

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"a2e/protocol"
	"a2e/protocol/fleet"
)

// greetTime is how long a child may take to announce itself. A child that takes longer gets only
// tasks that do not depend on its announce.
const greetTime = 5 * time.Second

// candidate is a worker that may do a task. Only the candidates of the best class are
// used; within a class, free places count first.
type candidate struct {
	*runner
	class  class
	full   bool
	load   int  // number of tasks under way
	dirty  bool // its repository has changes that are not committed
	weight float64
}

// class orders candidates; smaller values and false are better.
type class struct {
	health condition // its health
	losses int       // how often it died of this task
	away   bool      // another worker has the task's conversation
	unsure bool      // it does not announce the wanted capabilities
	other  bool      // its model or tier is not the wanted one
	model  bool      // its model is not that of the default worker
}

func (c class) compare(o class) int {
	return cmp.Or(cmp.Compare(c.health, o.health), cmp.Compare(c.losses, o.losses), worse(c.away, o.away),
		worse(c.unsure, o.unsure), worse(c.other, o.other), worse(c.model, o.model))
}

// worse compares two flags; false is better and comes first.
func worse(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// meet waits until the workers of mode fleet that may get the task have announced themselves, and starts
// those that do not run. It waits for the announce or the end of each child for a limited time. It waits
// as long for MCP servers that a child is connecting, if no other worker has them.
func (p *Pool) meet(ctx context.Context, t *task) {
	p.mu.Lock()
	strangers := slices.DeleteFunc(slices.Clone(p.runners), func(r *runner) bool {
		return r.Mode != ModeFleet || r.knownLocked() || r.health.condition(p.env.Now()) != conditionGood ||
			!r.mayWant(t)
	})
	_, young := p.youngLocked(t)
	p.mu.Unlock()
	if len(strangers) == 0 && young <= 0 {
		return
	}
	var met sync.WaitGroup
	for _, r := range strangers {
		met.Go(func() {
			if _, err := r.greeted(ctx); err != nil {
				_, _ = r.unstarted(ctx, t, err) // records the failure
			}
		})
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		met.Wait()
		for p.maySettle(ctx, t) {
		}
	}()
	t.tellStart("")
	t.idle(over)
}

// maySettle waits for the next announce if no worker has the MCP servers that the task
// requires, but a newly started one may have them soon. It reports whether it waited.
func (p *Pool) maySettle(ctx context.Context, t *task) bool {
	p.mu.Lock()
	_, err := p.candidatesLocked(t)
	news, young := p.youngLocked(t)
	p.mu.Unlock()
	if err == nil || young <= 0 {
		return false
	}
	clock := time.NewTimer(young)
	defer clock.Stop()
	select {
	case <-news:
	case <-clock.C:
	case <-ctx.Done():
		return false
	}
	return true
}

// youngLocked returns how long children that have announced a timeout of a required MCP server may still be
// connecting it, and a channel that is closed at the next announce.
func (p *Pool) youngLocked(t *task) (news <-chan struct{}, left time.Duration) {
	for _, r := range p.runners {
		a := r.toldLocked()
		tried := slices.ContainsFunc(t.setbacks, func(s setback) bool { return s.at == r })
		if a != nil && !tried && r.mayWant(t) && slices.ContainsFunc(t.Requirements.RequiredMCP,
			func(id string) bool { return a.MCPHealth[id] == fleet.HealthTimeout }) {
			left = max(left, p.pace.greet-time.Since(r.child.begun))
		}
	}
	return p.news, left
}

// mayWant reports whether the task may go to the worker according to the config.
func (r *runner) mayWant(t *task) bool {
	switch {
	case t.Worker != "":
		return t.Worker == r.Name
	case t.Workspace != "" && (r.rests() || r.Mode == ModeQueue):
		return false
	}
	return t.Fallback || (t.Model == "" || r.Model == "" || r.Model == t.Model) &&
		(t.Tier == "" || r.ModelTier == "" || r.ModelTier == t.Tier)
}

// greeted returns the child of the worker after it has announced itself or greetTime has passed. It starts
// a child if none runs. The error says why that failed.
func (r *runner) greeted(ctx context.Context) (*peer, error) {
	c, err := r.running(ctx)
	if err != nil {
		return nil, err
	}
	late := time.NewTimer(r.pool.pace.greet - time.Since(c.begun))
	defer late.Stop()
	select {
	case <-c.greeted:
	case <-c.Done():
	case <-ctx.Done():
	case <-late.C:
		r.pool.mu.Lock()
		defer r.pool.mu.Unlock()
		c.late = !c.met
	}
	return c, nil
}

// knownLocked reports whether the child has announced itself or is too late for that.
func (r *runner) knownLocked() bool { return r.child != nil && (r.child.met || r.child.late) }

// toldLocked returns the announce of the running child, or nil if there is none.
func (r *runner) toldLocked() *fleet.Announce {
	if r.child == nil || !r.child.met {
		return nil
	}
	return r.health.announced
}

// bestLocked returns the workers that the task should go to, all of one class, the best
// first: by free places, priority, the model of the chosen worker, tasks under way, a clean repository,
// the chosen worker, learned weight and the order of the config. The error is a *nobodyError, a *downError,
// or says that no worker has the wanted model.
func (p *Pool) bestLocked(t *task) ([]*runner, error) {
	all, err := p.candidatesLocked(t)
	if err != nil {
		return nil, err
	}
	other := func(c candidate) bool {
		return t.open && t.chosen != nil && c.modelLocked() != t.chosen.modelLocked()
	}
	slices.SortStableFunc(all, func(a, b candidate) int { // stable, so that equal ones stay in the order of the config
		return cmp.Or(a.class.compare(b.class), worse(a.full, b.full), cmp.Compare(b.Priority, a.Priority),
			worse(other(a), other(b)),
			cmp.Compare(a.load, b.load), worse(a.dirty, b.dirty), worse(a.runner != t.chosen, b.runner != t.chosen),
			cmp.Compare(b.weight, a.weight))
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

// candidatesLocked returns the workers that may do the task and have not tried yet.
func (p *Pool) candidatesLocked(t *task) ([]candidate, error) {
	among, err := p.amongLocked(t)
	if err != nil {
		return nil, err
	}
	main, now := p.defaultModel(), p.env.Now()
	var all []candidate
	none := &nobodyError{}
	for _, r := range among {
		if slices.ContainsFunc(t.setbacks, func(s setback) bool { return s.at == r }) {
			continue
		}
		unsure, lacks := r.fitLocked(t)
		if lacks != "" {
			none.reasons = append(none.reasons, "worker "+r.Name+" "+lacks)
			continue
		}
		c := candidate{runner: r, full: !r.freeLocked(), load: r.active, weight: 1}
		if a := r.toldLocked(); a != nil {
			c.load += r.child.others
			c.dirty = a.Session.RepoState != nil && !a.Session.RepoState.Clean
		}
		if t.weigh != nil && len(among) > 1 {
			c.weight = t.weigh(r.Name)
		}
		c.class = class{
			health: r.health.condition(now), losses: t.lostAt(r), away: t.talk != nil &&
				t.talk.Worker != "" && t.talk.Worker != r.Name, unsure: unsure, other: !r.wantedLocked(t),
			model: t.Model == "" && !t.open && r.Model != main,
		}
		all = append(all, c)
	}
	if len(all) == 0 {
		return nil, none
	}
	return all, nil
}

// amongLocked returns the workers to choose from: the worker that the task names, else those
// with its model and tier, or all if the task allows others. The error says that no worker
// has them, and which models there are.
func (p *Pool) amongLocked(t *task) ([]*runner, *protocol.Error) {
	if t.Worker != "" {
		return []*runner{p.runner(t.Worker)}, nil
	}
	if t.Fallback {
		return p.runners, nil
	}
	wanted := slices.DeleteFunc(slices.Clone(p.runners), func(r *runner) bool { return !r.wantedLocked(t) })
	if len(wanted) > 0 {
		return wanted, nil
	}
	var there []string
	for _, r := range p.runners {
		there = append(there, r.Name+" has "+r.profileLocked())
	}
	return nil, protocol.Errorf(protocol.CodeSchemaViolation, "no worker has %s: %s; ask for what there is, or set "+
		"fallback to true for any", profile(t.Model, t.Tier), strings.Join(there, ", "))
}

// wantedLocked reports whether the worker has the model and the tier that the task asks for. They do not
// matter if the task names its worker. If no worker has a known model, any worker may have the wanted
// one, as each child agent names a model on the wire.
func (r *runner) wantedLocked(t *task) bool {
	if t.Worker != "" || r.Mode == ModeQueue && r.Model == "" && r.ModelTier == "" { // models are unknown
		return true
	}
	fits := t.Model == "" || r.modelLocked() == t.Model || !slices.ContainsFunc(r.pool.runners,
		func(r *runner) bool { return r.modelLocked() != "" })
	return fits && (t.Tier == "" || r.tierLocked() == t.Tier)
}

// profileLocked returns a text about the worker's model.
func (r *runner) profileLocked() string {
	if r.Mode == ModeFleet && r.toldLocked() == nil && (r.Model == "" || r.ModelTier == "") {
		return cmp.Or(r.health.Reason(r.pool.env.Now()), "not announced itself")
	}
	return profile(r.modelLocked(), r.tierLocked())
}

// profile returns a text about a model and its tier.
func profile(model, tier string) string {
	switch {
	case model != "" && tier != "":
		return fmt.Sprintf("the model %.64q of tier %.64q", model, tier)
	case model != "":
		return fmt.Sprintf("the model %.64q", model)
	case tier != "":
		return fmt.Sprintf("a model of tier %.64q", tier)
	}
	return "no model that it tells"
}

// CheckModel returns an error if no worker has the model and tier of a task. While a child has not announced
// itself yet, it returns nil.
func (p *Pool) CheckModel(model, tier string) *protocol.Error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.runners {
		if r.Mode == ModeFleet && !r.knownLocked() {
			return nil
		}
	}
	t := new(task)
	if t.Model, t.Tier = model, tier; model == AutoModel {
		t.Model = ""
	}
	_, err := p.amongLocked(t)
	return err
}

// runner returns the worker with a name, or nil.
func (p *Pool) runner(name string) *runner {
	for _, r := range p.runners {
		if r.Name == name {
			return r
		}
	}
	return nil
}

// defaultModel returns the model of the default worker, which gets the tasks that ask for
// no model: the first worker of the highest priority.
func (p *Pool) defaultModel() string {
	return slices.MaxFunc(p.runners, func(a, b *runner) int { return cmp.Compare(a.Priority, b.Priority) }).Model
}

// fitLocked returns what a worker lacks for a task; "" = nothing known. unsure reports
// that a child does not announce a required capability: it may have it all the same, and
// otherwise answers blocked before any work.
func (r *runner) fitLocked(t *task) (unsure bool, lacks string) {
	if t.Workspace != "" && (r.rests() || r.Mode == ModeQueue) {
		return false, "works in a folder of its own, and not in one of the task"
	}
	a, waits := r.toldLocked(), r.Mode == ModeFleet && !r.knownLocked()
	if r.Mode == ModeA2A {
		a = r.health.announced
	}
	for _, name := range t.Requirements.RequiredMCP {
		switch {
		case slices.Contains(r.Capabilities, name), waits, r.Mode != ModeFleet && r.Capabilities == nil:
		case a == nil && r.Mode == ModeFleet:
			return false, fmt.Sprintf("did not announce itself within %s, and so not the MCP server %.64q",
				r.pool.pace.greet, name)
		case a == nil || !slices.Contains(a.Capabilities.MCPServers, name):
			return false, fmt.Sprintf("has no MCP server %.64q", name)
		case a.MCPHealth[name] != "" && a.MCPHealth[name] != fleet.HealthOK:
			return false, fmt.Sprintf("has an MCP server %.64q that does not work (%.16s)", name, a.MCPHealth[name])
		}
	}
	has := func(name string) bool {
		return slices.Contains(r.Capabilities, name) || r.lists(name) || a != nil &&
			slices.Contains(a.Capabilities.Tools, name)
	}
	for _, name := range t.Requirements.RequiredCapabilities {
		switch {
		case fleet.Serves(has, name), !r.rests() && r.Capabilities == nil && r.Tools == nil:
		case !r.rests():
			return false, fmt.Sprintf("does not list the capability %.64q", name)
		default:
			unsure = true
		}
	}
	return unsure, ""
}

// modelLocked returns the model in the config, else the announced one.
func (r *runner) modelLocked() string {
	if a := r.health.announced; r.Model == "" && a != nil {
		return a.Worker.Model
	}
	return r.Model
}

// tierLocked returns the model tier in the config, else the announced one.
func (r *runner) tierLocked() string {
	if a := r.health.announced; r.ModelTier == "" && a != nil {
		return a.Worker.ModelTier
	}
	return r.ModelTier
}
