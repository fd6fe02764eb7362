// Package snapshot keeps the state of agents under a name, and puts it back.
//
//	snapshot.go  where snapshots are kept     content.go   what is in one: save, restore
//	rows.go      in rows, of a SQLite file of   sessions.go  what sessions had in memory, in files
//	             its own or of the state        shared.go    the same in rows of the state
//	file.go      in a folder, one file each; files that are whole or not there
package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"a2e/host/config"
	"a2e/host/schema"
	"a2e/host/store"
)

// Store keeps snapshots by name. What is in one it does not look at; it keeps it
// with a checksum and gives it back whole or with an error.
type Store interface {
	// Save keeps what write writes under info.Name, as of info.Made. It returns the
	// Info of what it kept. The error wraps ErrExists when the name is taken and
	// replace is false. After any error there is what there was.
	Save(ctx context.Context, info Info, replace bool, write func(io.Writer) (Holds, error)) (Info, error)
	// Load returns what was saved. Reading ends with io.EOF only when all of it was
	// there and undamaged. The error wraps ErrUnknown when there is no such snapshot.
	Load(ctx context.Context, name string) (io.ReadCloser, error)
	// List returns all snapshots, the oldest first.
	List(ctx context.Context) ([]Info, error)
	// Delete removes one. The error wraps ErrUnknown when there is none.
	Delete(ctx context.Context, name string) error
	// Close lets go what the store has open.
	Close() error
}

// What keeps a snapshot from being saved, loaded or deleted.
var (
	ErrUnknown = errors.New("there is no such snapshot")
	ErrExists  = errors.New("there is a snapshot of that name")
)

// Info is one snapshot.
type Info struct {
	Name    string    `json:"name"`
	Made    time.Time `json:"made"`             // in UTC, to the second
	Bytes   int64     `json:"bytes"`            // that it takes up
	Holds   Holds     `json:"holds,omitzero"`   // what is in it; nothing where that is not known
	Problem string    `json:"problem,omitzero"` // why it cannot be used; "" = nothing is known to be wrong
}

// Holds is how many sessions ("session"), and records of each kind, a snapshot has.
type Holds map[string]int

// String is what it holds in words, in the order of the kinds.
func (h Holds) String() string {
	var words []string
	for _, kind := range slices.Sorted(maps.Keys(h)) {
		words = append(words, fmt.Sprintf("%d %s", h[kind], kind))
	}
	if words == nil {
		return "nothing"
	}
	return strings.Join(words, ", ")
}

// CheckName reports whether a snapshot can have this name.
func CheckName(name string) error {
	const plain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-."
	if name == "" || len(name) > 100 || name[0] == '.' || strings.Trim(name, plain) != "" {
		return fmt.Errorf("%.120q cannot be a snapshot's name: that has 1 to 100 of the characters A-Z a-z 0-9 . _ - and begins with no dot", name)
	}
	return nil
}

// Open returns the store that the config names; stateDir is the config's state_dir, state opens the store of
// the state with Parts; nil = it has none of these. Nothing is opened or made before it is needed. The error says what does not fit
// in the config.
func Open(cfg config.SnapshotStore, stateDir string, state store.Opener) (Store, error) {
	switch cfg.Type {
	case "sqlite":
		path, err := pathOf(cfg, stateDir, "snapshots.db", "path")
		file := &sqliteFile{path: path}
		return &rowStore{file.open, file}, err
	case "file":
		// root is what the Python host calls it
		path, err := pathOf(cfg, stateDir, "snapshots", "path", "root")
		return &fileStore{dir: path}, err
	}
	if cfg.Type != config.SnapshotsInState || state == nil {
		return nil, fmt.Errorf("snapshot_store.type: this host has no store %q; it has sqlite and file, and postgres where the state is on a PostgreSQL server", cfg.Type)
	}
	if len(cfg.Config) > 0 {
		return nil, errors.New("snapshot_store.config: a store of type postgres takes none: snapshots are where the state is")
	}
	return &rowStore{open: state}, nil
}

// pathOf reads the options of a store: where it is, under one of these keys.
func pathOf(cfg config.SnapshotStore, stateDir, usual string, keys ...string) (string, error) {
	path := usual
	for _, key := range slices.Sorted(maps.Keys(cfg.Config)) {
		if !slices.Contains(keys, key) {
			return "", fmt.Errorf("snapshot_store.config: unknown key %.40q; a store of type %s takes %q and nothing else", key, cfg.Type, keys[0])
		}
		text, ok := cfg.Config[key].(string)
		if !ok || text == "" {
			return "", fmt.Errorf("snapshot_store.config.%s must be a path, relative to state_dir", key)
		}
		path = text
	}
	if len(cfg.Config) > 1 {
		return "", fmt.Errorf("snapshot_store.config: %s mean the same; give one of them", strings.Join(keys, " and "))
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(stateDir, path)
	}
	return path, nil
}

// unknown is the error for a name that List does not have.
func unknown(ctx context.Context, s Store, name string) error {
	all, err := s.List(ctx)
	if err != nil {
		return err
	}
	names := make([]string, len(all))
	for i, info := range all {
		names[i] = info.Name
	}
	if len(names) == 0 {
		return fmt.Errorf("%w as %q: there are none", ErrUnknown, name)
	}
	hint := strings.TrimLeft(schema.DidYouMean(name, names)+" there are: ", " ")
	return fmt.Errorf("%w as %q; %s%s", ErrUnknown, name, hint, strings.Join(names, ", "))
}

func exists(name string) error { return fmt.Errorf("%w: %q", ErrExists, name) }
