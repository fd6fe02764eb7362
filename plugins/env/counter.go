package env

import (
	"context"
	"fmt"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// counterGoal is the count at which an episode of counter ends.
const counterGoal = 5

// counter is the smallest environment: the agent counts a number up to 5, for a reward of 1.0. Nothing in
// it is random, so the seed changes nothing.
type counter struct{}

func newCounter() counter { return counter{} }

// Name implements Environment.
func (counter) Name() string { return "counter" }

// Quick implements Quick.
func (counter) Quick() {}

// Space implements Environment.
func (counter) Space(context.Context) (Space, error) {
	integer := map[string]any{"type": "integer"}
	return Space{
		Types: []string{"inc", "dec", "noop"},
		State: map[string]any{
			"type":       "object",
			"properties": map[string]any{"count": integer, "goal": integer},
			"required":   []string{"count", "goal"},
		},
		Options: optionsSchema(nil),
	}, nil
}

// Reset implements Environment.
func (counter) Reset(context.Context, Reset) (World, error) { return &count{}, nil }

// Restore implements Restorer.
func (counter) Restore(_ context.Context, _ Reset, saved jsontext.Value) (World, error) {
	c := &count{}
	if err := json.Unmarshal(saved, &c.n); err != nil {
		return nil, fmt.Errorf("the saved count cannot be read: %w", err)
	}
	return c, nil
}

// Close implements Environment.
func (counter) Close(context.Context) error { return nil }

// count is one episode of counter.
type count struct{ n int }

// Step implements World.
func (c *count) Step(_ context.Context, a Action) (Outcome, error) {
	switch a.Type {
	case "inc":
		c.n++
	case "dec":
		c.n--
	}
	if c.n >= counterGoal {
		return Outcome{Reward: 1, Done: true}, nil
	}
	return Outcome{}, nil
}

// AppendState implements World.
func (c *count) AppendState(_ context.Context, dst []byte) ([]byte, error) {
	dst = strconv.AppendInt(append(dst, `{"count":`...), int64(c.n), 10)
	dst = strconv.AppendInt(append(dst, `,"goal":`...), counterGoal, 10)
	return append(dst, '}'), nil
}

// Save implements Saver.
func (c *count) Save() (jsontext.Value, error) { return strconv.AppendInt(nil, int64(c.n), 10), nil }

// Close implements World.
func (c *count) Close(context.Context) error { return nil }

// Modes implements World.
func (c *count) Modes() []string { return []string{"text"} }

// Render implements World.
func (c *count) Render(context.Context, string) (jsontext.Value, error) {
	return textPicture(strconv.Itoa(c.n) + " of " + strconv.Itoa(counterGoal)), nil
}

// Suggest implements Suggester.
func (c *count) Suggest(context.Context) ([]map[string]any, error) {
	if c.n >= counterGoal {
		return nil, nil
	}
	return []map[string]any{{"type": "inc"}}, nil
}
