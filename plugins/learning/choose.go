package learning

import (
	"context"
	"math"
	"time"

	"a2e/host"
	"a2e/host/state/store"
	"a2e/plugins/learning/bandit"
	"a2e/protocol"
)

const (
	// armsAge is how old what is known of arms may be before the store is asked what other
	// hosts have counted.
	armsAge = time.Second
	// armsWait bounds that question: it is asked on the way of a call.
	armsWait = 5 * time.Second
	// maxArms bounds what is kept in memory of them.
	maxArms = 10_000
	// ppoBatch is how many calls of a group ppo waits for before it makes a step by itself.
	ppoBatch = 10
)

// arm is one of several components that serve the same purpose: what the store had, and what
// this host counted since then.
type arm struct {
	stored  *Component
	read    time.Time
	counted sums
	pending int // calls under way
}

// count takes in a call.
func (a *arm) count(c *host.CallRecord) {
	one := sums{calls: 1}
	if c.Success {
		one.successes = 1
	}
	if c.Reward != nil && math.Abs(*c.Reward) <= maxReward {
		one.rewards, one.rewardSum = 1, *c.Reward
	}
	a.counted = a.counted.plus(one)
}

// now returns the component as it is known now.
func (a *arm) now() *Component {
	c := *a.stored
	c.sums = c.sums.plus(a.counted)
	return &c
}

var _ host.Chooser = (*Plugin)(nil)

// Choose implements host.Chooser, by the strategy of the config. It looks at each call and
// feedback at once: nobody has to ask for learn/adapt in between.
func (p *Plugin) Choose(ctx context.Context, kind string, names []string) (at int, done func()) {
	p.refreshArms(ctx, kind, names)
	r := p.recorder
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

// arm returns what is known of a component. The caller holds mu.
func (r *recorder) arm(of component) *arm {
	a := r.arms[of]
	if a == nil {
		a = &arm{stored: &Component{Kind: of.kind, Name: of.name, Weight: neutralWeight}}
		r.arms[of] = a
	}
	return a
}

// forgetArms has the arms read anew at the next choice. Whoever has changed in the store what
// they are worth calls it.
func (p *Plugin) forgetArms() {
	p.recorder.mu.Lock()
	defer p.recorder.mu.Unlock()
	for _, a := range p.recorder.arms {
		a.read = time.Time{}
	}
}

// refreshArms reads the arms where they are old, and lets ppo learn from a batch. While
// somebody else does that the choice goes by what is known.
func (p *Plugin) refreshArms(ctx context.Context, kind string, names []string) {
	n := p.armsNeed(kind, names)
	switch {
	case n == (needs{}):
		return
	case n.first:
		host.HandOff(ctx)
		p.choosing.Lock()
		if n = p.armsNeed(kind, names); n == (needs{}) { // somebody else has read them
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

// needs are what is to be done before one of some arms is chosen.
type needs struct {
	first bool // nothing was ever read of some
	old   bool
	step  bool // ppo has a batch to learn from
}

func (p *Plugin) armsNeed(kind string, names []string) (n needs) {
	r, now := p.recorder, p.env.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.arms) > maxArms {
		clear(r.arms) // calls under way hold their own
	}
	fresh := 0.0
	for _, name := range names {
		a := r.arms[component{kind, name}]
		if a == nil {
			return needs{first: true}
		}
		age := now.Sub(a.read)
		n.old = n.old || age < 0 || age >= armsAge
		fresh += a.stored.since.calls + a.counted.calls
	}
	n.step = p.opts.strategy() == protocol.StrategyPPO && fresh >= ppoBatch
	return n
}

// readArms reads the arms of a group, after ppo has learned from them with step.
func (p *Plugin) readArms(ctx context.Context, kind string, names []string, step bool) error {
	select {
	case p.flushing <- struct{}{}: // until they are read, so that no call counts twice
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-p.flushing }()
	read, err := p.storedArms(ctx, kind, names, step)
	r := p.recorder
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range names {
		of := component{kind, name}
		a := r.arm(of)
		a.read = p.env.Now() // a store that fails is not asked at each call either
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

// storedArms puts what was counted into the store, and returns what that knows of the arms.
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
		worth := arms(team, a.share)
		if err == nil && a.byBandit(p.opts.bandit(a.strategy))(team) {
			for i, c := range team {
				if err == nil {
					err = a.keep(tx, c, worth[i].Mean)
				}
			}
		}
		if err != nil {
			return err
		}
		return find(tx)
	})
	p.weights.Store(&weights{}) // the arms are read here
	return read, err
}

// readGroup returns the components of these names.
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
