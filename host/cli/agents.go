package cli

import (
	"cmp"
	"fmt"
	"strings"

	"a2e/plugins/multiagent"
	"a2e/plugins/multiagent/worker"
	"a2e/protocol"
)

type agentsCmd struct {
	List agentsListCmd `cmd:"" help:"List the workers of the config, which child agents are made of."`
}

type agentsListCmd struct {
	JSON bool `name:"json" help:"Print them as JSON."`
}

// agentRow is what is shown of a worker; never its variables and tokens.
type agentRow struct {
	Plugin       string   `json:"plugin"`
	Name         string   `json:"name"`
	Default      bool     `json:"default"` // does tasks that name no other
	Mode         string   `json:"mode"`
	Model        string   `json:"model"`
	ModelTier    string   `json:"model_tier"`
	MaxTasks     int      `json:"max_tasks"`
	Program      string   `json:"program"` // the command, or the endpoint of a model
	Network      bool     `json:"network"`
	Read         []string `json:"read"`
	Write        []string `json:"write"`
	Tools        []string `json:"tools"`        // of a model; none = all
	Capabilities []string `json:"capabilities"` // none = all, or what the worker says itself
	MaxDepth     int      `json:"max_depth"`    // of children of children
	MaxSubagents int      `json:"max_subagents"`
}

// Run lists what the config has. Child agents themselves live in the memory of the host that
// made them.
func (l agentsListCmd) Run(cmd *commands, sys *System) error {
	cfg, err := cmd.loadAloud(sys)
	if err != nil {
		return err
	}
	if err := tryPlugins(cfg); err != nil {
		return fail(exitConfig, err)
	}
	rows := []agentRow{}
	for _, p := range cfg.Plugins {
		if p.Type != string(protocol.CapMultiAgent) || !p.Enabled {
			continue
		}
		opts := multiagent.DefaultOptions()
		if err := p.Options.Decode(&opts); err != nil {
			return fail(exitConfig, err)
		}
		for i, w := range opts.Workers {
			rows = append(rows, rowOf(sys, p.Name, &opts, i, &w))
		}
	}
	if l.JSON {
		return printJSON(sys.Out, rows)
	}
	if len(rows) == 0 {
		say(sys.Err, "the config has no worker; workers of the plugin multi_agent are those, see a2e help multiagent")
	}
	var t table
	t.header("WORKER", "MODE", "MODEL", "AT ONCE", "MAY", "PROGRAM")
	for _, r := range rows {
		model := strings.TrimSpace(r.Model + " " + r.ModelTier)
		t.row(r.Name, r.Mode, cmp.Or(model, "-"), fmt.Sprint(r.MaxTasks), r.may(), r.Program)
	}
	return t.show(sys)
}

func rowOf(sys *System, plugin string, opts *multiagent.Options, place int, w *worker.Worker) agentRow {
	row := agentRow{
		Plugin: plugin, Name: w.Name, Default: place == 0, Mode: cmp.Or(w.Mode, worker.ModeOneshot), Model: cmp.Or(w.Model, w.LLM.Model), ModelTier: w.ModelTier,
		MaxTasks: max(w.MaxTasks, 1), Program: strings.Join(w.Command, " "), Network: w.Network, Read: append([]string{}, w.Read...), Write: append([]string{}, w.Write...),
		Tools: append([]string{}, w.Tools...), Capabilities: append([]string{}, w.Capabilities...), MaxDepth: opts.MaxDepth, MaxSubagents: opts.MaxSubagents,
	}
	if !w.LLM.IsZero() {
		row.Mode, row.Program = worker.ModeLLM, w.LLM.URL
	}
	row.Program = sys.secrets.Text(row.Program)
	return row
}

// may says in a few words what a worker is allowed beyond the workspace.
func (r *agentRow) may() string {
	var words []string
	switch {
	case r.Mode == worker.ModeLLM && len(r.Tools) > 0:
		words = append(words, "tools "+strings.Join(r.Tools, " "))
	case r.Mode == worker.ModeLLM:
		words = append(words, "all tools")
	}
	if r.Network {
		words = append(words, "network")
	}
	if len(r.Read) > 0 {
		words = append(words, "read "+strings.Join(r.Read, " "))
	}
	if len(r.Write) > 0 {
		words = append(words, "write "+strings.Join(r.Write, " "))
	}
	return cmp.Or(strings.Join(words, ", "), "workspace")
}
