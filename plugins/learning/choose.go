package learning

import (
	"context"
	"time"

	"a2e/host"
	"a2e/host/state/store"
	"a2e/plugins/learning/bandit"
	"a2e/protocol"
)

const (
	// armsAge is how old the known state of arms may be before the store is asked for what other hosts
	// have counted.
	armsAge = time.Second
	// armsWait bounds that request to the store, as a call waits for it.
	armsWait = 5 * time.Second
	// maxArms bounds the arms in memory.
	maxArms = 10_000
	// ppoBatch is how many calls of a group ppo waits for before it makes a step without learn/adapt.
	ppoBatch = 10
)

// arm is one of several components that serve the same purpose: what the store had, and what this host has
// counted since.
type arm struct {
	stored  *Component
	read    time.Time
	counted sums
	pending int // calls that are running
}

// count adds a call.
func (a *arm) count(c *host.CallOutcome) {
	one := sums{Calls: 1}
	if c.Success {
		one.Successes = 1
	}
	if c.Reward != nil {
		one.Rewards, one.rewardSum = 1, *c.Reward
	}
	a.counted = a.counted.plus(one)
}

// now returns the component with everything counted so far.
func (a *arm) now() *Component {
	c := *a.stored
	c.sums = c.sums.plus(a.counted)
	return &c
}

var _ host.Chooser = (*Plugin)(nil)

// Choose implements host.Chooser by the strategy of the config. It takes every call and feedback into
// account at once, without learn/adapt.
func (p *Plugin) Choose(ctx context.Context, kind string, names []string) (at int, done func()) {
	p.refreshArms(ctx, kind, names)
	r := p.buffer
	r.mu.Lock()
	defer r.mu.Unlock()
	rivals := make([]*Component, len(names))
	for i, name := range names {
		rivals[i] = r.arm(component{kind, name}).now()
	}
	all := arms(rivals, p.opts.FeedbackShare)
	for i, name := range names {
		all[i].Pending = r.arm(component{kind, name}).pending
	}
	at = bandit.Next(p.opts.bandit(p.opts.strategy()), all, r.random)
	chosen := r.arm(component{kind, names[at]})
	chosen.pending++
	return at, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		chosen.pending--
	}
}

// arm returns the arm of a component, and makes it if there is none. The caller holds mu.
func (r *callBuffer) arm(of component) *arm {
	a := r.arms[of]
	if a == nil {
		a = &arm{stored: &Component{Kind: of.kind, Name: of.name, Weight: neutralWeight}}
		r.arms[of] = a
	}
	return a
}

// forgetArms makes the next choice read the arms again. It must be called after a change of their data in
// the store.
func (p *Plugin) forgetArms() {
	p.buffer.mu.Lock()
	defer p.buffer.mu.Unlock()
	for _, a := range p.buffer.arms {
		a.read = time.Time{}
	}
}

// refreshArms reads old arms again, and lets ppo learn from a batch. If another goroutine is doing that,
// the choice uses what is known.
func (p *Plugin) refreshArms(ctx context.Context, kind string, names []string) {
	n := p.armsNeed(kind, names)
	switch {
	case n == (needs{}):
		return
	case n.first:
		host.HandOff(ctx)
		p.choosing.Lock()
		if n = p.armsNeed(kind, names); n == (needs{}) { // another goroutine has read them
			p.choosing.Unlock()
			return
		}
	case !p.choosing.TryLock():
		return
	}
	defer p.choosing.Unlock()
	host.HandOff(ctx)
	ctx, cancel := context.WithTimeout(ctx, armsWait)
	defer cancel()
	if err := p.readArms(ctx, kind, names, n.step); err != nil && ctx.Err() == nil {
		p.env.Log.Warn().Err(err).Str("plugin", p.name).Msg("what is known of tools cannot be read: one is chosen " +
			"by what this host has counted")
	}
}

// needs is what must be done before one of some arms is chosen.
type needs struct {
	first bool // some arms were never read
	old   bool
	step  bool // ppo has a batch to learn from
}

func (p *Plugin) armsNeed(kind string, names []string) (n needs) {
	r, now := p.buffer, p.env.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.arms) > maxArms {
		clear(r.arms) // running calls keep their own arm
	}
	fresh := int64(0)
	for _, name := range names {
		a := r.arms[component{kind, name}]
		if a == nil {
			return needs{first: true}
		}
		age := now.Sub(a.read)
		n.old = n.old || age < 0 || age >= armsAge
		fresh += a.stored.since.Calls + a.counted.Calls
	}
	n.step = p.opts.strategy() == protocol.StrategyPPO && fresh >= ppoBatch
	return n
}

// readArms reads the arms of a group. With step, ppo learns from them first.
func (p *Plugin) readArms(ctx context.Context, kind string, names []string, step bool) error {
	select {
	case p.flushing <- struct{}{}: // held until the arms are read, so that no call counts twice
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-p.flushing }()
	read, err := p.storedArms(ctx, kind, names, step)
	r := p.buffer
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range names {
		of := component{kind, name}
		a := r.arm(of)
		a.read = p.env.Now() // also after an error, so that a failing store is not asked at every call
		if err != nil {
			continue
		}
		a.stored, a.counted = read[name], sums{}
		if t := r.counted.tallies[of]; t != nil {
			a.counted = t.sums()
		}
	}
	return err
}

// storedArms writes what was counted to the store, and returns the stored arms.
func (p *Plugin) storedArms(ctx context.Context, kind string, names []string, step bool) (map[string]*Component,
	error,
) {
	read := make(map[string]*Component, len(names))
	if err := p.flushHeld(ctx); err != nil {
		return nil, err
	}
	if p.env.StoreExists != nil && !p.env.StoreExists() {
		for _, name := range names {
			read[name] = &Component{Kind: kind, Name: name, Weight: neutralWeight}
		}
		return read, nil
	}
	find := func(tx *store.Tx) error {
		all, err := readGroup(tx, kind, names)
		for _, c := range all {
			read[c.Name] = c
		}
		return err
	}
	if !step {
		return read, p.env.Store.Read(ctx, find)
	}
	a := &adaption{strategy: protocol.StrategyPPO, share: p.opts.FeedbackShare, at: p.nowMicros()}
	err := p.env.Store.Write(ctx, func(tx *store.Tx) error {
		team, err := readGroup(tx, kind, names)
		if err == nil {
			_, err = a.teach(tx, team, a.byBandit(p.opts.bandit(a.strategy)))
		}
		if err != nil {
			return err
		}
		return find(tx)
	})
	p.weights.Store(&weights{}) // the store has new weights; the arms are read here
	return read, err
}

// readGroup returns the components with these names.
func readGroup(tx *store.Tx, kind string, names []string) ([]*Component, error) {
	team := make([]*Component, len(names))
	for i, name := range names {
		all, err := components(tx, name)
		for _, c := range all {
			if c.Kind == kind {
				team[i] = c
			}
		}
		if err == nil && team[i] == nil {
			team[i], err = unseen(tx, kind, name)
		}
		if err != nil {
			return nil, err
		}
	}
	return team, nil
}
