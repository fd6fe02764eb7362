package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"a2e/host"
	"a2e/host/config"
	"a2e/host/config/yamltree"
	"a2e/plugins/mcp"
	"a2e/protocol"
)

// try starts or connects to the added server, as the hosts of this folder will do. It prints what
// the server offers, or in one line why it does not work and how to fix that. The server stays in
// the config in both cases, as it may need something that is missing now.
func (a *mcpAddCmd) try(cfg *config.Config, sys *System, entry []byte) error {
	ctx, stop := interruptible()
	defer stop()
	if a.Timeout > 0 {
		limit := time.Duration(a.Timeout * float64(time.Second))
		timed, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("it did not answer within %s", limit))
		defer cancel()
		ctx = timed
	}
	offer, err := a.offer(ctx, cfg, sys, entry)
	switch {
	case errors.Is(context.Cause(ctx), errInterrupted):
		return context.Cause(ctx)
	case err != nil:
		why := reasonOf(err)
		if wrong := (*config.Error)(nil); errors.As(err, &wrong) { // an unset variable; its position is clear
			if why = wrong.Problems[0].Message; strings.Contains(why, ": ") {
				_, why, _ = strings.Cut(why, ": ")
			}
			why += "; until then the server is left out"
		}
		say(sys.Err, "warning: %s does not work yet: %s", a.Name, sys.secrets.Text(oneLine(why)))
		if fix := fixOf(err); fix != "" {
			say(sys.Err, "  fix: %s", sys.secrets.Text(oneLine(asJSON(fix))))
		}
		return nil
	}
	printOffer(sys.Out, a.Name, offer)
	return nil
}

// offer returns what the server offers. The error may be a *host.Lack.
func (a *mcpAddCmd) offer(
	ctx context.Context, cfg *config.Config, sys *System, entry []byte,
) (offer *mcp.Offer, err error) {
	options, err := config.ServerOptions(a.Name, entry, sys.getenv)
	if err != nil {
		return nil, err
	}
	only := *cfg
	const typ = string(protocol.CapMCP)
	only.Plugins = []config.Plugin{{Name: typ, Type: typ, Enabled: true, Options: options}}
	err = withServer(&only, a.Name, func(p *mcp.Plugin) error {
		var seen error // a possible reason for a failure
		for _, need := range p.Needs() {
			_, seen = need.Look()
		}
		if lack := (*host.Lack)(nil); seen != nil && !(errors.As(seen, &lack) && lack.Minor) {
			return seen
		}
		if err := p.Start(ctx, nil); err != nil {
			return err
		}
		defer sys.waitingFor("trying " + a.Name)()
		if offer, err = p.Offer(ctx, a.Name); err != nil && seen != nil {
			return &host.Lack{Err: err, Fix: cmp.Or(fixOf(err), fixOf(seen))}
		}
		return err
	})
	return offer, err
}

// asJSON returns a fix that is a line of YAML as JSON members, for an entry of .mcp.json. Any other
// fix is returned unchanged.
func asJSON(fix string) string {
	raw, _, err := yamltree.ToJSON([]byte(fix))
	if err != nil || raw.Kind() != '{' {
		return fix
	}
	return string(raw[1 : len(raw)-1])
}

// maxNames limits how many names of one kind are printed.
const maxNames = 12

// printOffer prints what a server offers.
func printOffer(w io.Writer, name string, o *mcp.Offer) {
	fmt.Fprintf(w, "%s works: %s\n", name, oneLine(strings.TrimSpace(o.Server+" "+o.Version)))
	for _, part := range []struct {
		noun  string
		names []string
	}{{"tool", o.Tools}, {"resource", o.Resources}, {"prompt", o.Prompts}} {
		text := protocol.Count(len(part.names), part.noun)
		if len(part.names) > 0 {
			text += ": " + strings.Join(each(part.names[:min(len(part.names), maxNames)], oneLine), ", ")
		}
		if more := len(part.names) - maxNames; more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
		fmt.Fprintf(w, "  %s\n", text)
	}
	for _, held := range o.Withheld {
		fmt.Fprintf(w, "  withheld: %s %s\n", cmp.Or(oneLine(held.Tool), `""`), oneLine(held.Reason))
	}
}
