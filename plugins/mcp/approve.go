package mcp

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"a2e/host/store"
)

// ServerIDs names the servers of the config, also before Start.
func (p *Plugin) ServerIDs() []string {
	ids := []string{}
	for _, o := range p.configured {
		ids = append(ids, o.ID)
	}
	return ids
}

// Withheld connects to a server and tells which of its tools the host does not offer, and
// why. It waits for a first connection until ctx ends. It is for the person who decides,
// not for agents.
func (p *Plugin) Withheld(ctx context.Context, id string) ([]Withheld, error) {
	p.mu.Lock()
	s := p.servers[id]
	p.mu.Unlock()
	if s == nil {
		return nil, fmt.Errorf("no MCP server is called %q; there are: %s", id, strings.Join(p.ids(), ", "))
	}
	if s.link == nil {
		return nil, fmt.Errorf("the MCP server %q is disabled in the config", id)
	}
	if _, err := s.link.Session(ctx); err != nil {
		return nil, err
	}
	select {
	case <-s.judged:
	case <-ctx.Done():
		return nil, fmt.Errorf("the MCP server %q did not list its tools in time: %w", id, context.Cause(ctx))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.withheld), nil
}

// Approve accepts the definitions of tools of a server as Withheld gave them: from now on
// these are what later ones are held against.
func (p *Plugin) Approve(ctx context.Context, id string, accepted []Withheld) error {
	if !p.opts.Pin {
		return fmt.Errorf("pin is not set in the options of the plugin %q: nothing is withheld for having changed", p.name)
	}
	return p.env.Store.Write(ctx, func(tx *store.Tx) error {
		for _, w := range accepted {
			if !w.Pinned || w.New == nil {
				return fmt.Errorf("the tool %q %s: no approval changes that", w.Tool, w.Reason)
			}
			sum := sha256.Sum256(w.New)
			row := pinRow{server: id, tool: w.Tool, hash: hex.EncodeToString(sum[:]), definition: w.New, at: p.env.Now().UnixMicro()}
			if err := row.put(tx); err != nil {
				return err
			}
		}
		return nil
	})
}
