// Package memory is the capability `memory`: what an agent wants to find again,
// in three tiers, by key, by tag and by what it is about.
//
//	memory.go     the plugin and its routes     shelf.go     the entries of one store
//	init.go       whose memory it is            part.go      its tables, export and import
//	entry.go      what an entry may be          text.go      what of an entry is searched
//	put.go        memory/store                  sketches.go  the vectors in memory
//	retrieve.go   memory/retrieve               search.go    words and vectors, fused
//	forget.go     memory/forget                 embedding.go vectors, and what if there are none
//	session.go    the working tier's life       scope.go     what child agents see
//
// Package embed makes the vectors.
package memory

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/config"
	"a2e/host/store"
	"a2e/plugins/memory/embed"
	"a2e/protocol"
)

// Options are the plugin's options in the config.
type Options struct {
	WorkingLimit  int        `yaml:"working_limit" min:"1" doc:"Entries that a session's working tier holds."`
	EpisodicLimit int        `yaml:"episodic_limit" min:"1" doc:"Entries that an agent's episodic tier holds, in all its namespaces."`
	SemanticLimit int        `yaml:"semantic_limit" min:"1" doc:"Entries that the semantic tier holds."`
	MaxEntryBytes int        `yaml:"max_entry_bytes" min:"256" max:"16777216" doc:"Size of the largest entry: its key and content as JSON, tags and source."`
	Embeddings    Embeddings `yaml:"embeddings" doc:"A server that makes the vectors for search. Without a url the built-in embedder does, which knows words and not meanings."`
}

// Embeddings names an OpenAI-compatible endpoint.
type Embeddings struct {
	URL        string        `yaml:"url" doc:"Base address, such as http://127.0.0.1:11434/v1; /embeddings is added."`
	Model      string        `yaml:"model" shown:"yes" doc:"Name of the model. The store keeps it: vectors of two models do not mix."`
	APIKey     config.Secret `yaml:"api_key" doc:"Sent as a bearer token; best as a variable."`
	Dimensions int           `yaml:"dimensions" min:"0" max:"16384" doc:"Size of the vectors, for models that let one choose; 0 = the model's own."`
	Timeout    float64       `yaml:"timeout" min:"0" max:"600" doc:"Seconds that one request may take; 0 = 10."`
	Batch      int           `yaml:"batch" min:"0" max:"2048" doc:"Texts in one request at most; 0 = 64."`
}

// DefaultOptions gives the options of a plugin without any.
func DefaultOptions() Options {
	return Options{WorkingLimit: 10_000, EpisodicLimit: 100_000, SemanticLimit: 1_000_000, MaxEntryBytes: 1 << 20}
}

// Embedder gives what makes the vectors. The error says which option does not fit.
func (o Options) Embedder() (embed.Embedder, error) {
	e := o.Embeddings
	if e.URL == "" {
		if e.Model != "" {
			return nil, fmt.Errorf("embeddings: the model %q needs a url; without both the built-in embedder is used", e.Model)
		}
		return embed.Hashed(), nil
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

// Env is what the plugin gets from the host.
type Env struct {
	Store store.Opener     // the shared store, opened at the first call
	Now   func() time.Time // nil = time.Now
	Log   zerolog.Logger
}

// Plugin is one `memory` plugin.
type Plugin struct {
	name     string
	opts     Options
	env      Env
	embedder embed.Embedder

	mu      sync.Mutex // guards the fields below
	disk    *shelf     // nil until it is needed
	names   map[string]name
	working map[string]*shelf // by session id; made when first written to
}

// New makes the plugin called instance. The error says which option does not fit.
func New(instance string, opts Options, env Env) (*Plugin, error) {
	embedder, err := opts.Embedder()
	if err != nil {
		return nil, fmt.Errorf("plugin %q: %w", instance, err)
	}
	if env.Now == nil {
		env.Now = time.Now
	}
	return &Plugin{
		name: instance, opts: opts, env: env, embedder: embedder, names: make(map[string]name), working: make(map[string]*shelf),
	}, nil
}

// Info implements host.Plugin.
func (p *Plugin) Info() host.PluginInfo {
	m := p.embedder.Model()
	return host.PluginInfo{Name: p.name, Capability: protocol.CapMemory, Metadata: map[string]any{
		"tiers": tiers(), "embeddings": m.Name,
	}}
}

// Routes implements host.Plugin.
func (p *Plugin) Routes() []host.Route {
	return []host.Route{
		host.Handle(protocol.TypeMemoryInitReq, p.init).Changes(),
		host.Handle(protocol.TypeMemoryStoreReq, p.store).Changes(),
		host.Handle(protocol.TypeMemoryRetrieveReq, p.retrieve).Reads(),
		host.Handle(protocol.TypeMemoryForgetReq, p.forget).Changes(),
	}
}

// Close implements host.Plugin. The shared store is not the plugin's to close.
func (p *Plugin) Close(context.Context) error {
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

// now is the time as messages carry it.
func (p *Plugin) now() float64 { return float64(p.env.Now().UnixMicro()) / 1e6 }
