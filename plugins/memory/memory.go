// Package memory is the capability `memory`: it stores what an agent wants to find again,
// in three tiers, and finds it by key, by tag and by topic.
//
//	memory.go    the plugin, memory ids           tables.go   its tables, export and import
//	entry.go     checks of an entry               search.go   ranking by words and by vectors
//	write.go     memory/store, memory/forget      vectors.go  the model of the vectors, missing vectors
//	retrieve.go  memory/retrieve                  nearest.go  the nearest vectors, seal.go  their segments
//	session.go   the working tier, child agents   words.go    ranking by the index of words
//	pick.go      the entries a request selects    filter.go   … by fields of their content
//	page.go      lists, namespaces, histories     cursor.go   where a page ended
//	merge.go     changes of a part of an entry    history.go  versions that were replaced
//	dedupe.go    entries that say the same        tidy.go     merging of the word indexes
//
// Package embed makes the vectors.
package memory

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/go-json-experiment/json"

	"a2e/host"
	"a2e/host/config"
	"a2e/host/state/store"
	"a2e/plugins/memory/embed"
	"a2e/protocol"
)

// Options are the plugin's options in the config.
type Options struct {
	WorkingLimit  int        `yaml:"working_limit" min:"1" doc:"Entries that a session's working tier holds."`
	EpisodicLimit int        `yaml:"episodic_limit" min:"1" doc:"Entries that an agent's episodic tier holds, in all its namespaces."`
	SemanticLimit int        `yaml:"semantic_limit" min:"1" doc:"Entries that the semantic tier holds."`
	Versions      int        `yaml:"versions" min:"0" max:"1000" doc:"Former versions of an entry that are kept for history, 1 MiB of them at most; 0 = none."`
	MaxEntryBytes int        `yaml:"max_entry_bytes" min:"256" max:"16777216" doc:"Size of the largest entry: its key and content as JSON, tags and source."`
	Embeddings    Embeddings `yaml:"embeddings" doc:"A server that makes the vectors for search. Without a url there are no vectors: a search then knows words, not meanings."`
}

// Embeddings names an OpenAI-compatible endpoint.
type Embeddings struct {
	URL        string        `yaml:"url" doc:"Base address, such as http://127.0.0.1:11434/v1; /embeddings is added."`
	Model      string        `yaml:"model" shown:"yes" doc:"Name of the model. The store remembers it: vectors of two models do not mix."`
	APIKey     config.Secret `yaml:"api_key" doc:"Sent as a bearer token; best as a variable."`
	Dimensions int           `yaml:"dimensions" min:"0" max:"16384" doc:"Size of the vectors, for models that let one choose; 0 = the model's own."`
	Timeout    float64       `yaml:"timeout" min:"0" max:"600" doc:"Seconds that one request may take; 0 = 10."`
	Batch      int           `yaml:"batch" min:"0" max:"2048" doc:"Texts in one request at most; 0 = 64."`
}

// DefaultOptions returns the options of a plugin whose config sets none.
func DefaultOptions() Options {
	return Options{
		WorkingLimit: 10_000, EpisodicLimit: 100_000, SemanticLimit: 1_000_000, Versions: 10,
		MaxEntryBytes: 1 << 20,
	}
}

// Embedder returns the embedder that the options describe. The error says which option is wrong.
func (o Options) Embedder() (embed.Embedder, error) {
	e := o.Embeddings
	if e.URL == "" {
		if e.Model != "" {
			return nil, fmt.Errorf("embeddings: the model %q needs a url; without both, search is by words only",
				e.Model)
		}
		return embed.None(), nil
	}
	if e.Model == "" {
		return nil, fmt.Errorf("embeddings: model is missing: the name of the model at the url")
	}
	made, err := embed.NewEndpoint(embed.Endpoint{
		URL: e.URL, Model: e.Model, APIKey: e.APIKey.Reveal(), Size: e.Dimensions,
		Timeout: time.Duration(e.Timeout * float64(time.Second)), Batch: e.Batch,
	})
	if err != nil {
		return nil, fmt.Errorf("embeddings: %w", err)
	}
	return made, nil
}

