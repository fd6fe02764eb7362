package mcp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"a2e/host"
)

// Needs implements host.Needer: each server of the config, with its program or address. Trying
// one starts them all.
func (p *Plugin) Needs() []host.Need {
	start := sync.OnceValue(func() error { return p.Start(context.Background(), nil) })
	var all []host.Need
	for _, o := range p.configured {
		if o.Disabled {
			continue
		}
		cfg := p.config(&o, byConfig)
		need := host.Need{Of: "MCP server " + o.ID, Option: o.at + ".command", Wait: cfg.Patience() + time.Second}
		need.Look = func() (string, error) {
			program := cfg.Program(p.env.Workspace)
			path, err := program.Look()
			if err == nil {
				err = unset(cfg.Env, "variable")
			}
			return path, err
		}
		if cfg.URL != "" {
			_, what := o.Summary()
			need.Option, need.Look = o.at+".url", func() (string, error) { return what, unset(cfg.Headers, "header") }
		}
		need.Live = func(ctx context.Context) (string, error) {
			if err := start(); err != nil {
				return "", err
			}
			return p.try(ctx, o.ID)
		}
		all = append(all, need)
	}
	return all
}

// unset tells of a variable or header that is given and empty, as that of a variable of the host
// which is not set.
func unset(given map[string]string, what string) error {
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if strings.TrimSpace(given[name]) == "" {
			return &host.Lack{Err: fmt.Errorf("its %s %s is empty: set what the config takes it from", what, name), Minor: true}
		}
	}
	return nil
}

// try waits for a server and tells what it has.
func (p *Plugin) try(ctx context.Context, id string) (string, error) {
	withheld, err := p.Withheld(ctx, id)
	p.mu.Lock()
	s := p.servers[id]
	p.mu.Unlock()
	if state := s.link.State(); err != nil {
		if state.LastError != "" {
			err = errors.New(state.LastError)
		} else if ctx.Err() != nil && state.Progress != "" {
			err = fmt.Errorf("%w; it last said: %s", err, clip(state.Progress, maxSummary))
		}
		return "", err
	}
	for _, w := range withheld {
		if w.Pinned {
			return "", &host.Lack{Err: fmt.Errorf("%d of its tools have changed since they were approved, and are withheld", len(withheld)), Fix: "a2e mcp approve " + id, Minor: true}
		}
	}
	row := s.row()
	return fmt.Sprintf("%v answers, with %v tools", row["server_name"], row["tools_count"]), nil
}
