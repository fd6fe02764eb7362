package learning

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"

	"a2e/host"
	"a2e/host/child"
	"a2e/host/sandbox"
	"a2e/host/state/store"
	"a2e/plugins/learning/bandit"
	"a2e/protocol"
)

// adaptRequest is a protocol.LearnAdaptRequest that distinguishes an absent strategy from "ppo": for an
// absent one the config decides.
type adaptRequest struct {
	ComponentName string                 `json:"component_name"` // "" = all
	Strategy      protocol.AdaptStrategy `json:"strategy"`
}

// adapt answers learn/adapt: it computes the routing weights of components and stores them. Tools and
// skills compete with those that serve the same purpose, other components with those of their kind. A
// component that competes with nobody has the neutral weight.
func (p *Plugin) adapt(ctx context.Context, req *adaptRequest, _ host.Emitter) (*protocol.LearnAdaptResponse, error) {
	name := req.Strategy
	if name == "" {
		name = p.opts.strategy()
	}
	if err := p.checkStrategy(name); err != nil {
		return nil, err
	}
	if err := p.flush(ctx); err != nil {
		return nil, p.kept.Noted(ctx, err)
	}
	a := &adaption{
		component: req.ComponentName, strategy: name, share: p.opts.FeedbackShare, at: p.nowMicros(),
		groups: make(map[string]host.Groups),
	}
	for _, kind := range []string{host.KindTool, host.KindSkill} {
		a.groups[kind] = p.services.Groups(ctx, kind)
	}
	find := a.byBandit(p.opts.bandit(name))
	if name == protocol.StrategyCustom {
		given, err := p.runCustom(ctx, a)
		if err != nil {
			return nil, err
		}
		find = given.weigh
	}
	if err := p.kept.Write(ctx, func(tx *store.Tx) error { return a.carryOut(tx, find) }); err != nil {
		return nil, err
	}
	p.forgetWeights()
	return a.response(), nil
}

func (p *Plugin) checkStrategy(name protocol.AdaptStrategy) error {
	switch {
	case !slices.Contains(strategies(), name):
		return protocol.Violation(protocol.FieldError{Path: "/strategy", Message: fmt.Sprintf("is %.64q; should be "+
			"one of %q", name, strategies())})
	case name == protocol.StrategyCustom && len(p.opts.CustomCommand) == 0:
		return protocol.Violation(protocol.FieldError{
			Path:    "/strategy",
			Message: `is "custom", which needs a custom_command in the config of the learning plugin`,
		})
	}
	return nil
}

// adaption is one learn/adapt request while it runs.
type adaption struct {
	component string // "" = all
	strategy  protocol.AdaptStrategy
	share     float64                // share of feedback in a reward
	at        int64                  // microseconds since 1970
	groups    map[string]host.Groups // of tools and skills, by kind

	updated []*Component
	learned int  // how many of updated compete
	idle    bool // there was nothing to learn from
}

// weigher sets the weights of competing components, some of which may be unseen. It returns false if there
// is nothing to learn from.
type weigher func(rivals []*Component) bool

// carryOut reads the records, computes the weights and stores them, all in one transaction: ppo starts
// from the current weights.
func (a *adaption) carryOut(tx *store.Tx, find weigher) error {
	all, err := components(tx, "")
	if err != nil {
		return err
	}
	teams, alone, err := a.teams(tx, all)
	if err != nil {
		return err
	}
	a.updated, a.idle = nil, true
	for _, rivals := range teams {
		learned, err := a.teach(tx, rivals, find)
		if err != nil {
			return err
		}
		a.idle = a.idle && !learned
		a.updated = append(a.updated, slices.DeleteFunc(rivals, a.ignores)...)
	}
	a.learned = len(a.updated)
	for _, c := range slices.DeleteFunc(alone, a.ignores) {
		a.updated = append(a.updated, c)
		if err := a.release(tx, c); err != nil {
			return err
		}
	}
	return nil
}

// ignores reports whether the request is about another component.
func (a *adaption) ignores(c *Component) bool { return a.component != "" && c.Name != a.component }

// teach computes the weights of competing components and stores them. It returns false if there is nothing
// to learn from.
func (a *adaption) teach(tx *store.Tx, rivals []*Component, find weigher) (bool, error) {
	worth := arms(rivals, a.share)
	if !find(rivals) {
		return false, nil
	}
	for i, c := range rivals {
		if a.ignores(c) {
			continue
		}
		if err := a.keep(tx, c, worth[i].Mean); err != nil {
			return true, err
		}
	}
	return true, nil
}

