package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/config"
	"a2e/host/state/store"
	"a2e/plugins/chains"
	"a2e/protocol"
)

// journals reads the journals of the workspace. id selects one of them; "" = all.
func (c *commands) journals(sys *System, id string, steps bool) (found []chains.Journal, err error) {
	err = c.withState(sys, true, func(ctx context.Context, cfg *config.Config, s store.Store) error {
		found, err = chains.Journals(ctx, s, cfg.Workspace, id, steps)
		return err
	})
	return found, fail(exitFailed, err)
}

type chainListCmd struct {
	JSON bool `name:"json" help:"Print the list as JSON."`
}

// Run prints a line for each chain.
func (c chainListCmd) Run(cmd *commands, sys *System) error {
	found, err := cmd.journals(sys, "", false)
	if err != nil {
		return err
	}
	none := "no chain with a journal in this folder; a2e chain run FILE --id NAME keeps one"
	return list(sys, c.JSON, found, none, []string{"CHAIN", "STATE", "PROGRESS"}, func(j chains.Journal) []string {
		far := fmt.Sprintf("%d of %s done%s", j.Done, protocol.Count(j.Nodes, "node"), journalNote(&j))
		if j.Agent != "" {
			far += ", of " + oneLine(j.Agent)
		}
		return []string{j.ID, string(j.State), far}
	})
}

// journalNote returns what a person should know or decide about the chain.
func journalNote(j *chains.Journal) string {
	switch {
	case len(j.Waiting) > 0:
		word := "waits for approval"
		switch {
		case j.Waiting[0].Denied:
			word = "denied"
		case j.State == "cancelled" || j.State == "timeout":
			word = "not approved"
		}
		return fmt.Sprintf(", %s: %s", word, oneLine(j.Waiting[0].Message))
	case len(j.Unknown) > 0:
		return fmt.Sprintf(", unknown: %s", oneLine(strings.Join(j.Unknown, " ")))
	}
	return ""
}

type chainShowCmd struct {
	ID   string `complete:"chain" arg:"" help:"The chain's name."`
	JSON bool   `name:"json" help:"Print it as JSON, with the outputs."`
}

// Run prints the state of the chain.
func (c chainShowCmd) Run(cmd *commands, sys *System) error {
	found, err := cmd.journals(sys, c.ID, true)
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(sys.Out, found)
	}
	j := &found[0]
	fmt.Fprintf(sys.Out, "%s: %s%s\n", oneLine(j.ID), j.State, journalNote(j))
	if j.Message != "" {
		fmt.Fprintf(sys.Out, "%s\n", oneLine(j.Message))
	}
	return list(sys, false, j.Steps, "", []string{"NODE", "STATE", "OUTPUT"}, func(s chains.NodeStep) []string {
		return []string{s.Path, string(s.State), cmp.Or(s.Error, string(s.Output))}
	})
}

type chainResumeCmd struct {
	ID      string   `complete:"chain" arg:"" help:"The chain's name."`
	Resolve []string `sep:"none" placeholder:"NODE=WHAT" help:"What becomes of a node that was under way: run (once more), done (it did), fail, or its output as JSON. May be given several times."`
	Timeout int      `placeholder:"SECONDS" help:"Seconds that the rest may take. Default: what the chain may take."`
	Quiet   bool     `short:"q" help:"Do not show the progress."`
	JSON    bool     `name:"json" help:"Print the whole result, not only the final output."`
}

// Run resumes the chain on a host in this process. At a terminal it first asks for the open decisions.
func (c chainResumeCmd) Run(cmd *commands, sys *System) error {
	if _, err := c.decisions(); err != nil {
		return fail(exitUsage, err)
	}
	found, err := cmd.journals(sys, c.ID, false)
	if err != nil {
		return err
	}
	cmd.person = newPerson(sys)
	if cmd.person.there() && !c.Quiet {
		if err := c.ask(cmd, sys, &found[0]); err != nil {
			return err
		}
	}
	resolve, err := c.decisions()
	if err != nil {
		return fail(exitUsage, err)
	}
	plugin, err := cmd.chainPlugin(sys, func(string) {})
	if err != nil {
		return err
	}
	req := &found[0].Request
	graph, err := plugin.Graph(context.Background(), req)
	if err != nil {
		return fail(exitFailed, err)
	}
	req.Resume, req.Resolve, req.Streaming = true, resolve, !c.Quiet
	req.Timeout = cmp.Or(c.Timeout, req.Timeout)
	run := chainRunCmd{Timeout: c.Timeout, Quiet: c.Quiet, JSON: c.JSON}
	return run.ask(cmd, sys, req, graph, func(err error) error { return err })
}

