package plugins

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/config"
	"a2e/host/sandbox"
	"a2e/host/store"
	"a2e/plugins/memory"
	"a2e/plugins/memory/embed"
	"a2e/protocol"
)

// Shared is what the plugins of one host, and what else belongs to it, have in common: the
// store and what starts child processes. Each is made when it is first needed, and all end
// with the last user.
type Shared struct {
	children, skills *children
	state            *state
	disk             *sandbox.Disk // nil = no bound

	// MCPClient is that of host.Env. It is set before the plugins are made.
	MCPClient func(context.Context) jsontext.Value

	mu    sync.Mutex
	users int // guarded by mu
}

// NewShared makes what is shared on a host of the config. The caller closes it after the
// plugins.
func NewShared(cfg *config.Config, log zerolog.Logger) *Shared {
	s := newShared(cfg, log)
	s.users++
	return s
}

func newShared(cfg *config.Config, log zerolog.Logger) *Shared {
	disk := newDisk(cfg)
	return &Shared{children: newChildren(cfg, Mode(cfg), disk, log), skills: newChildren(cfg, skillMode(cfg), disk, log), state: &state{cfg: cfg}, disk: disk}
}

// Store returns the store of the config.
func (s *Shared) Store(ctx context.Context) (store.Store, error) {
	opened, err := s.state.open(ctx)
	if err != nil { // a nil *store.SQLite is no nil store.Store
		return nil, err
	}
	return opened, nil
}

// Launcher returns what starts child processes.
func (s *Shared) Launcher() (*sandbox.Launcher, error) { return s.children.launcher() }

// Close ends what no plugin uses any more.
func (s *Shared) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users--; s.users > 0 {
		return nil
	}
	return errors.Join(s.children.close(), s.skills.close(), s.state.close())
}

// join returns a plugin as a user of what is shared, with the place among its like that the
// config returns it.
func (s *Shared) join(plugin host.Plugin, entry config.Plugin, c *children) host.Plugin {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users++
	return &member{Plugin: plugin, shared: s, entry: entry, children: c}
}

// member is a plugin that uses what is shared until it is closed.
type member struct {
	host.Plugin
	shared   *Shared
	entry    config.Plugin
	children *children
	closed   sync.Once
}

// Info implements host.Plugin.
func (m *member) Info() host.PluginInfo {
	info := m.Plugin.Info()
	info.Priority, info.Exclusive = m.entry.Priority, m.entry.Exclusive
	if info.Children {
		meta := maps.Clone(m.children.metadata())
		maps.Copy(meta, info.Metadata)
		info.Metadata = meta
	}
	if info.Stored && info.Broken == "" {
		info.Broken = m.shared.state.broken()
	}
	return info
}

// Close implements host.Plugin.
func (m *member) Close(ctx context.Context) error {
	err := m.Plugin.Close(ctx)
	m.closed.Do(func() { err = errors.Join(err, m.shared.Close()) })
	return err
}

// Unwrap returns the plugin itself, for what it implements beyond host.Plugin.
func (m *member) Unwrap() host.Plugin { return m.Plugin }

// StatePath is the file of the config's store.
func StatePath(cfg *config.Config) string { return filepath.Join(cfg.StateDir, store.FileName) }

// OpenState opens the store of the config; the caller closes it.
func OpenState(ctx context.Context, cfg *config.Config) (*store.SQLite, error) {
	return store.Open(ctx, StatePath(cfg), store.Options{Parts: StateParts(), Full: cfg.Store.Synchronous == config.SynchronousFull})
}

// MemoryEmbedder returns what makes the vectors of the config's memory: that of its first
// memory plugin, as all share one store.
func MemoryEmbedder(cfg *config.Config) (embed.Embedder, error) {
	opts := memory.DefaultOptions()
	for _, p := range cfg.Plugins {
		if p.Enabled && p.Type == string(protocol.CapMemory) {
			if err := p.Options.Decode(&opts); err != nil {
				return nil, err
			}
			break
		}
	}
	return opts.Embedder()
}

// state is the store that plugins share. It is opened when it is first needed, as
// that takes longer than a handshake may.
type state struct {
	cfg *config.Config

	mu   sync.Mutex
	made *store.SQLite // nil until it is needed; guarded by mu
	over bool          // guarded by mu
	seen fileSeen      // guarded by mu
}

// open returns the store. What kept it from opening may be gone at the next call.
func (s *state) open(ctx context.Context) (*store.SQLite, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return nil, store.ErrClosed
	}
	if s.made == nil {
		made, err := OpenState(ctx, s.cfg)
		if err != nil {
			return nil, err
		}
		s.made = made
	}
	return s.made, nil
}

// fileSeen is what was seen of a file that nobody had open: it is looked at once as it is.
type fileSeen struct {
	size    int64
	changed time.Time
	broken  string
}

// broken says why the file cannot be used; "" = it can, as far as its front tells.
func (s *state) broken() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	info, err := os.Stat(StatePath(s.cfg))
	if s.made != nil || err != nil {
		return ""
	}
	if s.seen.size != info.Size() || !s.seen.changed.Equal(info.ModTime()) {
		s.seen = fileSeen{size: info.Size(), changed: info.ModTime()}
		if err := store.Usable(context.Background(), StatePath(s.cfg)); err != nil {
			s.seen.broken = err.Error()
		}
	}
	return s.seen.broken
}

// kept reports whether there is a file to open.
func (s *state) kept() bool {
	_, err := os.Stat(StatePath(s.cfg))
	return err == nil
}

func (s *state) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	if s.made == nil {
		return nil
	}
	return s.made.Close()
}