// release resets a weight that a component learned from rivals that it no longer has. A weight that was
// set by custom_command or a refinement stays.
func (a *adaption) release(tx *store.Tx, c *Component) error {
	t := weightOf(c.Kind, c.Name)
	row, err := t.read(tx)
	if err != nil || row == nil || row.Strategy == string(protocol.StrategyCustom) ||
		!slices.Contains(strategies(), protocol.AdaptStrategy(row.Strategy)) {
		return err
	}
	c.Weight, a.idle = neutralWeight, false
	if err := t.write(tx, nil); err != nil {
		return err
	}
	return addHistory(tx, a.at, c.Kind, c.Name, neutralWeight, &arms([]*Component{c}, a.share)[0].Mean,
		string(a.strategy))
}

// keep stores the weight of a component, and adds it to the history with what the component is worth.
func (a *adaption) keep(tx *store.Tx, c *Component, worth float64) error {
	row := &setting{Weight: &c.Weight, Strategy: string(a.strategy), UpdatedAt: a.at}
	if err := weightOf(c.Kind, c.Name).write(tx, row); err != nil {
		return err
	}
	if a.strategy == protocol.StrategyPPO {
		if _, err := tx.Exec(`UPDATE learning_components SET ppo_calls = $1, ppo_successes = $2, ppo_rewards = $3,
			ppo_reward_sum = $4,
			ppo_experience = CASE WHEN ppo_experience > $5 THEN ppo_experience ELSE $5 END, ppo_score = $6 WHERE
				number = $7`,
			c.Calls, c.Successes, c.Rewards, c.rewardSum, c.lastExperience, c.scoreSum, c.number); err != nil {
			return err
		}
	}
	return addHistory(tx, a.at, c.Kind, c.Name, c.Weight, &worth, string(a.strategy))
}

// teams returns the components that compete, and those that compete with nobody. If anything is known
// about one member of a group, the group has all its members. custom_command gets all components.
func (a *adaption) teams(tx *store.Tx, all []*Component) (teams [][]*Component, alone []*Component, err error) {
	known := make(map[component]*Component, len(all))
	for _, c := range all {
		known[component{c.Kind, c.Name}] = c
	}
	taken := make(map[*Component]bool)
	for kind, groups := range a.groups {
		for _, names := range groups {
			var team []*Component
			for _, name := range names {
				c := known[component{kind, name}]
				if c == nil {
					if c, err = unseen(tx, kind, name); err != nil {
						return nil, nil, err
					}
				}
				team, taken[c] = append(team, c), true
			}
			if slices.ContainsFunc(team, (*Component).known) {
				teams = append(teams, team)
			}
		}
	}
	rest := make(map[string][]*Component)
	for _, c := range all {
		switch _, grouped := a.groups[c.Kind]; {
		case !c.known() || taken[c]:
		case grouped && a.strategy != protocol.StrategyCustom:
			alone = append(alone, c)
		default:
			rest[c.Kind] = append(rest[c.Kind], c)
		}
	}
	for _, team := range rest {
		teams = append(teams, team)
	}
	slices.SortFunc(teams, func(x, y []*Component) int {
		return cmp.Or(cmp.Compare(x[0].Kind, y[0].Kind), cmp.Compare(x[0].Name, y[0].Name))
	})
	return teams, alone, nil
}

// known reports whether there are outcomes or feedback to judge the component by.
func (c *Component) known() bool { return c.outcomes.count() > 0 || c.ScoreWeight > 0 }

// unseen returns a component for which nothing was counted.
func unseen(tx *store.Tx, kind, name string) (*Component, error) {
	row, err := weightOf(kind, name).read(tx)
	return &Component{Kind: kind, Name: name, Weight: row.weight()}, err
}

// byBandit returns the weigher of a strategy.
func (a *adaption) byBandit(s bandit.Strategy) weigher {
	return func(rivals []*Component) bool {
		all, news := arms(rivals, a.share), true
		if a.strategy == protocol.StrategyPPO {
			all, news = newArms(rivals, a.share)
		}
		if !news {
			return false
		}
		for i, w := range s.Weights(all) {
			rivals[i].Weight = min(w, maxWeight) // with more than maxWeight rivals it may be above
		}
		return true
	}
}

// response returns the answer to the request.
func (a *adaption) response() *protocol.LearnAdaptResponse {
	resp := &protocol.LearnAdaptResponse{}
	kinds, counts := []string{}, map[string]int{}
	for i, c := range a.updated {
		resp.Updated = append(resp.Updated, c.Message())
		if i >= a.learned {
			continue
		}
		if counts[c.Kind]++; counts[c.Kind] == 1 {
			kinds = append(kinds, c.Kind)
		}
	}
	for i, kind := range kinds {
		kinds[i] = fmt.Sprintf("%d of kind %s", counts[kind], kind)
	}
	switch {
	case len(a.updated) == 0 && a.component != "":
		resp.Message = fmt.Sprintf("nothing was recorded of %.100q: its weight stays as it is", a.component)
	case len(a.updated) == 0:
		resp.Message = "nothing was recorded yet: weights stay as they are"
	case a.learned == 0:
		resp.Message = a.alone() + ": weights stay as they are"
		if !a.idle {
			resp.Message = a.alone() + ": weights are neutral again"
		}
	case a.idle:
		resp.Message = fmt.Sprintf("%s: nothing new was recorded since the last time: weights stay as they are",
			a.strategy)
	default:
		resp.Message = fmt.Sprintf("adapted routing weights by %s: %s", a.strategy, strings.Join(kinds, ", "))
		if len(a.updated) > a.learned {
			resp.Message += "; " + a.alone()
		}
	}
	return resp
}