// Plugin is one `memory` plugin.
type Plugin struct {
	name     string
	opts     Options
	env      host.Env
	embedder embed.Embedder
	tidying  tidying

	mu      sync.Mutex  // guards the fields below
	disk    *repository // nil until it is needed
	names   map[string]name
	working map[string]*repository // by session id; made at the first write
	sharing map[string][]string    // child agents that see their parent's memory, by the parent's session id
}

// New makes the plugin with the name instance. The error says which option is wrong.
func New(instance string, opts Options, env host.Env) (*Plugin, error) {
	embedder, err := opts.Embedder()
	if err != nil {
		return nil, fmt.Errorf("plugin %q: %w", instance, err)
	}
	env = env.WithDefaults()
	p := &Plugin{
		name: instance, opts: opts, env: env, embedder: embedder, names: make(map[string]name),
		working: make(map[string]*repository), sharing: make(map[string][]string),
	}
	p.tidying.ctx, p.tidying.stop = context.WithCancel(context.Background())
	return p, nil
}

// Needs implements host.Needer: the endpoint of the embeddings.
func (p *Plugin) Needs() []host.Need {
	e := p.opts.Embeddings
	if e.URL == "" {
		return nil
	}
	return []host.Need{{
		Of: "embeddings of the memory", Option: "embeddings.url",
		Look: func() (string, error) { return "model " + e.Model, nil },
		Live: func(ctx context.Context) (string, error) {
			vectors, err := p.embedder.Embed(ctx, []string{"hello"})
			if err != nil {
				return "", err
			}
			return fmt.Sprintf("%s answers, with %s", e.Model, protocol.Count(len(vectors[0]), "dimension")), nil
		},
	}}
}

// Info implements host.Plugin.
func (p *Plugin) Info() host.PluginInfo {
	m := p.embedder.Model()
	return host.PluginInfo{Name: p.name, Capability: protocol.CapMemory, Stored: true, Metadata: map[string]any{
		"tiers": tiers(), "embeddings": m.Name,
	}}
}

// Routes implements host.Plugin.
func (p *Plugin) Routes() []host.Route {
	return []host.Route{
		host.Handle(protocol.TypeMemoryInitReq, p.init),
		host.Handle(protocol.TypeMemoryStoreReq, p.store).Wrap(p.inPlace),
		host.Handle(protocol.TypeMemoryRetrieveReq, p.retrieve).Wrap(p.knowing(
			"query", "limit", "min_score", "offset", "cursor", "refresh_ttl", "history", "list_namespaces",
			"max_depth")),
		host.Handle(protocol.TypeMemoryForgetReq, p.forget).Wrap(p.knowing("all", "confirm")),
	}
}

// knowing returns a middleware that refuses a request with a field that is neither in fields nor in a
// selection: ignoring an unknown field could read or delete more than the agent meant. It lets
// requests for an unknown memory through; their handler reports that.
func (p *Plugin) knowing(fields ...string) func(context.Context, protocol.Object, func() (any, error)) (any, error) {
	fields = append(fields, "memory_id", "keys", "tags", "tier", "all_tags", "filter", "source", "folder",
		"since", "until", "namespace_prefix")
	return func(ctx context.Context, obj protocol.Object, next func() (any, error)) (any, error) {
		if _, err := p.find(ctx, obj.Text("memory_id")); err != nil {
			return next() // next reports the unknown memory
		}
		if err := host.KnownFields(obj, fields); err != nil {
			return nil, err
		}
		return next()
	}
}

// inPlace refuses a store request with a field beside its entries that would be ignored there: a field
// that belongs into an entry (see conditional), or a namespace other than that of the memory.
func (p *Plugin) inPlace(ctx context.Context, obj protocol.Object, next func() (any, error)) (any, error) {
	for _, field := range conditional() {
		if v, there := obj.Get(field); there && v.Kind() != 'n' {
			return nil, protocol.Wrong("/"+field, "belongs in each of the entries, not beside them")
		}
	}
	if n, err := p.find(ctx, obj.Text("memory_id")); err == nil {
		if err := inNamespace(n, obj); err != nil {
			return nil, err
		}
	}
	return next()
}

// Close implements host.Plugin. It leaves the shared store open: the host owns it.
func (p *Plugin) Close(context.Context) error {
	p.tidying.close()
	err := p.dropWorking()
	if c, ok := p.embedder.(io.Closer); ok {
		err = errors.Join(err, c.Close())
	}
	return err
}

