package mcp

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"

	"a2e/host"
	"a2e/plugins/mcp/link"
	"a2e/protocol"
)

// Offer is what a server has, by name.
type Offer struct {
	Server    string // what it calls itself
	Version   string
	Tools     []string // without the server's id
	Resources []string // and templates
	Prompts   []string
	Withheld  []Withheld // tools that the host does not offer
}

// Offer waits until a server is connected and has sent its lists, or until ctx ends, and returns what the
// server has. The error may be a *host.Lack.
func (p *Plugin) Offer(ctx context.Context, id string) (*Offer, error) {
	withheld, err := p.Withheld(ctx, id)
	s, unknown := p.find(id)
	if unknown != nil {
		return nil, unknown
	}
	if err != nil {
		return nil, s.failed(ctx, err)
	}
	select {
	case <-s.listed.c:
	case <-ctx.Done():
		return nil, fmt.Errorf("it did not list all that it has: %w", context.Cause(ctx))
	}
	row := s.row()
	offer := &Offer{Server: row["server_name"].(string), Version: row["server_version"].(string), Withheld: withheld}
	for _, name := range row["tools"].([]string) {
		offer.Tools = append(offer.Tools, strings.TrimPrefix(name, protocol.MCPName(id, "")))
	}
	offer.Resources, offer.Prompts = names(s.resourceEntries()), names(s.promptEntries())
	return offer, nil
}

// names returns the names of the rows of a list.
func names(rows []listRow) []string {
	all := make([]string, len(rows))
	for i, r := range rows {
		all[i], _ = r.row["name"].(string)
	}
	return all
}

// failed returns the error of a server that did not start. If its sandbox hides a file that it needs, or
// keeps a variable from it, the error is a *host.Lack with the line of the config that helps.
func (s *server) failed(ctx context.Context, err error) error {
	if s.link == nil {
		return err
	}
	state, lack := s.link.State(), (*host.Lack)(nil)
	if state.LastError == "" {
		if ctx.Err() != nil && state.Progress != "" {
			return fmt.Errorf("%w; it last said: %s", err, protocol.Clip(state.Progress, maxSummary))
		}
		return err
	}
	err = errors.New(state.LastError)
	if errors.As(s.link.Unseen(state.LastError), &lack) {
		return &host.Lack{Err: err, Fix: lack.Fix}
	}
	return s.lacksVariable(state.LastError, err)
}

// lacksVariable explains an error whose text names a variable that this host has but the server did not
// get: a server gets only the variables of its env.
func (s *server) lacksVariable(text string, err error) error {
	env := s.opts.Env
	for _, name := range regexp.MustCompile(`\b[A-Z][A-Z0-9]*(_[A-Z0-9]+)+\b`).FindAllString(text, -1) {
		if _, given := env[name]; given || os.Getenv(name) == "" || s.opts.Kind() != link.Stdio {
			continue
		}
		err = fmt.Errorf("%w; this host has %s, but a server gets only the variables that its env names", err, name)
		if len(env) > 0 { // a fix would repeat the other variables, whose sources are not known here
			return err
		}
		return &host.Lack{Err: err, Fix: fmt.Sprintf(`env: {%s: "${%[1]s}"}`, name)}
	}
	return err
}

// summary returns the offer in one line. If a tool waits for an approval, it returns a *host.Lack.
func (o *Offer) summary(id string) (string, error) {
	changed, others := 0, ""
	for _, w := range o.Withheld {
		if w.Pinned {
			changed++
			continue
		}
		others += fmt.Sprintf("; the tool %s is withheld: it %s", w.Tool, w.Reason)
	}
	if changed > 0 {
		err := fmt.Errorf("%s changed since the approval, and withheld%s", protocol.Count(changed, "tool"), others)
		return "", &host.Lack{Err: err, Fix: "a2e mcp approve " + id, Minor: true}
	}
	return fmt.Sprintf("%s answers, with %s%s", o.Server, protocol.Count(len(o.Tools), "tool"), others), nil
}
