package mcp

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"maps"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/host"
	"a2e/host/guard/webguard"
	"a2e/host/sandbox"
	"a2e/plugins/mcp/link"
	"a2e/protocol"
)

// firstWait is how long requests that need the lists of a new server wait for them. It counts once, from
// the start of the server. So the first list of a client includes a server that installs itself in a few
// seconds, and a client that gives up after 30 s, as some do, still gets its answer.
const firstWait = 20 * time.Second

// clientWait is how long started servers wait until an MCP client in front says what it can be asked. It
// counts from the start of the plugin. A client that takes longer is treated as one that cannot be asked
// anything.
const clientWait = 30 * time.Second

// origin says who added a server.
type origin string

// The origins. If two servers have the same name for a tool, byConfig comes before byAgent.
const (
	byConfig origin = "config"
	byAgent  origin = "agent"
)

// server is one MCP server: its connection, and its lists as they were last fetched.
type server struct {
	p      *Plugin
	opts   ServerOptions
	origin origin
	link   *link.Link // nil for one that is disabled
	push   *pusher

	wake       chan struct{} // wakes run; has room for one
	toolsKnown *latch        // the tools were fetched once or cannot be, or firstWait is over
	allKnown   *latch        // the same for all lists
	listed     *latch        // all lists were fetched once or cannot be; the end of firstWait does not count
	judged     *latch        // its tools were compared with the pins and published once
	patience   *time.Timer   // fires at the end of firstWait
	asking     atomic.Int32  // open requests of the server to the agent
	lastCall   atomic.Uint64 // counts the progress tokens
	lastAsk    atomic.Uint64 // counts the ids of requests of the server to the agent
	done       chan struct{} // closed when run has ended

	mu        sync.Mutex // guards the fields below
	dirty     kind       // the lists that must be fetched again
	changed   kind       // the lists that have changed and of which the agent is to be told
	renew     bool       // the connection is new: log level and subscriptions must be set again
	tools     []*boundTool
	withheld  []Withheld
	tasks     map[string]string // taskSupport of its tools by name: optional or required
	firstPins map[string]*pin   // the pins of its first tools, if an agent registered it; see pins
	told      map[string]string // the reasons that were logged for withheld tools, by tool
	resources []listed
	templates []*boundTemplate
	prompts   []listed
	unfit     map[string][]Withheld  // entries of the other lists that cannot be read, by list
	calls     map[string]*activeCall // by progress token
	subs      map[string][]*host.Stream
	stale     []string // URIs without listeners that are still to be unsubscribed
	roots     rootState
	may       offers
}

// kind is a set of lists of a server.
type kind uint8

// The lists.
const (
	kindTools kind = 1 << iota
	kindResources
	kindPrompts
	kindAll = kindTools | kindResources | kindPrompts
)

// openLocked adds a server and starts to connect it. Its id must be free, and p.mu is held.
func (p *Plugin) openLocked(o ServerOptions, by origin) *server {
	s := &server{
		p: p, opts: o, origin: by, wake: make(chan struct{}, 1), done: make(chan struct{}),
		toolsKnown: newLatch(), allKnown: newLatch(), listed: newLatch(), judged: newLatch(),
		calls: make(map[string]*activeCall), subs: make(map[string][]*host.Stream),
	}
	s.push = newPusher(s)
	p.servers[o.ID] = s
	if o.Disabled {
		s.toolsKnown.set()
		s.allKnown.set()
		close(s.done)
		return s
	}
	s.patience = time.AfterFunc(p.firstWait, func() { s.known(kindAll) })
	if p.env.MCPClient != nil { // firstWait begins when the client is known
		s.patience.Stop()
		p.work.Go(func() {
			p.askable()
			s.patience.Reset(p.firstWait)
		})
	}
	life, stop := context.WithCancel(p.life)
	opened := make(chan struct{})
	p.work.Go(func() {
		<-opened
		s.run(life)
	})
	p.work.Go(func() { s.push.run(life) })
	s.push.stop = stop
	s.link = link.Open(p.config(&o, by), link.Env{
		Launcher: p.env.Launcher, Workspace: p.env.Workspace, Homes: p.homes(), Log: p.env.Log, Now: p.env.Now,
		Secrets: p.env.Secrets,
		Client: func() *sdk.ClientOptions {
			<-opened // the handlers use s.link
			return s.client()
		},
		Setup: s.setup, Handle: s.handle, Changed: s.linkChanged,
	})
	close(opened)
	return s
}

// config returns the config of the connection to a server.
func (p *Plugin) config(o *ServerOptions, by origin) link.Config {
	cfg := o.Config
	cfg.Network = by == byConfig
	if o.Network != nil {
		cfg.Network = *o.Network
	}
	cfg.Foreign = by == byAgent
	if by == byConfig || p.opts.Register == RegisterAny {
		cfg.Home = homeName(p.env.Workspace, by, cfg)
	}
	if by == byAgent && p.opts.Register != RegisterAny {
		cfg.Guard = webguard.New(webguard.Options{AllowPrivate: p.opts.HTTPAllowPrivate})
	}
	return cfg
}

