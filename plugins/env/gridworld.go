package env

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

const (
	defaultGridSize    = 8
	maxGridSize        = 64
	defaultStepPenalty = 0.01
)

// GridworldOptions are the options of the environment `gridworld`: a maze made from the
// episode's seed, with a reward of 1 at its goal.
//
//	gridworld.go  the environment and one episode
//	maze.go       cells and walls, distances; as text and as a picture
type GridworldOptions struct {
	Width       int      `yaml:"width" min:"0" max:"64" doc:"Cells from left to right, 2 to 64; 0 = 8."`
	Height      int      `yaml:"height" min:"0" max:"64" doc:"Cells from top to bottom, 2 to 64; 0 = 8."`
	Slippery    float64  `yaml:"slippery" min:"0" max:"1" doc:"Probability, from 0 to 1, that a move goes to one of the sides instead."`
	StepPenalty *float64 `yaml:"step_penalty" min:"0" doc:"What each step that does not reach the goal costs; default: 0.01."`
}

// gridworld is the environment `gridworld`.
type gridworld struct{ rules gridRules }

// gridRules are the options with their defaults. They are saved with an episode, so that its rules do not
// change with the config.
type gridRules struct {
	Width    int     `json:"width"`
	Height   int     `json:"height"`
	Slippery float64 `json:"slippery"`
	Penalty  float64 `json:"penalty"`
}

func newGridworld(opts GridworldOptions) (*gridworld, error) {
	r := gridRules{
		Width: cmp.Or(opts.Width, defaultGridSize), Height: cmp.Or(opts.Height, defaultGridSize),
		Slippery: opts.Slippery, Penalty: defaultStepPenalty,
	}
	if opts.StepPenalty != nil {
		r.Penalty = *opts.StepPenalty
	}
	if err := r.check(); err != nil {
		return nil, fmt.Errorf("gridworld: %w", err)
	}
	return &gridworld{r}, nil
}

func (r *gridRules) check() error {
	switch {
	case r.Width < 2 || r.Width > maxGridSize || r.Height < 2 || r.Height > maxGridSize:
		return fmt.Errorf("width and height are %d and %d; each should be 2 to %d", r.Width, r.Height, maxGridSize)
	case !(r.Slippery >= 0 && r.Slippery <= 1):
		return fmt.Errorf("slippery is %g; it should be a probability, 0 to 1", r.Slippery)
	case !(r.Penalty >= 0 && r.Penalty < 1e9):
		return fmt.Errorf("step_penalty is %g; it should be 0 or more", r.Penalty)
	}
	return nil
}

// Name implements Environment.
func (g *gridworld) Name() string { return "gridworld" }

// Quick implements Quick.
func (g *gridworld) Quick() {}

// Space implements Environment.
func (g *gridworld) Space(context.Context) (Space, error) {
	place := map[string]any{
		"type": "array", "items": map[string]any{"type": "integer", "minimum": 0}, "minItems": 2, "maxItems": 2,
		"description": "column and row, from 0 at the top left",
	}
	types := directionNames()
	return Space{
		Types: types,
		State: map[string]any{
			"type": "object",
			"properties": map[string]any{
				"position": place, "goal": place, "size": place,
				"walls": map[string]any{
					"type": "array", "items": map[string]any{"type": "string", "enum": types},
					"description": "the directions in which a wall is beside the position",
				},
				"steps": map[string]any{"type": "integer", "minimum": 0},
			},
			"required": []string{"position", "goal", "size", "walls", "steps"},
		},
		Options: optionsSchema(map[string]any{
			optLayoutSeed:   seedSchema("the maze"),
			optDynamicsSeed: seedSchema("the slips"),
		}),
	}, nil
}

func seedSchema(of string) map[string]any {
	const most = 1<<53 - 1 // every JSON reader can represent this
	return map[string]any{"type": "integer", "minimum": -most, "maximum": most, "description": of + "; default: seed"}
}

func directionNames() (names []string) {
	for d := up; d < directions; d++ {
		names = append(names, d.String())
	}
	return names
}

// Reset implements Environment.
func (g *gridworld) Reset(_ context.Context, r Reset) (World, error) {
	return newGridWorld(g.rules, r), nil
}

// savedGrid is a saved episode.
type savedGrid struct {
	Rules  gridRules `json:"rules"`
	Chance string    `json:"chance"` // 64 bits are too many for a JSON number
	At     int       `json:"at"`
	Steps  int       `json:"steps"`
}

