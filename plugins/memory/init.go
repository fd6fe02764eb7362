package memory

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"

	"github.com/go-json-experiment/json"

	"a2e/host"
	"a2e/host/store"
	"a2e/protocol"
)

const (
	maxNames     = 10_000 // memories that a host knows at once
	maxNamespace = 1_000  // bytes
	maxScope     = 4_000  // bytes of JSON
)

// name is what a memory id stands for. Memories of different names share nothing.
type name struct {
	id        string
	namespace string
	scope     string // canonical JSON
}

// nameOf gives the name with its id, which follows from it: the same memory has the same
// id in every session and host.
func nameOf(namespace string, scope map[string]string) (name, error) {
	raw, err := json.Marshal(scope, json.Deterministic(true))
	if err != nil {
		return name{}, err
	}
	sum := sha256.Sum256(append([]byte(namespace+"\x00"), raw...))
	return name{id: "mem_" + hex.EncodeToString(sum[:12]), namespace: namespace, scope: string(raw)}, nil
}

// init opens a memory. It costs nothing on disk until something is stored.
func (p *Plugin) init(_ context.Context, req *protocol.MemoryInitRequest, _ host.Emitter) (*protocol.MemoryInitResponse, error) {
	n, err := nameOf(req.Namespace, req.Scope)
	if err != nil {
		return nil, err
	}
	if len(n.namespace) > maxNamespace {
		return nil, violation("/namespace", "has %d bytes; %d are allowed", len(n.namespace), maxNamespace)
	}
	if len(n.scope) > maxScope {
		return nil, violation("/scope", "has %d bytes as JSON; %d are allowed", len(n.scope), maxScope)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, known := p.names[n.id]; !known && len(p.names) >= maxNames {
		return nil, protocol.Errorf(protocol.CodeMemoryFull, "%d memories are open, which is all that one host keeps; use fewer namespaces and scopes", maxNames)
	}
	p.names[n.id] = n
	return &protocol.MemoryInitResponse{MemoryID: n.id, Namespace: n.namespace, Success: true}, nil
}

// find gives the name behind an id: of this host, or one that the store has from
// an earlier one.
func (p *Plugin) find(ctx context.Context, id string) (name, error) {
	p.mu.Lock()
	n, known := p.names[id]
	p.mu.Unlock()
	if known {
		return n, nil
	}
	n.id = id
	_ = p.env.Store.Read(ctx, func(tx *store.Tx) (err error) { // a store that fails says so when it is used
		known, err = tx.Get("SELECT namespace, scope FROM memory_names WHERE memory_id = ?", []any{id}, &n.namespace, &n.scope)
		return err
	})
	if !known {
		return n, host.NotMine(protocol.Errorf(protocol.CodeMemoryNotFound, "unknown memory_id %.64q; memory/init/req opens a memory and gives its memory_id", id))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.names) < maxNames {
		p.names[id] = n
	}
	return n, nil
}

// tiersOf gives the tiers that a request means; "" means all.
func tiersOf(tier protocol.MemoryTier) ([]protocol.MemoryTier, error) {
	if tier == "" {
		return tiers(), nil
	}
	if !slices.Contains(tiers(), tier) {
		return nil, violation("/tier", "there is no tier %.64q; there are working, episodic, semantic, and \"\" for all", tier)
	}
	return []protocol.MemoryTier{tier}, nil
}