// compareServers orders servers: those of the config first, then by id.
func compareServers(a, b *server) int {
	if a.origin != b.origin {
		return cmp.Compare(b.origin, a.origin)
	}
	return strings.Compare(a.opts.ID, b.opts.ID)
}

// known notes that lists of the server were fetched, or that nobody should wait for them, and wakes await.
func (s *server) known(what kind) {
	if what&kindTools != 0 {
		s.toolsKnown.set()
	}
	if what == kindAll {
		s.allKnown.set()
	}
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	close(s.p.learned)
	s.p.learned = make(chan struct{})
}

// gotLists notes that all lists were fetched, or cannot be fetched for now.
func (s *server) gotLists() {
	s.known(kindAll)
	s.listed.set()
}

// await waits until the lists of all servers are known (see server.known), enough returns true, or ctx
// ends. enough may be nil. A new server has firstWait for that, once.
func (p *Plugin) await(ctx context.Context, servers []*server, what kind, enough func() bool) {
	detached := false
	for {
		p.mu.Lock()
		learned := p.learned
		p.mu.Unlock()
		if enough != nil && enough() || !slices.ContainsFunc(servers,
			func(s *server) bool { return !s.isKnown(what) }) {
			return
		}
		if !detached {
			host.HandOff(ctx)
			detached = true
		}
		select {
		case <-learned:
		case <-ctx.Done():
			return
		}
	}
}

// isKnown reports whether requests need not wait for these lists of the server.
func (s *server) isKnown(what kind) bool {
	if what == kindTools {
		return s.toolsKnown.isSet()
	}
	return s.allKnown.isSet()
}

// latch is a flag that is set once and can be waited for.
type latch struct {
	c    chan struct{} // closed when the latch is set
	once sync.Once
}

func newLatch() *latch { return &latch{c: make(chan struct{})} }

// set sets the latch; first = it was not set before.
func (l *latch) set() (first bool) {
	l.once.Do(func() {
		close(l.c)
		first = true
	})
	return first
}

func (l *latch) isSet() bool {
	select {
	case <-l.c:
		return true
	default:
		return false
	}
}

// unreachable returns the error of a server that has no connection now, or nil if it has one.
func (s *server) unreachable() *protocol.Error {
	var known *protocol.Error
	if err := s.usable(); errors.As(err, &known) {
		return known
	}
	if st := s.link.State(); st.Status == link.Connected {
		return nil
	}
	now, stop := context.WithCancel(context.Background())
	stop()
	_, err := s.link.Session(now)
	if errors.As(err, &known) {
		return known
	}
	return protocol.Errorf(protocol.CodeMCPServerUnavailable, "the MCP server %q is still being connected",
		s.opts.ID).With("server_id", s.opts.ID)
}

// signal wakes run.
func (s *server) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// close closes the connection and waits for the end of run, or until ctx ends. It may be called twice.
func (s *server) close(ctx context.Context) error {
	if s.link == nil {
		return nil
	}
	s.patience.Stop()
	s.gotLists()
	err := s.link.Close(ctx)
	s.push.stop()
	select {
	case <-s.done:
	case <-ctx.Done():
	}
	return err
}

// maxInstructions bounds the server's instructions in its row, in bytes.
const maxInstructions = 16 << 10

// row returns the row of the server in mcp/server/list. `status` has the words of A2E (connecting, ready,
// error, disconnected), `state` is more exact.
func (s *server) row() map[string]any {
	var st link.State
	if s.link != nil {
		st = s.link.State()
	}
	state, status := states(s.link != nil, st)
	if st.Installing {
		state = "installing"
	}
	row := map[string]any{
		"server_id": s.opts.ID, "name": cmp.Or(s.opts.Name, s.opts.ID), "origin": string(s.origin), "status": status,
		"state":      state,
		"transport":  string(cmp.Or(st.Transport, s.opts.Kind())),
		"latency_ms": millis(st.Latency), "last_ping_ms": millis(st.Latency), "error": st.LastError,
		"last_error": st.LastError,
		"since":      seconds(st.Since), "connected_at": 0.0, "restarts": st.Restarts, "junk": st.Junk,
		"mcp_version": st.ProtocolVersion, "protocol_version": st.ProtocolVersion,
		"instructions": protocol.Clip(st.Instructions, maxInstructions),
		"server_name":  "", "server_version": "", "server_info": map[string]any{}, "pinned": s.p.opts.Pin,
		"pushes_dropped": s.push.droppedEver(),
		"listed":         s.link == nil || s.listed.isSet(),
	}
	if st.Status == link.Connected {
		row["connected_at"], row["error"] = seconds(st.Since), ""
	}
	if !st.RetryAt.IsZero() {
		row["retry_at"] = seconds(st.RetryAt)
	}
	if st.Progress != "" {
		row["progress"] = protocol.Clip(st.Progress, maxSummary)
	}
	if info := st.Server; info != nil {
		name, title, version := protocol.Clip(info.Name, maxSummary), protocol.Clip(info.Title, maxSummary),
			protocol.Clip(info.Version, maxSummary)
		row["server_name"], row["server_version"] = name, version
		row["server_info"] = map[string]any{"name": name, "title": title, "version": version}
	}
	s.contentsRow(row)
	return row
}

