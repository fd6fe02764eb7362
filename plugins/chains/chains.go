// Package chains implements the capability `chains`: graphs of tools, skills, programs and saved
// chains that run in one request. What the WIRE leaves open:
//
//   - A node runs when every node that it waits for has ended: those that its expressions name,
//     those in deps, and those whose next_node, true_node, false_node, catch or on_error leads
//     to it. entry_node must be the id of a node; which node runs first follows from the graph.
//   - A node that others lead to runs when one of them took that way; any other node runs when
//     one that it waits for ran. Otherwise it is skipped, and its value is null.
//   - An input_map value that is not a string is a constant. input_map wins over input. The node
//     of a map without either is called with {"item": …}.
//   - on_error is abort (the chain ends), skip (the value is null and the chain goes on) or
//     the id of a node that handles the failure. catch names such a node too, and may take only
//     some codes. The handling node sees the failure as error. A failed item of a map is skipped
//     if its node or the map says skip; it is null in the result of the map.
//   - A chain that is wrong itself is answered by `error` before anything runs:
//     schema_violation, or chain_cycle. After that the answer is chain/resp. Its success
//     says that every failure was handled by another node; handled lists these. Otherwise error
//     says which node failed, with code chain_node_error or timeout.
//   - Fields that no node has are refused, except description and names that begin with x-.
//   - The final output is that of the node that no other node followed; with several such nodes
//     it is an object by id. The output of a branch, true or false, is never the final output.
//
// The files:
//
//	chains.go        the plugin and its options
//	node.go          a node as it was sent
//	express.go       expressions of nodes, and what they see
//	edges.go         which node waits for which
//	plan.go          a chain that is ready to run, or to be drawn
//	saved.go         chains in files
//	run.go           a run: which nodes are ready, which are skipped
//	execute.go       one node, from its start to its end
//	leaf.go          calls of tools, skills and programs
//	map.go           a node for each item of a list, and loops
//	retry.go         another attempt, or another node after a failure
//	wait.go          a node that waits
//	approve.go       questions to a person: approvals, and nodes whose outcome nobody knows
//	answer.go        chain/resp and chain/event
//	memory.go        the bytes that runs hold, and the workers that they share
//	cache.go         outputs of nodes, kept in the store
//	journal_run.go   a run with a journal: claimed by one host, resumed by another
//	journal_steps.go the steps in a journal: what each node did
//	journal_admin.go lists, cancels and approves journals from outside a run
package chains

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"a2e/host"
	"a2e/host/guard/wall"
	"a2e/host/state/store"
	"a2e/plugins/chains/jmes"
	"a2e/protocol"
)

// Plugin is one `chains` plugin. Between requests it keeps only cached outputs and journals, both in the
// store.
type Plugin struct {
	name     string
	opts     Options
	env      host.Env
	compiler *jmes.Compiler
	memory   *memory
	kept     host.Kept
	services *host.Services // set by Start
	journals *store.Journals

	late  sync.WaitGroup  // writes of the ends of journals that the store did not take at once
	life  context.Context // ends with Close
	stop  context.CancelFunc
	again time.Duration // pause between those writes; never changes
}

// New makes the plugin called name. The error says which option does not fit.
func New(name string, opts Options, env host.Env) (*Plugin, error) {
	if err := opts.check(); err != nil {
		return nil, fmt.Errorf("plugin %q: %w", name, err)
	}
	opts.setDefaults()
	env = env.WithDefaults()
	env.Workspace = wall.Canonical(env.Workspace)
	p := &Plugin{
		name: name, opts: opts, env: env, compiler: jmes.NewCompiler(), memory: newMemory(opts.MaxStateBytes),
		kept: env.Kept(name), journals: newJournals(), again: journalPatience,
	}
	p.life, p.stop = context.WithCancel(context.Background())
	return p, nil
}

// Start implements host.Starter.
func (p *Plugin) Start(_ context.Context, s *host.Services) error {
	p.services = s
	return nil
}

// Info implements host.Plugin.
func (p *Plugin) Info() host.PluginInfo {
	return host.PluginInfo{Name: p.name, Capability: protocol.CapChains}
}

// Routes implements host.Plugin.
func (p *Plugin) Routes() []host.Route {
	return []host.Route{host.Handle(protocol.TypeChainReq, p.chain).Wrap(knownOnly)}
}

// Close implements host.Plugin. Chains that still run are waited for by their requests.
func (p *Plugin) Close(ctx context.Context) error {
	p.stop()
	p.late.Wait()
	return p.journals.Close(ctx, p.kept.Opener)
}

