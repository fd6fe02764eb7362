package learning

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/go-json-experiment/json"

	"a2e/host"
	"a2e/host/sandbox"
	"a2e/host/store"
	"a2e/protocol"
)

const (
	// maxCustomOutput bounds what custom_command may print.
	maxCustomOutput = 4 << 20
	// maxCustomErrors is how much of its stderr a refusal tells.
	maxCustomErrors = 2 << 10
)

// given are the weights that custom_command printed, by the names of components.
type given map[string]float64

// weigh is the weigher of the strategy custom: what the command does not name keeps its
// weight.
func (g given) weigh(rivals []*Component) bool {
	for _, c := range rivals {
		if w, ok := g[c.Name]; ok {
			c.Weight = w
		}
	}
	return true
}

// runCustom has custom_command find the weights. It runs outside of any transaction,
// for it may take long.
func (p *Plugin) runCustom(ctx context.Context, a *adaption) (given, error) {
	var all []*Component
	if err := p.read(ctx, func(tx *store.Tx) (err error) {
		all, err = readComponents(tx, "")
		return err
	}); err != nil {
		return nil, err
	}
	records, names := []map[string]any{}, make(map[string]bool)
	for _, rivals := range byKind(all) {
		for _, c := range rivals {
			record := c.Record()
			record["reward"] = c.Reward(a.share)
			records, names[c.Name] = append(records, record), true
		}
	}
	if len(records) == 0 {
		return nil, nil
	}
	input, err := protocol.AppendJSON(nil, map[string]any{"component_name": a.component, "components": records})
	if err != nil {
		return nil, err
	}
	host.Detach(ctx)
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

// readGiven reads what the command printed: a weight for each of some components.
func readGiven(output []byte, names map[string]bool) (given, error) {
	var weights given
	if err := json.Unmarshal(output, &weights); err != nil || weights == nil {
		return nil, fmt.Errorf("it should print one JSON object {component: weight}, but printed %.200q", output)
	}
	for name, w := range weights {
		if !names[name] {
			return nil, fmt.Errorf("it gave a weight to %.100q, which is none of the components on its stdin", name)
		}
		if err := checkWeight(w); err != nil {
			return nil, fmt.Errorf("component %.100q: %w", name, err)
		}
	}
	return weights, nil
}

// customOutput runs the command and gives what it printed.
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
	stdout, stderr := &bounded{max: maxCustomOutput}, &bounded{max: maxCustomErrors}
	child, err := launcher.Command(own, sandbox.Policy{Path: path, Args: command, Dir: p.env.Workspace, Home: sandbox.HomeOwn, Stdin: bytes.NewReader(input), Stdout: stdout, Stderr: stderr})
	if err != nil && own.Err() == nil {
		return nil, fail("cannot be started: %w", err)
	}
	var state sandbox.State
	if err == nil {
		state, err = child.Wait()
	}
	switch said := strings.ToValidUTF8(strings.TrimSpace(stderr.String()), "\uFFFD"); {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case errors.Is(err, context.DeadlineExceeded):
		return nil, fail("did not end within %s; custom_timeout in the config gives it more", limit)
	case err != nil:
		return nil, fail("was lost: %w", err)
	case state.Code != 0:
		return nil, fail("ended with %s; on stderr it said: %s", state, said)
	case stdout.cut:
		return nil, fail("printed more than the %d bytes allowed", stdout.max)
	}
	return stdout.Bytes(), nil
}

// bounded keeps the first max bytes that are written.
type bounded struct {
	bytes.Buffer
	max int
	cut bool // there was more
}

// Write implements io.Writer.
func (b *bounded) Write(data []byte) (int, error) {
	keep := data[:min(len(data), b.max-b.Len())]
	b.cut = b.cut || len(keep) < len(data)
	b.Buffer.Write(keep)
	return len(data), nil
}
