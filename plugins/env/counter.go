package env

import "strconv"

// counterGoal is the count at which an episode of counter ends.
const counterGoal = 5

// counter is the smallest environment: a number to count up to 5, which gives
// reward 1.0. Its episodes need no chance, so the seed changes nothing.
type counter struct{}

func (counter) Name() string      { return "counter" }
func (counter) Actions() []string { return []string{"inc", "dec", "noop"} }
func (counter) Reset(int64) World { return &count{} }
func (counter) StateSchema() map[string]any {
	integer := map[string]any{"type": "integer"}
	return map[string]any{
		"type":       "object",
		"properties": map[string]any{"count": integer, "goal": integer},
		"required":   []string{"count", "goal"},
	}
}

type count struct{ n int }

func (c *count) Step(action string) (reward float64, done bool) {
	switch action {
	case "inc":
		c.n++
	case "dec":
		c.n--
	}
	if c.n >= counterGoal {
		return 1, true
	}
	return 0, false
}

func (c *count) State() map[string]any { return map[string]any{"count": c.n, "goal": counterGoal} }
func (c *count) Text() string          { return strconv.Itoa(c.n) + " of " + strconv.Itoa(counterGoal) }
func (c *count) Suggest() []string {
	if c.n >= counterGoal {
		return nil
	}
	return []string{"inc"}
}
