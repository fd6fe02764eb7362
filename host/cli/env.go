package cli

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/mattn/go-isatty"

	"a2e/host/config"
	"a2e/plugins/env"
	"a2e/protocol"
	"a2e/protocol/client"
)

// envAgent is the agent id of `a2e env`.
const envAgent = "a2e env"

type envCmd struct {
	List  envListCmd  `cmd:"" help:"List the environments of the config."`
	Play  envPlayCmd  `cmd:"" help:"Start an episode and take its actions, one per line, until stdin ends."`
	Reset envResetCmd `cmd:"" help:"Start an episode that later commands continue."`
	Step  envStepCmd  `cmd:"" help:"Take actions in an episode; without one, look at it."`
	Close envCloseCmd `cmd:"" help:"End an episode."`
}

// envRow describes an environment for the output.
type envRow struct {
	Name    string   `json:"name"`
	Env     string   `json:"env"`
	Actions []string `json:"actions"` // empty = they have no type, or a program must be asked
	Kept    bool     `json:"kept"`    // episodes outlive the command that started them
}

// environments returns the enabled environments of the config.
func environments(cfg *config.Config) (rows []envRow, err error) {
	rows = []envRow{}
	for _, p := range cfg.Plugins {
		var opts env.Options
		if p.Type != string(protocol.CapEnv) || !p.Enabled {
			continue
		}
		if err := p.Options.Decode(&opts); err != nil {
			return nil, fail(exitConfig, err)
		}
		kind := cmp.Or(opts.Env, "counter")
		rows = append(rows, envRow{
			Name: p.Name, Env: cmp.Or(opts.Exec.EnvName, kind), Actions: []string{},
			Kept: kind != "exec",
		})
	}
	return rows, nil
}

// environment returns the row of an environment by its name on the command line.
func (c *commands) environment(sys *System, name string) (row envRow, err error) {
	cfg, err := c.load(sys, func(string) {}) // ask prints the warnings
	if err != nil {
		return row, err
	}
	rows, err := environments(cfg)
	var known []string
	for _, r := range rows {
		if r.Name == name || r.Env == name {
			return r, nil
		}
		known = append(known, r.Name, r.Env)
	}
	return row, cmp.Or(err, fail(exitFailed, unknown("environment", name, known)))
}

type envListCmd struct {
	JSON bool `name:"json" help:"Print them as JSON."`
}