// alone says how many of the components compete with nobody.
func (a *adaption) alone() string {
	return fmt.Sprintf("%d in no group, which compete with nobody", len(a.updated)-a.learned)
}

const (
	// maxCustomOutput bounds what custom_command may print.
	maxCustomOutput = 4 << 20
	// maxCustomErrors bounds the part of its stderr that a refusal shows.
	maxCustomErrors = 2 << 10
)

// given are the weights that custom_command printed, by the names of components.
type given map[string]float64

// weigh is the weigher of the strategy custom. A component that the command does not name keeps its
// weight.
func (g given) weigh(rivals []*Component) bool {
	for _, c := range rivals {
		if w, ok := g[c.Name]; ok {
			c.Weight = w
		}
	}
	return true
}

// runCustom lets custom_command compute the weights. It runs outside of any transaction, as the command
// may take long.
func (p *Plugin) runCustom(ctx context.Context, a *adaption) (given, error) {
	var records []map[string]any
	names := make(map[string]bool)
	if err := p.kept.Read(ctx, func(tx *store.Tx) error {
		all, err := components(tx, "")
		if err != nil {
			return err
		}
		teams, _, err := a.teams(tx, all)
		for _, rivals := range teams {
			for i, arm := range arms(rivals, a.share) {
				record := rivals[i].Message()
				record["reward"] = arm.Mean
				records, names[rivals[i].Name] = append(records, record), true
			}
		}
		return err
	}); err != nil {
		return nil, err
	}
	if len(records) == 0 {
		return nil, nil
	}
	input, err := protocol.AppendJSON(nil, map[string]any{"component_name": a.component, "components": records})
	if err != nil {
		return nil, err
	}
	host.HandOff(ctx)
	output, err := p.customOutput(ctx, input)
	if err != nil {
		return nil, err
	}
	weights, err := readGiven(output, names)
	if err != nil {
		return nil, protocol.Errorf(protocol.CodeRuntimeError, "custom_command %s: %w", p.opts.CustomCommand[0], err)
	}
	return weights, nil
}

// readGiven reads the output of the command: weights for some of the components.
func readGiven(output []byte, names map[string]bool) (given, error) {
	var weights given
	if err := json.Unmarshal(output, &weights); err != nil || weights == nil {
		return nil, fmt.Errorf("it should print one JSON object {component: weight}, but printed %.200q", output)
	}
	for name, w := range weights {
		if !names[name] {
			return nil, fmt.Errorf("it gave a weight to %.100q, which is not one of the components on its stdin", name)
		}
		if err := checkWeight(w); err != nil {
			return nil, fmt.Errorf("component %.100q: %w", name, err)
		}
	}
	return weights, nil
}

// customOutput runs the command and returns its output.
func (p *Plugin) customOutput(ctx context.Context, input []byte) ([]byte, error) {
	command := p.opts.CustomCommand
	fail := func(format string, args ...any) error {
		return protocol.Errorf(protocol.CodeRuntimeError, "custom_command "+format, args...)
	}
	path, err := sandbox.LookPath(command[0], sandbox.SafePath(os.Getenv("PATH"), p.env.Workspace), p.env.Workspace)
	if err != nil {
		return nil, fail("cannot be started: %w", err)
	}
	launcher, err := p.env.Launcher()
	if err != nil {
		return nil, fail("cannot be started: %w", err)
	}
	limit := p.opts.customTimeout()
	own, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	stdout, stderr := &child.Tail{Size: maxCustomOutput}, &child.Tail{Size: maxCustomErrors}
	process, err := launcher.Command(own, sandbox.Policy{
		Path: path, Args: command, Dir: p.env.Workspace,
		Home: sandbox.HomeOwn, Stdin: bytes.NewReader(input), Stdout: stdout, Stderr: stderr,
	})
	if err != nil && own.Err() == nil {
		return nil, fail("cannot be started: %w", err)
	}
	var state sandbox.State
	if err == nil {
		state, err = process.Wait()
	}
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.Is(err, context.DeadlineExceeded):
		return nil, fail("did not end within %s; custom_timeout in the config gives it more", limit)
	case err != nil:
		return nil, fail("was lost: %w", err)
	case state.Code != 0:
		return nil, fail("ended with %s; on stderr it said: %s", state, stderr)
	case stdout.Left() > 0:
		return nil, fail("printed more than the %d bytes allowed", maxCustomOutput)
	}
	return []byte(stdout.String()), nil
}