// chain answers chain/req:
//
//	read the nodes ─ compile expressions ─ who waits for whom ─ circles? ─ run ─ answer
func (p *Plugin) chain(ctx context.Context, req *protocol.ChainRequest, _ host.Emitter) (*answer, error) {
	durable, err := p.durable(req)
	if err != nil {
		return nil, err
	}
	if durable {
		return p.journalled(ctx, req)
	}
	plan, err := p.plan(ctx, req)
	if err != nil {
		return nil, err
	}
	return p.run(ctx, req, plan, nil)
}

// run runs a plan; j = nil means no journal.
func (p *Plugin) run(ctx context.Context, req *protocol.ChainRequest, plan *plan, j *journal) (*answer, error) {
	start := p.env.Now()
	t := newTree(ctx, p, req)
	t.journal = j
	r := newRun(t, plan, "", start)
	defer r.dropAll()
	if err := r.begin(ctx, req.InitialInput.Raw()); err != nil {
		return nil, err
	}
	r.work()
	t.pool.all.Wait()
	took := p.env.Now().Sub(start)
	a, err := r.answer(ctx, req, took)
	if err != nil {
		return nil, err
	}
	t.record(ctx, plan.component(req), r.success(), took)
	return a, nil
}

// Options are the plugin's options in the config.
type Options struct {
	MaxParallel     int    `yaml:"max_parallel" min:"0" max:"1024" doc:"Nodes of one chain, and items of its maps, that run at once; 0 = 16."`
	MaxNodes        int    `yaml:"max_nodes" min:"0" doc:"Nodes of one chain, including those of the saved chains that it runs; 0 = 10000."`
	MaxItems        int    `yaml:"max_items" min:"0" doc:"Items of one map; 0 = 100000."`
	MaxDepth        int    `yaml:"max_depth" min:"0" max:"64" doc:"How deep saved chains may call each other; 0 = 8."`
	MaxStateBytes   int    `yaml:"max_state_bytes" min:"0" doc:"Memory for the outputs of all nodes of a running chain; 0 = 16 MiB."`
	MaxResultBytes  int    `yaml:"max_result_bytes" min:"0" doc:"Outputs in an answer, together; the largest are left out beyond that. 0 = 4 MiB."`
	MaxCacheEntries int    `yaml:"max_cache_entries" min:"0" doc:"How many outputs of nodes with cache are kept in the store, for all agents; the oldest are deleted. 0 = 10000."`
	MaxCacheBytes   int    `yaml:"max_cache_bytes" min:"0" doc:"Bytes of these outputs; one of more than an eighth of that is not kept. 0 = 64 MiB."`
	Journal         bool   `yaml:"journal" doc:"Whether a journal of each chain with a chain_id is kept, even if the request does not ask for one."`
	MaxJournals     int    `yaml:"max_journals" min:"0" doc:"How many journals of chains are kept; those of completed chains are deleted first. 0 = 1000."`
	MaxJournalBytes int    `yaml:"max_journal_bytes" min:"0" doc:"Bytes of these, and of the journal of a running chain. 0 = 256 MiB."`
	ChainsPath      string `yaml:"chains_path" doc:"The folder of saved chains, NAME.yaml, in the workspace."`
}

// DefaultOptions returns the options where the config sets none.
func DefaultOptions() Options {
	var o Options
	o.setDefaults()
	return o
}

func (o *Options) setDefaults() {
	o.MaxParallel = cmp.Or(o.MaxParallel, 16)
	o.MaxNodes = cmp.Or(o.MaxNodes, 10_000)
	o.MaxItems = cmp.Or(o.MaxItems, 100_000)
	o.MaxDepth = cmp.Or(o.MaxDepth, 8)
	o.MaxStateBytes = cmp.Or(o.MaxStateBytes, 16<<20)
	o.MaxResultBytes = cmp.Or(o.MaxResultBytes, 4<<20)
	o.MaxCacheEntries = cmp.Or(o.MaxCacheEntries, 10_000)
	o.MaxCacheBytes = cmp.Or(o.MaxCacheBytes, 64<<20)
	o.MaxJournals = cmp.Or(o.MaxJournals, 1000)
	o.MaxJournalBytes = cmp.Or(o.MaxJournalBytes, 256<<20)
	o.ChainsPath = cmp.Or(o.ChainsPath, "chains")
}

func (o *Options) check() error {
	if o.ChainsPath != "" && !filepath.IsLocal(o.ChainsPath) {
		return fmt.Errorf("chains_path: %q leaves the workspace; it is a folder in it, such as chains", o.ChainsPath)
	}
	return nil
}
