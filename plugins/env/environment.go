package env

import (
	"fmt"
	"strings"
)

// Environment is a world that episodes take place in. Its methods may be called
// at the same time.
type Environment interface {
	// Name is what env_name calls it.
	Name() string
	// Actions lists the action types.
	Actions() []string
	// StateSchema is the JSON Schema of State.
	StateSchema() map[string]any
	// Reset begins an episode; equal seeds give equal episodes.
	Reset(seed int64) World
}

// World is the state of one episode. The plugin calls one method at a time.
type World interface {
	// Step takes one action, which is one of Actions.
	Step(action string) (reward float64, done bool)
	// State is what the agent sees.
	State() map[string]any
	// Text draws the state for a person.
	Text() string
	// Suggest names the actions that look good, the best first.
	Suggest() []string
}

// environment gives an environment by its name; "" is the counter.
func environment(name string) (Environment, error) {
	for _, env := range []Environment{counter{}} {
		if name == "" || name == env.Name() {
			return env, nil
		}
	}
	return nil, fmt.Errorf("env: unknown environment %q; there is: %s", name, strings.Join([]string{counter{}.Name()}, ", "))
}