// Run lists the environments. Actions are listed only for environments that need no program to be started.
func (l envListCmd) Run(cmd *commands, sys *System) error {
	cfg, err := cmd.load(sys, func(string) {}) // ask prints the warnings
	if err != nil {
		return err
	}
	rows, err := environments(cfg)
	if err != nil {
		return err
	}
	err = cmd.ask(sys, envAgent, protocol.CapEnv, func(ctx context.Context, c *client.Client) error {
		for i := range rows {
			if !rows[i].Kept {
				continue
			}
			if rows[i].Actions, err = actionTypes(ctx, c, rows[i].Name); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := list(sys, l.JSON, rows, "", []string{"NAME", "ENVIRONMENT", "EPISODES", "ACTIONS"},
		func(r envRow) []string {
			if r.Kept {
				return []string{r.Name, r.Env, "are kept", strings.Join(r.Actions, " ")}
			}
			return []string{r.Name, r.Env, "end with the command", "a2e env play " + r.Name + " shows them"}
		}); err != nil || l.JSON {
		return err
	}
	say(sys.Err, "a config can have more: counter, gridworld, workspace (tasks) and exec (a program); see a2e help env")
	return nil
}

// actionTypes returns the types of an environment's actions, or an empty list if they have no type.
func actionTypes(ctx context.Context, c *client.Client, name string) ([]string, error) {
	var space protocol.EnvSpaceResponse
	err := c.Call(ctx, protocol.TypeEnvSpaceReq, &protocol.EnvSpaceRequest{EnvName: name}, &space)
	types := []string{}
	collectTypes(space.ActionSpace, &types)
	return types, err
}

// collectTypes adds the types that an action space names, in all its alternatives.
func collectTypes(space any, types *[]string) {
	schema, _ := space.(map[string]any)
	properties, _ := schema["properties"].(map[string]any)
	typ, _ := properties["type"].(map[string]any)
	names, _ := typ["enum"].([]any)
	for _, name := range append(names, typ["const"]) {
		if text, ok := name.(string); ok && !slices.Contains(*types, text) {
			*types = append(*types, text)
		}
	}
	for _, key := range []string{"anyOf", "oneOf"} {
		alternatives, _ := schema[key].([]any)
		for _, one := range alternatives {
			collectTypes(one, types)
		}
	}
}

// envBegin says how an episode begins.
type envBegin struct {
	Name    string   `complete:"env" arg:"" help:"The environment, by its name in the config or its own."`
	Seed    *int64   `placeholder:"N" help:"Seed: equal seeds and actions give equal episodes. Without it one is drawn."`
	Options []string `sep:"none" name:"option" placeholder:"KEY=VALUE" help:"An option of the reset, as the environment has them; key:=JSON is JSON in any case. May be given several times."`
}

// begin starts an episode.
func (b envBegin) begin(ctx context.Context, c *client.Client, sys *System) (resp protocol.EnvResetResponse,
	err error,
) {
	given, err := readArguments(sys, "", "", b.Options)
	if err != nil {
		return resp, fail(exitUsage, fmt.Errorf("--option: %w", err))
	}
	req := &protocol.EnvResetRequest{EnvName: b.Name, Seed: b.Seed}
	if req.Options, err = given.object(b.Name, nil); err != nil {
		return resp, err
	}
	return resp, c.Call(ctx, protocol.TypeEnvResetReq, req, &resp)
}

type envResetCmd struct {
	envBegin
	JSON bool `name:"json" help:"Print the observation as JSON."`
}

// Run starts an episode and shows it. The output begins with the episode id.
func (r envResetCmd) Run(cmd *commands, sys *System) error {
	row, err := cmd.environment(sys, r.Name)
	if err != nil {
		return err
	}
	if !row.Kept {
		return fail(exitFailed, fmt.Errorf("the episodes of %s end with the command, as its program ends; `a2e env "+
			"play %s` takes all actions of one", row.Name, row.Name))
	}
	return cmd.ask(sys, envAgent, protocol.CapEnv, func(ctx context.Context, c *client.Client) error {
		resp, err := r.begin(ctx, c, sys)
		if err != nil {
			return err
		}
		return showEpisode(ctx, c, sys, &resp.Obs, r.JSON)
	})
}

type envStepCmd struct {
	Episode string   `arg:"" help:"The episode, as env reset printed it."`
	Action  []string `arg:"" optional:"" help:"Actions, each a type with its arguments as key=value behind it, or a JSON object: up up left, read_file path=notes.txt submit."`
	JSON    bool     `name:"json" help:"Print the last observation as JSON."`
}

// Run takes the actions and shows the results.
func (s envStepCmd) Run(cmd *commands, sys *System) error {
	actions, err := readActions(sys, s.Action)
	if err != nil {
		return fail(exitUsage, err)
	}
	return cmd.ask(sys, envAgent, protocol.CapEnv, func(ctx context.Context, c *client.Client) error {
		if len(actions) == 0 {
			var resp protocol.EnvObserveResponse
			if err := c.Call(ctx, protocol.TypeEnvObserveReq, &protocol.EnvObserveRequest{EpisodeID: s.Episode},
				&resp); err != nil {
				return err
			}
			return showEpisode(ctx, c, sys, &resp.Obs, s.JSON)
		}
		for i, action := range actions {
			var resp protocol.EnvStepResponse
			if err := c.Call(ctx, protocol.TypeEnvStepReq, &protocol.EnvStepRequest{
				EpisodeID: s.Episode,
				Action:    action,
			}, &resp); err != nil {
				return fmt.Errorf("%s: %w", oneLine(actionWord(action)), err)
			}
			if s.JSON && i < len(actions)-1 {
				continue
			}
			if err := showEpisode(ctx, c, sys, &resp.Obs, s.JSON); err != nil {
				return err
			}
		}
		return nil
	})
}

type envCloseCmd struct {
	sends
	Episode string `arg:"" help:"The episode."`
}

// printClosed prints which episode ended.
func printClosed(x *exchange) error {
	_, err := fmt.Fprintf(x.sys.Out, "closed %s\n", oneLine(fmt.Sprint(x.members["episode_id"])))
	return err
}

// readActions reads actions from words: a type followed by key=value words, or a JSON object.
func readActions(sys *System, words []string) (actions []protocol.Object, err error) {
	for len(words) > 0 {
		first := words[0]
		words = words[1:]
		if strings.HasPrefix(first, "{") {
			action, err := protocol.ParseObject([]byte(first))
			if err != nil {
				return nil, fmt.Errorf("the action %s: %w", oneLine(first), err)
			}
			actions = append(actions, action)
			continue
		}
		if strings.Contains(first, "=") {
			return nil, fmt.Errorf("%s comes before any action; write TYPE key=value", oneLine(first))
		}
		end := slices.IndexFunc(words, func(w string) bool {
			return !strings.Contains(w, "=") ||
				strings.HasPrefix(w, "{")
		})
		if end < 0 {
			end = len(words)
		}
		given, err := readArguments(sys, "", "", append([]string{"type:=" + string(protocol.AppendString(nil, first))},
			words[:end]...))
		if err != nil {
			return nil, err
		}
		action, err := given.object(first, nil)
		if err != nil {
			return nil, err
		}
		actions, words = append(actions, action), words[end:]
	}
	return actions, nil
}

// actionWord returns an action as a person writes it: a type without arguments as a word, any other action as JSON.
func actionWord(action protocol.Object) string {
	var simple struct {
		Type string `json:"type"`
	}
	if action.Len() == 1 && action.Decode(&simple) == nil && simple.Type != "" {
		return simple.Type
	}
	return string(action.Raw())
}

// showEpisode prints an observation of an episode: a line that begins with the episode id, then a
// picture, or the state if there is no picture.
func showEpisode(ctx context.Context, c *client.Client, sys *System, obs *protocol.EnvObservation, asJSON bool) error {
	if asJSON {
		return printJSON(sys.Out, obs)
	}
	line := fmt.Sprintf("%s  step %d", oneLine(obs.EpisodeID), obs.StepNum)
	if obs.Reward != nil && obs.StepNum > 0 {
		line += fmt.Sprintf("  reward %g", *obs.Reward)
	}
	if seed, ok := obs.Metadata["seed"].(float64); ok {
		line += fmt.Sprintf("  seed %.0f", seed)
	}
	switch {
	case obs.Done:
		line += "  done"
	case obs.Truncated:
		line += "  cut short"
	}
	var resp protocol.EnvRenderResponse
	var drawn struct {
		Text string `json:"text"`
	}
	mode := "text"
	err := c.Call(ctx, protocol.TypeEnvRenderReq, &protocol.EnvRenderRequest{EpisodeID: obs.EpisodeID, Mode: &mode},
		&resp)
	if err != nil || json.Unmarshal(resp.Render, &drawn) != nil ||
		drawn.Text == "" { // the picture has pixels, or the program draws none
		raw, err := json.Marshal(obs.State, json.Deterministic(true), jsontext.Multiline(false))
		if err != nil {
			return err
		}
		drawn.Text = string(raw)
	}
	_, err = fmt.Fprintf(sys.Out, "%s\n%s\n", line, strings.TrimRight(seen(drawn.Text), "\n"))
	return err
}

type envPlayCmd struct {
	envBegin
	JSON bool `name:"json" help:"Print each observation as JSON."`
}

// Run plays until stdin ends. At a terminal an error is printed and the episode goes on; in a pipe
// an error ends the command.
func (p envPlayCmd) Run(cmd *commands, sys *System) error {
	row, err := cmd.environment(sys, p.Name)
	if err != nil {
		return err
	}
	return cmd.ask(sys, envAgent, protocol.CapEnv, func(ctx context.Context, c *client.Client) error {
		types, err := actionTypes(ctx, c, row.Name)
		if err != nil {
			return err
		}
		g := &envGame{ctx: ctx, client: c, sys: sys, play: p, person: isatty.IsTerminal(sys.In.Fd())}
		if err := g.begin(); err != nil {
			return err
		}
		defer g.close()
		if g.person {
			say(sys.Err, "actions: %s\n/reset starts another episode, /plan suggests actions, Ctrl-D ends",
				cmp.Or(strings.Join(types, " "), "JSON objects, see a2e help env"))
		}
		return g.run()
	})
}

// envGame is an episode whose actions are lines of stdin.
type envGame struct {
	ctx     context.Context
	client  *client.Client
	sys     *System
	play    envPlayCmd
	person  bool
	episode string
}

func (g *envGame) begin() error {
	g.close() // a program may allow only one episode at a time
	resp, err := g.play.begin(g.ctx, g.client, g.sys)
	if err != nil {
		return err
	}
	g.episode = resp.Obs.EpisodeID
	return showEpisode(g.ctx, g.client, g.sys, &resp.Obs, g.play.JSON)
}

// close ends the episode, as no later command could continue it.
func (g *envGame) close() {
	if g.episode != "" {
		_ = g.client.Call(context.WithoutCancel(g.ctx), protocol.TypeEnvCloseReq,
			&protocol.EnvCloseRequest{EpisodeID: g.episode}, nil)
	}
}

func (g *envGame) run() error {
	lines := make(chan string)
	go func() { // a read from a terminal cannot be interrupted
		defer close(lines)
		for in := bufio.NewScanner(g.sys.In); in.Scan(); {
			select {
			case lines <- in.Text():
			case <-g.ctx.Done():
				return
			}
		}
	}()
	for {
		if g.person {
			fmt.Fprint(g.sys.Err, "> ")
		}
		select {
		case <-g.ctx.Done():
			return context.Cause(g.ctx)
		case line, ok := <-lines:
			if !ok {
				return nil
			}
			err := g.take(strings.TrimSpace(line))
			if err == nil {
				continue
			}
			if !g.person || g.ctx.Err() != nil {
				return err
			}
			say(g.sys.Err, "%v", inWords(err, nil))
		}
	}
}

// take executes one line of input.
func (g *envGame) take(line string) error {
	switch line {
	case "":
		return nil
	case "/reset":
		return g.begin()
	case "/plan":
		var resp protocol.EnvPlanResponse
		if err := g.client.Call(g.ctx, protocol.TypeEnvPlanReq, &protocol.EnvPlanRequest{EpisodeID: &g.episode},
			&resp); err != nil {
			return err
		}
		return printJSON(g.sys.Out, resp.SuggestedActions)
	}
	words := strings.Fields(line)
	if strings.HasPrefix(line, "{") {
		words = []string{line}
	}
	actions, err := readActions(g.sys, words)
	if err != nil {
		return err
	}
	for _, action := range actions {
		var resp protocol.EnvStepResponse
		if err := g.client.Call(g.ctx, protocol.TypeEnvStepReq, &protocol.EnvStepRequest{
			EpisodeID: g.episode,
			Action:    action,
		}, &resp); err != nil {
			return err
		}
		if err := showEpisode(g.ctx, g.client, g.sys, &resp.Obs, g.play.JSON); err != nil {
			return err
		}
	}
	return nil
}
