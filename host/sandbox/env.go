package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"a2e/protocol/fleet"
)

// maxEnvName is the longest name of a variable, in bytes.
const maxEnvName = 256

// EnvError is a variable that a request may not set.
type EnvError struct {
	Name   string
	Reason string
}

// Error implements error.
func (e *EnvError) Error() string {
	return fmt.Sprintf("environment variable %q is refused: %s", e.Name, e.Reason)
}

// baseEnv is what every child gets: PATH of fixed folders, HOME, and of the
// host's own environment only what safeNames lists. Nothing else passes, so
// that a token in the host's environment stays there.
type baseEnv struct {
	vars map[string]string // without HOME
	home *homeDir
	net  map[string]string // further ones, of children with network

	confined bool // the sandbox is not off
}

// EnvConfined names the variable that tells a program that it runs in the sandbox of a host.
// A host that finds it is within the walls of the one that started it.
const EnvConfined = "A2E_SANDBOX"

func newBaseEnv(environ, path []string, home string) (baseEnv, error) {
	if home != "" && !filepath.IsAbs(home) {
		return baseEnv{}, fmt.Errorf("sandbox: home %q is not absolute", home)
	}
	for _, dir := range path {
		if !filepath.IsAbs(dir) || strings.ContainsRune(dir, filepath.ListSeparator) {
			return baseEnv{}, fmt.Errorf("sandbox: PATH folder %q is not an absolute path without %q", dir, filepath.ListSeparator)
		}
	}
	vars := map[string]string{"LANG": "C.UTF-8"}
	for _, entry := range environ {
		name, value, ok := strings.Cut(entry, "=")
		if ok && isSafeName(name) && value != "" {
			vars[name] = value
		}
	}
	vars["PATH"] = strings.Join(path, string(filepath.ListSeparator))
	return baseEnv{vars: vars, home: &homeDir{fixed: home}, net: NetworkEnv(environ)}, nil
}

// build gives the whole environment of one child, sorted.
func (b baseEnv) build(policy *Policy) ([]string, error) {
	for _, name := range slices.Sorted(maps.Keys(policy.Env)) {
		if err := CheckEnv(name, policy.Env[name]); err != nil {
			return nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(policy.HostEnv)) {
		if err := checkEnvSyntax(name, policy.HostEnv[name]); err != nil {
			return nil, err
		}
	}
	home, tmp, err := b.home.of(policy.Network)
	if err != nil {
		return nil, err
	}
	if policy.Scratch != "" {
		home, tmp = cmp.Or(policy.HomeDir, policy.Scratch), policy.Scratch
	}
	all := maps.Clone(b.vars)
	if policy.Network != NetworkNone {
		b.addNetwork(all, policy.Home == HomeOwn || policy.HomeDir != "")
	}
	all["HOME"], all["TMPDIR"] = home, tmp
	if policy.Dir != "" {
		all["PWD"] = policy.Dir
	}
	maps.Copy(all, policy.Env)
	maps.Copy(all, policy.HostEnv)
	if b.confined {
		all[EnvConfined] = "1"
	}
	env := make([]string, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		env = append(env, name+"="+all[name])
	}
	return env, nil
}

func (b baseEnv) close() error { return b.home.close() }

// homeDir is a private folder that is made when it is first needed: it holds the
// children's HOME, unless that is given, and their temporary files.
type homeDir struct {
	fixed string // the given HOME

	mu   sync.Mutex
	made string   // guarded by mu
	lock *os.File // guarded by mu; tells other hosts that the folder is in use

	clean Cleaner // of scratch folders
	sweep Cleaner // of what other hosts left
}

// get gives the children's HOME and TMPDIR.
func (h *homeDir) get() (home, tmp string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.made == "" {
		if err := h.makeLocked(); err != nil {
			return "", "", fmt.Errorf("sandbox: private folder: %w", err)
		}
	}
	home = h.fixed
	if home == "" {
		home = filepath.Join(h.made, "home")
	}
	return home, filepath.Join(h.made, "tmp"), nil
}

// folder gives the private folder; "" = there is none.
func (h *homeDir) folder() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.made
}

