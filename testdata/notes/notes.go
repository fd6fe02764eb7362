// Package notes is a whole plugin with messages of its own.
package notes

import (
	"context"
	"slices"
	"sync"

	"a2e/host"
	"a2e/protocol"
)

// Options are the plugin's options in the config: there are none.
type Options struct{}

// Plugin keeps notes in memory.
type Plugin struct {
	name string

	mu    sync.Mutex
	notes []string // guarded by mu
}

// New makes the plugin.
func New(name string, _ Options, _ host.Env) (*Plugin, error) { return &Plugin{name: name}, nil }

// Info implements host.Plugin. Every session may use what needs no negotiation.
func (p *Plugin) Info() host.PluginInfo {
	return host.PluginInfo{Name: p.name, Capability: protocol.CapCore}
}

// Routes implements host.Plugin: a row for each type of message. A list waits for the notes before it.
func (p *Plugin) Routes() []host.Route {
	return []host.Route{
		host.Handle("note/add/req", p.add).InOrder(protocol.Claim{Key: "notes/", Access: protocol.Exclusive}),
		host.Handle("note/list/req", p.list).InOrder(protocol.Claim{Key: "notes/", Access: protocol.Shared}),
	}
}

// Close implements host.Plugin.
func (p *Plugin) Close(context.Context) error { return nil }

type addRequest struct {
	Text string `json:"text"`
}

type addResponse struct {
	Count int `json:"count"` // of all notes
}

func (p *Plugin) add(_ context.Context, req *addRequest, _ host.Emitter) (*addResponse, error) {
	if req.Text == "" {
		return nil, protocol.Violation(protocol.FieldError{Path: "/text", Message: "is required: the note"})
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.notes = append(p.notes, req.Text)
	return &addResponse{len(p.notes)}, nil
}

type listRequest struct{}

type listResponse struct {
	Notes []string `json:"notes"`
}

func (p *Plugin) list(context.Context, *listRequest, host.Emitter) (*listResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return &listResponse{slices.Concat([]string{}, p.notes)}, nil
}