// Restore implements Restorer.
func (g *gridworld) Restore(_ context.Context, r Reset, saved jsontext.Value) (World, error) {
	var s savedGrid
	if err := json.Unmarshal(saved, &s); err != nil {
		return nil, fmt.Errorf("the saved maze cannot be read: %w", err)
	}
	random, err := strconv.ParseUint(s.Chance, 16, 64)
	if err = errors.Join(err, s.Rules.check()); err != nil {
		return nil, fmt.Errorf("the saved maze: %w", err)
	}
	w := newGridWorld(s.Rules, r)
	if s.At < 0 || s.At >= len(w.maze.open) {
		return nil, fmt.Errorf("the saved maze has no cell %d", s.At)
	}
	w.at, w.steps, w.chance = s.At, s.Steps, chance(random)
	return w, nil
}

// Close implements Environment.
func (g *gridworld) Close(context.Context) error { return nil }

// gridWorld is one episode of gridworld.
type gridWorld struct {
	rules  gridRules
	maze   *maze
	chance chance
	at     int // the cell of the agent
	steps  int
}

// The options of a reset.
const (
	optLayoutSeed   = "layout_seed"
	optDynamicsSeed = "dynamics_seed"
)

// newGridWorld makes the maze from the layout seed. Unless an option sets one of the seeds, the slips use
// the random numbers after those that made the maze.
func newGridWorld(rules gridRules, r Reset) *gridWorld {
	layout, parted := seedOption(r, optLayoutSeed)
	dynamics, alone := seedOption(r, optDynamicsSeed)
	w := &gridWorld{rules: rules, chance: chance(layout)}
	w.maze = newMaze(rules.Width, rules.Height, &w.chance)
	if parted || alone {
		w.chance = chance(dynamics)
		w.chance = chance(w.chance.next()) // not the numbers that the same seed makes a maze from
	}
	return w
}

// seedOption returns the option that is a seed, or else the seed of the episode.
func seedOption(r Reset, name string) (seed int64, given bool) {
	val, _ := r.Options.Get(name)
	if n, err := strconv.ParseFloat(string(val), 64); err == nil { // 7.0 is an integer too
		return int64(n), true
	}
	return r.Seed, false
}

// Step implements World.
func (w *gridWorld) Step(_ context.Context, a Action) (Outcome, error) {
	d := up
	for d < right && d.String() != a.Type {
		d++
	}
	if w.rules.Slippery > 0 && w.chance.float() < w.rules.Slippery {
		one, other := d.sides()
		if d = one; w.chance.below(2) == 1 {
			d = other
		}
	}
	w.at = w.maze.move(w.at, d)
	w.steps++
	if w.at == w.maze.goal {
		return Outcome{Reward: 1, Done: true}, nil
	}
	return Outcome{Reward: -w.rules.Penalty}, nil
}

// AppendState implements World.
func (w *gridWorld) AppendState(_ context.Context, dst []byte) ([]byte, error) {
	pair := func(name string, x, y int) {
		dst = strconv.AppendInt(append(dst, name...), int64(x), 10)
		dst = strconv.AppendInt(append(dst, ','), int64(y), 10)
	}
	m := w.maze
	pair(`{"goal":[`, m.goal%m.width, m.goal/m.width)
	pair(`],"position":[`, w.at%m.width, w.at/m.width)
	pair(`],"size":[`, m.width, m.height)
	dst = strconv.AppendInt(append(dst, `],"steps":`...), int64(w.steps), 10)
	dst = append(dst, `,"walls":[`...)
	for d, more := up, false; d < directions; d++ {
		if m.isOpen(w.at, d) {
			continue
		}
		if more {
			dst = append(dst, ',')
		}
		more = true
		dst = append(append(append(dst, '"'), d.String()...), '"')
	}
	return append(dst, ']', '}'), nil
}

// Save implements Saver.
func (w *gridWorld) Save() (jsontext.Value, error) {
	return json.Marshal(&savedGrid{w.rules, strconv.FormatUint(uint64(w.chance), 16), w.at, w.steps})
}

// Close implements World.
func (w *gridWorld) Close(context.Context) error { return nil }

// Suggest implements Suggester. It returns the open directions, the nearest to the goal first.
func (w *gridWorld) Suggest(context.Context) ([]map[string]any, error) {
	var ways []direction
	for d := up; d < directions; d++ {
		if w.maze.isOpen(w.at, d) {
			ways = append(ways, d)
		}
	}
	slices.SortStableFunc(ways, func(a, b direction) int {
		return cmp.Compare(w.maze.distance[w.maze.move(w.at, a)], w.maze.distance[w.maze.move(w.at, b)])
	})
	actions := make([]map[string]any, len(ways))
	for i, d := range ways {
		actions[i] = map[string]any{"type": d.String()}
	}
	return actions, nil
}