// contentsRow adds the tools, the withheld entries and the sizes of the lists to a row.
func (s *server) contentsRow(row map[string]any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := []string{}
	withheld := []map[string]any{}
	for _, b := range s.tools {
		if b.tool.Denied == "" && !slices.ContainsFunc(s.withheld,
			func(w Withheld) bool { return w.Tool == b.name && w.collides }) {
			names = append(names, b.tool.Def.Name)
		}
	}
	for _, w := range s.withheld {
		withheld = append(withheld, map[string]any{"name": w.Tool, "reason": w.Reason})
	}
	for _, list := range slices.Sorted(maps.Keys(s.unfit)) {
		for _, w := range s.unfit[list] {
			withheld = append(withheld, map[string]any{"name": w.Tool, "reason": w.Reason, "list": list})
		}
	}
	row["tools"], row["withheld"] = names, withheld
	row["tools_count"], row["resources_count"], row["templates_count"], row["prompts_count"] = len(names),
		len(s.resources), len(s.templates), len(s.prompts)
}

// states returns the exact state of a connection, and the word that A2E has for it.
func states(enabled bool, st link.State) (state, status string) {
	if !enabled {
		return "disabled", "disconnected"
	}
	switch st.Status {
	case link.Connected:
		status = "ready"
	case link.Connecting, link.Reconnecting:
		status = "connecting"
	case link.Failed:
		status = "error"
	default:
		status = "disconnected"
	}
	return string(st.Status), status
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// seconds returns a time as messages carry it, in seconds since 1970; 0 = never.
func seconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMicro()) / 1e6
}

// Summary returns the transport of a server, and its program or address with the numbers of its arguments,
// variables and headers. It shows nothing that may be secret.
func (o ServerOptions) Summary() (transport, what string) {
	what = o.Command
	if u, err := url.Parse(o.URL); o.URL != "" && err == nil {
		what = u.Scheme + "://" + u.Host
	}
	if n := len(o.Args); n > 0 {
		what += " and " + protocol.Count(n, "argument")
	}
	if n := len(o.Env); n > 0 {
		what += ", " + protocol.Count(n, "variable")
	}
	if n := len(o.Headers); n > 0 {
		what += ", " + protocol.Count(n, "header")
	}
	if o.Disabled {
		what += ", disabled"
	}
	return string(o.Kind()), what
}

// homeName returns the name of a server's home. Servers that differ in who added them, in what they run or
// in what they may do never share a home.
func homeName(workspace string, by origin, cfg link.Config) string {
	key, _ := json.Marshal([]any{ // texts, which encode always
		workspace, by, cfg.ID, cfg.Command, cfg.Args, slices.Sorted(maps.Keys(cfg.Env)), cfg.Dir, cfg.Network, cfg.Read,
	})
	sum := sha256.Sum256(key)
	return cfg.ID + "-" + hex.EncodeToString(sum[:8])
}

// homes returns the folder of the servers' homes, or "" if no home is kept.
func (p *Plugin) homes() string {
	if p.env.StateDir == "" {
		return ""
	}
	return filepath.Join(p.env.StateDir, "homes")
}

// Installation is a server of the config that is installed by the program that starts it, such as npx.
type Installation struct {
	ID      string `json:"server_id"`
	Command string `json:"command"` // the program's name
	State   string `json:"state"`   // installed, installing (by a host that runs) or missing
	Home    string `json:"home"`    // the folder that it is installed to; "" = a temporary folder
}

// Installations returns the servers of this kind that are not disabled. It works also before Start.
func (p *Plugin) Installations() []Installation {
	all := []Installation{}
	for _, o := range p.configured {
		cfg := p.config(&o, byConfig)
		if o.Disabled || !cfg.Installs() {
			continue
		}
		one := Installation{ID: o.ID, Command: filepath.Base(cfg.Command), State: "missing"}
		if dir := p.homes(); dir != "" {
			one.Home = filepath.Join(dir, cfg.Home)
			switch ready, used := sandbox.HomeState(dir, cfg.Home); {
			case ready:
				one.State = "installed"
			case used:
				one.State = "installing"
			}
		}
		all = append(all, one)
	}
	return all
}
