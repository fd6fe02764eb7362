package plugins

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"time"

	"a2e/host"
	"a2e/host/config"
	"a2e/host/dialect/fleet"
	"a2e/host/dialect/jsonrpc"
	"a2e/host/store"
	"a2e/plugins/env"
	"a2e/plugins/learning"
	"a2e/plugins/mcp"
	"a2e/plugins/memory"
	"a2e/plugins/planning"
	"a2e/protocol"
)

// StateParts lists what the plugins and the protocols of this build keep in the store.
func StateParts() []store.Part {
	return []store.Part{memory.Part(), planning.Part(), env.Part(), learning.Part(), mcp.Part(), fleet.Part(), jsonrpc.Part()}
}

// StatePath is the file of the config's store.
func StatePath(cfg *config.Config) string { return filepath.Join(cfg.StateDir, store.FileName) }

// OpenState opens the store of the config; the caller closes it.
func OpenState(ctx context.Context, cfg *config.Config) (*store.SQLite, error) {
	return store.Open(ctx, StatePath(cfg), store.Options{Parts: StateParts(), Full: cfg.Store.Synchronous == config.SynchronousFull})
}

// state is the store that plugins share. It is opened when it is first needed, as
// that takes longer than a handshake may, and closed with the last of them.
type state struct {
	cfg *config.Config

	mu    sync.Mutex
	made  *store.SQLite // nil until it is needed; guarded by mu
	seen  fileSeen      // guarded by mu
	users int           // guarded by mu
}

// open gives the store. What kept it from opening may be gone at the next call.
func (s *state) open(ctx context.Context) (store.Store, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.made == nil {
		if s.users == 0 {
			return nil, store.ErrClosed
		}
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

// kept tells whether there is a file to open.
func (s *state) kept() bool {
	_, err := os.Stat(StatePath(s.cfg))
	return err == nil
}

// share counts one more user, which is the plugin until it is closed.
func (s *state) share(plugin host.Plugin) host.Plugin {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users++
	return &keeper{Plugin: plugin, state: s}
}

// leave closes the store after its last user.
func (s *state) leave() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users--; s.users > 0 || s.made == nil {
		return nil
	}
	return s.made.Close()
}

// keeper is a plugin that uses the store.
type keeper struct {
	host.Plugin
	state  *state
	closed sync.Once
}

// Info implements host.Plugin. Memories, plans and what was learned are nothing without the
// store; other plugins go on without it.
func (k *keeper) Info() host.PluginInfo {
	info := k.Plugin.Info()
	switch info.Capability {
	case protocol.CapMemory, protocol.CapPlanning, protocol.CapLearning:
		info.Broken = k.state.broken()
	}
	return info
}

// Close implements host.Plugin.
func (k *keeper) Close(ctx context.Context) error {
	err := k.Plugin.Close(ctx)
	k.closed.Do(func() { err = errors.Join(err, k.state.leave()) })
	return err
}

// Unwrap gives the plugin itself.
func (k *keeper) Unwrap() host.Plugin { return k.Plugin }