// ask asks the person at the terminal for the decisions that the chain needs, before it resumes. An
// empty line leaves a decision open.
func (c *chainResumeCmd) ask(cmd *commands, sys *System, j *chains.Journal) error {
	line := func(format string, args ...any) string {
		text, _ := cmd.person.ask(context.Background(), format, args...) // the end of the input counts as an empty line
		return text
	}
	for _, node := range j.Unknown {
		named := func(one string) bool { return strings.HasPrefix(one, node+"=") }
		for !slices.ContainsFunc(c.Resolve, named) {
			what := line("%s was under way when the chain stopped: run (once more), done (it did), fail, or its "+
				"output as JSON?", oneLine(node))
			if what == "" {
				break
			}
			one := chainResumeCmd{Resolve: []string{node + "=" + what}}
			if _, err := one.decisions(); err == nil {
				c.Resolve = append(c.Resolve, one.Resolve...)
			}
		}
	}
	for _, w := range j.Waiting {
		answer := ""
		for ok := false; !ok; ok = slices.Contains([]string{"", "y", "yes", "n", "no"}, answer) {
			answer = strings.ToLower(line("%s: %s (y/n)", oneLine(w.Path), oneLine(w.Message)))
		}
		if answer == "" {
			continue
		}
		if err := (chainApproveCmd{ID: c.ID, Node: w.Path, Deny: answer[0] == 'n'}).decide(cmd, sys, nil); err != nil {
			return err
		}
	}
	return nil
}

// decisions returns the decisions of --resolve, by node.
func (c chainResumeCmd) decisions() (protocol.Object, error) {
	all := map[string]any{}
	for _, one := range c.Resolve {
		node, what, ok := strings.Cut(one, "=")
		switch {
		case !ok || node == "":
			return protocol.Object{}, fmt.Errorf("--resolve %s: should be NODE=WHAT, such as deploy=run", oneLine(one))
		case what == "run" || what == "done" || what == "fail":
			all[node] = what
		case jsontext.Value(what).IsValid():
			all[node] = map[string]any{"output": jsontext.Value(what)}
		default:
			return protocol.Object{}, fmt.Errorf("--resolve %s: should be run, done, fail or an output as JSON",
				oneLine(one))
		}
	}
	raw, err := json.Marshal(all, json.Deterministic(true))
	if err != nil {
		return protocol.Object{}, err
	}
	return protocol.ParseObject(raw)
}

type chainCancelCmd struct {
	ID     string `complete:"chain" arg:"" help:"The chain's name."`
	Forget bool   `help:"Discard a chain that no host runs, and remove its journal."`
}

// Run writes a request to stop into the journal, or removes the journal.
func (c chainCancelCmd) Run(cmd *commands, sys *System) error {
	return cmd.withState(sys, true, func(ctx context.Context, cfg *config.Config, s store.Store) error {
		running, err := chains.CancelJournal(ctx, s, cfg.Workspace, c.ID, c.Forget)
		switch {
		case err != nil:
			return fail(exitFailed, err)
		case c.Forget:
			say(sys.Err, "the journal of %s was removed", oneLine(c.ID))
		case running:
			say(sys.Err, "%s was told to stop; a2e chain resume %s resumes it", oneLine(c.ID), oneLine(c.ID))
		default:
			say(sys.Err, "no host runs %s", oneLine(c.ID))
		}
		return nil
	})
}

type chainApproveCmd struct {
	ID   string `complete:"chain" arg:"" help:"The chain's name."`
	Node string `placeholder:"NODE" help:"The node that waits, where there are several."`
	Deny bool   `help:"Deny it: the node fails."`
}

// Run writes the decision into the journal and prints it.
func (c chainApproveCmd) Run(cmd *commands, sys *System) error {
	return c.decide(cmd, sys, func(node string, running bool) {
		word := "approved"
		if c.Deny {
			word = "denied"
		}
		say(sys.Err, "%s of %s is %s", oneLine(node), oneLine(c.ID), word)
		if !running {
			say(sys.Err, "no host runs the chain; a2e chain resume %s resumes it", oneLine(c.ID))
		}
	})
}

// decide writes the decision into the journal, and then calls told unless it is nil.
func (c chainApproveCmd) decide(cmd *commands, sys *System, told func(node string, running bool)) error {
	return cmd.withState(sys, true, func(ctx context.Context, cfg *config.Config, s store.Store) error {
		node, running, err := chains.Approve(ctx, s, cfg.Workspace, c.ID, c.Node, !c.Deny)
		if err == nil && told != nil {
			told(node, running)
		}
		return fail(exitFailed, err)
	})
}