// tiers lists the tiers in the order in which they are searched.
func tiers() []protocol.MemoryTier {
	return []protocol.MemoryTier{protocol.TierWorking, protocol.TierEpisodic, protocol.TierSemantic}
}

// byRepository groups tiers by their repository: those on disk, which change together, and the working tier.
func byRepository(tiers []protocol.MemoryTier) (groups [][]protocol.MemoryTier) {
	working := func(tier protocol.MemoryTier) bool { return tier == protocol.TierWorking }
	if disk := slices.DeleteFunc(slices.Clone(tiers), working); len(disk) > 0 {
		groups = append(groups, disk)
	}
	if slices.ContainsFunc(tiers, working) {
		groups = append(groups, []protocol.MemoryTier{protocol.TierWorking})
	}
	return groups
}

// now returns the time in seconds since 1970, as messages have it.
func (p *Plugin) now() float64 { return float64(p.env.Now().UnixMicro()) / 1e6 }

const (
	maxNames     = 10_000 // memories that a host has open at once
	maxNamespace = 1_000  // bytes
	maxScope     = 4_000  // bytes of JSON
)

// name is what a memory id stands for. Memories of different names share nothing.
type name struct {
	id        string
	namespace string
	scope     string // canonical JSON
}

// nameOf returns the name with its id. The id is a hash of namespace and scope: the same memory has
// the same id in every session and host.
func nameOf(namespace string, scope map[string]string) (name, error) {
	raw, err := json.Marshal(scope, json.Deterministic(true))
	if err != nil {
		return name{}, err
	}
	sum := sha256.Sum256(append([]byte(namespace+"\x00"), raw...))
	return name{id: "mem_" + hex.EncodeToString(sum[:12]), namespace: namespace, scope: string(raw)}, nil
}

// init opens a memory. It takes no space on disk until something is stored.
func (p *Plugin) init(_ context.Context, req *protocol.MemoryInitRequest, _ host.Emitter) (*protocol.MemoryInitResponse,
	error,
) {
	n, err := nameOf(req.Namespace, req.Scope)
	if err != nil {
		return nil, err
	}
	if len(n.namespace) > maxNamespace {
		return nil, protocol.Wrong("/namespace", "has %d bytes; %d are allowed", len(n.namespace), maxNamespace)
	}
	if len(n.scope) > maxScope {
		return nil, protocol.Wrong("/scope", "has %d bytes as JSON; %d are allowed", len(n.scope), maxScope)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, known := p.names[n.id]; !known && len(p.names) >= maxNames {
		return nil, protocol.Errorf(protocol.CodeMemoryFull, "%d memories are open, which is all that one host "+
			"keeps; use fewer namespaces and scopes", maxNames)
	}
	p.names[n.id] = n
	return &protocol.MemoryInitResponse{MemoryID: n.id, Namespace: n.namespace, Success: true}, nil
}

// find returns the name of a memory id: one that this process knows, or one in the store from an
// earlier process.
func (p *Plugin) find(ctx context.Context, id string) (name, error) {
	p.mu.Lock()
	n, known := p.names[id]
	p.mu.Unlock()
	if known {
		return n, nil
	}
	n.id = id
	err := p.env.Store.Read(ctx, func(tx *store.Tx) (err error) {
		known, err = tx.Get("SELECT namespace, scope FROM memory_names WHERE memory_id = $1", []any{id},
			&n.namespace, &n.scope)
		return err
	})
	if err != nil {
		return n, storeTrouble(err)
	}
	if !known {
		return n, host.NotOwner(protocol.Errorf(protocol.CodeMemoryNotFound, "unknown memory_id %.64q; "+
			"memory/init/req opens a memory and gives its memory_id", id))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.names) < maxNames {
		p.names[id] = n
	}
	return n, nil
}

// tiersOf returns the tiers that a request names; "" = all tiers.
func tiersOf(tier protocol.MemoryTier) ([]protocol.MemoryTier, error) {
	if tier == "" {
		return tiers(), nil
	}
	if !slices.Contains(tiers(), tier) {
		return nil, protocol.Wrong("/tier", "there is no tier %.64q; there are working, episodic, semantic, and "+
			`"" for all`, tier)
	}
	return []protocol.MemoryTier{tier}, nil
}