// privatePrefix begins the name of each private folder.
const privatePrefix = "a2e-home-"

func (h *homeDir) makeLocked() error {
	h.sweep.Do(func(ctx context.Context) { removeStale(ctx, os.TempDir()) })
	dir, err := os.MkdirTemp("", privatePrefix)
	if err != nil {
		return err
	}
	if h.lock, err = lockDir(dir); err != nil {
		return errors.Join(err, os.Remove(dir))
	}
	h.made = dir
	return errors.Join(os.Mkdir(filepath.Join(dir, "home"), 0o700), os.Mkdir(filepath.Join(dir, "tmp"), 0o700))
}

// staleAfter is how old a private folder must be before it counts as left
// behind: its owner locks it a moment after it was made.
const staleAfter = time.Minute

// removeStale removes the private folders of hosts that were killed, or that ended
// before theirs was empty.
func removeStale(ctx context.Context, temp string) {
	dirs, _ := filepath.Glob(filepath.Join(temp, privatePrefix+"*")) // the one error is a bad pattern
	for _, dir := range dirs {
		info, err := os.Lstat(dir)
		if err != nil || !info.IsDir() || !ownedByUs(info) || time.Since(info.ModTime()) < staleAfter {
			continue
		}
		if lock, err := lockDir(dir); err == nil {
			_ = RemoveTree(ctx, dir) // the next host tries again
			lock.Close()
		}
	}
}

// close removes the folder. What it has no time for is left to the next host.
func (h *homeDir) close() error {
	h.clean.End(0)
	h.sweep.End(0)
	h.mu.Lock()
	made, lock := h.made, h.lock
	h.made, h.lock = "", nil
	h.mu.Unlock()
	if made == "" {
		return nil
	}
	err := RemoveSoon(made)
	if errors.Is(err, context.DeadlineExceeded) {
		err = nil
	}
	return errors.Join(err, lock.Close())
}

// isSafeName tells which variables of the host's environment a child sees. A host that
// serves a child agent hands on as whom, so that a host which it starts, by whatever way,
// grants no more. What keeps a program that drops the variable in is the sandbox.
func isSafeName(name string) bool {
	return strings.HasPrefix(name, "LC_") || name == fleet.EnvAgent || slices.Contains(safeNames(), name)
}

func lookup(environ []string, name string) string {
	for _, entry := range environ {
		if k, v, ok := strings.Cut(entry, "="); ok && k == name {
			return v
		}
	}
	return ""
}

// CheckEnv tells whether a request may set this variable. Names that change
// which code a program loads or runs are refused, whatever the value; so are
// names that are no plain identifiers. The error is an *EnvError.
func CheckEnv(name, value string) error {
	if err := checkEnvSyntax(name, value); err != nil {
		return err
	}
	upper := strings.ToUpper(name)
	if slices.Contains(harmless(), upper) {
		return nil
	}
	if slices.Contains(steering(), upper) || slices.ContainsFunc(steeringPrefixes(), func(p string) bool {
		return strings.HasPrefix(upper, p)
	}) {
		return &EnvError{name, "it can change which code a program runs; pass what you need as an argument"}
	}
	return nil
}

func checkEnvSyntax(name, value string) error {
	switch {
	case name == "":
		return &EnvError{name, "the name is empty"}
	case len(name) > maxEnvName:
		return &EnvError{name[:maxEnvName], fmt.Sprintf("the name is longer than %d bytes", maxEnvName)}
	case strings.IndexByte(value, 0) >= 0:
		return &EnvError{name, "the value holds a NUL byte"}
	}
	for i := range len(name) {
		c := name[i]
		letter := c == '_' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return &EnvError{name, "a name is made of ASCII letters, digits and _ and starts with no digit"}
		}
	}
	return nil
}
