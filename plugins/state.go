package plugins

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"

	"a2e/host"
	"a2e/host/config"
	"a2e/host/fleet"
	"a2e/host/rpc"
	"a2e/host/store"
	"a2e/plugins/env"
	"a2e/plugins/learning"
	"a2e/plugins/mcp"
	"a2e/plugins/memory"
	"a2e/plugins/planning"
)

// StateParts lists what the plugins and the protocols of this build keep in the store.
func StateParts() []store.Part {
	return []store.Part{memory.Part(), planning.Part(), env.Part(), learning.Part(), mcp.Part(), fleet.Part(), rpc.Part()}
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

// Close implements host.Plugin.
func (k *keeper) Close(ctx context.Context) error {
	err := k.Plugin.Close(ctx)
	k.closed.Do(func() { err = errors.Join(err, k.state.leave()) })
	return err
}

// Unwrap gives the plugin itself.
func (k *keeper) Unwrap() host.Plugin { return k.Plugin }
