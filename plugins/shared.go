package plugins

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/config"
	"a2e/host/guard/wall"
	"a2e/host/observe/event"
	"a2e/host/sandbox"
	"a2e/host/state/checkpoint"
	"a2e/host/state/store"
	"a2e/plugins/memory"
	"a2e/plugins/memory/embed"
	"a2e/protocol"
)

// Shared is what the plugins of one host and the host itself have in common: the store and the launchers
// of child processes. Each is made when it is first needed, and all are closed with the last user.
type Shared struct {
	children, skills *children
	state            *state
	disk             *sandbox.Disk // nil = no bound

	// Checkpoints keeps those of the workspace; nil = none are made. It opens nothing before the first
	// checkpoint.
	Checkpoints *checkpoint.Keeper

	mu    sync.Mutex
	users int // guarded by mu
}

// NewShared makes what a host of the config shares. events receives events of children; nil = they are
// only logged. The caller closes it after the plugins.
func NewShared(cfg *config.Config, log zerolog.Logger, events *event.Stream) *Shared {
	s := newShared(cfg, log, events)
	s.users++
	return s
}

func newShared(cfg *config.Config, log zerolog.Logger, events *event.Stream) *Shared {
	if events == nil {
		events = event.New(cfg.Secrets).WithLog(log)
	}
	s := &Shared{state: &state{cfg: cfg}, disk: newDisk(cfg)}
	s.children = newChildren(cfg, Mode(cfg), s.disk, log, events)
	s.skills = newChildren(cfg, skillMode(cfg), s.disk, log, events)
	if cfg.Checkpoints.Enabled {
		s.Checkpoints = s.KeeperOf(cfg, log)
	}
	return s
}

// KeeperOf makes the keeper of checkpoints for the config's workspace. Its git starts as other children
// do.
func (s *Shared) KeeperOf(cfg *config.Config, log zerolog.Logger) *checkpoint.Keeper {
	c := cfg.Checkpoints
	workspace := wall.Canonical(cfg.Workspace)
	return checkpoint.Open(checkpoint.Options{
		Workspace: workspace, StateDir: cfg.StateDir, Hidden: cfg.Wall.Inside(workspace), MaxCount: c.MaxCount,
		MaxBytes:     c.MaxBytes,
		MaxFileBytes: c.MaxFileBytes, MaxFiles: c.MaxFiles, IncludeIgnored: c.IncludeIgnored,
		Log: log, Launcher: s.Launcher,
	})
}

// checkGit refuses checkpoints if git, which keeps them, is missing.
func checkGit(cfg *config.Config) error {
	if !cfg.Checkpoints.Enabled {
		return nil
	}
	dirs := sandbox.SafePath(os.Getenv("PATH"), cfg.Workspace)
	if _, err := sandbox.LookPath("git", dirs, cfg.Workspace); err != nil {
		return fmt.Errorf("checkpoints: git keeps them, and there is none: %w; install git, or remove checkpoints "+
			"from the config", err)
	}
	return nil
}

// Store returns the store of the config.
func (s *Shared) Store(ctx context.Context) (store.Store, error) {
	return s.state.open(ctx)
}

// Launcher returns the launcher of child processes.
func (s *Shared) Launcher() (*sandbox.Launcher, error) { return s.children.launcher() }

// Processes returns the number of running children.
func (s *Shared) Processes() int { return s.children.running() + s.skills.running() }

// Close counts one user less, and closes everything after the last one.
func (s *Shared) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users--; s.users > 0 {
		return nil
	}
	var err error
	if s.Checkpoints != nil {
		err = s.Checkpoints.Close()
	}
	return errors.Join(err, s.children.close(), s.skills.close(), s.state.close())
}

// join counts a plugin as a user of what is shared. The returned plugin reports the priority and exclusive
// of its config entry.
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
	return info
}

// Describe implements host.Describer: it adds how children are confined, and why the store is broken.
func (m *member) Describe(info host.PluginInfo) host.PluginInfo {
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

// Unwrap returns the inner plugin, for interfaces beyond host.Plugin.
func (m *member) Unwrap() host.Plugin { return m.Plugin }

// StatePath returns the file of the config's store; "" = the state is on a PostgreSQL server.
func StatePath(cfg *config.Config) string {
	if cfg.Postgres() != "" {
		return ""
	}
	return filepath.Join(cfg.StateDir, store.FileName)
}

// StatePlace returns where the state is, without secrets.
func StatePlace(cfg *config.Config) string {
	if _, _, place, err := store.PostgresConfig(cfg.Postgres()); err == nil {
		return place
	}
	return StatePath(cfg)
}

// StateKept reports whether the state exists already; for a server it is always true.
func StateKept(cfg *config.Config) bool {
	_, err := os.Stat(StatePath(cfg))
	return err == nil || cfg.Postgres() != ""
}

// OpenState opens the store of the config; the caller closes it.
func OpenState(ctx context.Context, cfg *config.Config) (store.Store, error) {
	opts := store.Options{Parts: StateParts(), Full: cfg.Store.Synchronous == config.SynchronousFull}
	if address := cfg.Postgres(); address != "" {
		place := sha256.Sum256([]byte(StatePlace(cfg))) // this folder is for that state alone
		return store.OpenPostgres(address, filepath.Join(cfg.StateDir, "postgres-"+hex.EncodeToString(place[:4])), opts)
	}
	opened, err := store.Open(ctx, StatePath(cfg), opts)
	if err != nil { // a nil *store.SQLite is not a nil store.Store
		return nil, err
	}
	return opened, nil
}

// MemoryEmbedder returns the embedder of the config's first memory plugin, as all memory plugins share one
// store.
func MemoryEmbedder(cfg *config.Config) (embed.Embedder, error) {
	opts, err := firstOptions(cfg, protocol.CapMemory, memory.DefaultOptions())
	if err != nil {
		return nil, err
	}
	return opts.Embedder()
}

// firstOptions returns the options of the config's first enabled plugin of a type, or the defaults.
func firstOptions[Options any](cfg *config.Config, of protocol.Capability, opts Options) (Options, error) {
	for _, p := range cfg.Plugins {
		if p.Enabled && p.Type == string(of) {
			err := p.Options.Decode(&opts)
			return opts, err
		}
	}
	return opts, nil
}

// state is the store that plugins share. It is opened when it is first needed, as that can take longer
// than a handshake may.
type state struct {
	cfg *config.Config

	mu   sync.Mutex
	made store.Store // nil until it is needed; guarded by mu
	over bool        // guarded by mu
	seen fileSeen    // guarded by mu
}

// open returns the store. After an error the next call tries again.
func (s *state) open(ctx context.Context) (store.Store, error) {
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

// fileSeen is the last check of the store's file, which is checked again only after it has changed.
type fileSeen struct {
	size    int64
	changed time.Time
	broken  string
}

// broken returns why the store's file cannot be used; "" = it can, as far as a look at its beginning
// shows.
func (s *state) broken() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	info, err := os.Stat(StatePath(s.cfg))
	if s.made != nil || err != nil { // it is open, or there is no file, as on a server
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

// kept reports whether a state exists.
func (s *state) kept() bool { return StateKept(s.cfg) }

func (s *state) close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	if s.made == nil {
		return nil
	}
	return s.made.Close()
}
