package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"a2e/host/config"
	"a2e/host/store"
	"a2e/plugins"
	"a2e/plugins/memory"
)

// storeCheck is what is known of the file that plugins keep their state in.
type storeCheck struct {
	OK        bool           `json:"ok"`
	Path      string         `json:"path"`
	Exists    bool           `json:"exists"`    // it is made when it is needed, so it is well without
	Bytes     int64          `json:"bytes"`     // with its log
	Parts     map[string]int `json:"parts"`     // the version of what each plugin type keeps
	Checksums bool           `json:"checksums"` // damage of its pages is found when they are read
	Model     string         `json:"model"`     // what made the vectors of the memory; "" = there are none, or the config has no memory
	Problems  []string       `json:"problems"`
	Advice    string         `json:"advice"` // what to do about them, or ""
}

// checkStore reads all of the store, if there is one; it makes none.
func checkStore(ctx context.Context, cfg *config.Config) *storeCheck {
	path := plugins.StatePath(cfg)
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	r, err := store.Check(ctx, path, store.Options{Parts: plugins.StateParts()})
	c := &storeCheck{Path: r.Path, Exists: r.Exists, Bytes: r.Bytes, Parts: r.Parts, Checksums: r.Checksums, Problems: r.Problems}
	switch {
	case err != nil:
		c.Problems = append(c.Problems, strings.ReplaceAll(err.Error(), "\n", "; "))
		c.Advice = storeAdvice(err)
	case len(c.Problems) > 0:
		c.Advice = storeAdvice(store.ErrCorrupt)
	case c.Exists:
		if c.Model, err = storedModel(ctx, cfg); err != nil {
			c.Problems = append(c.Problems, err.Error())
		}
	}
	c.OK = len(c.Problems) == 0
	return c
}

// storedModel names the model of the store's vectors. The error says that the
// config asks for another.
func storedModel(ctx context.Context, cfg *config.Config) (name string, err error) {
	if !hasMemory(cfg) {
		return "", nil
	}
	embedder, err := plugins.MemoryEmbedder(cfg)
	if err != nil {
		return "", err
	}
	s, err := plugins.OpenState(ctx, cfg)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	model, err := memory.Stored(ctx, s, embedder.Model())
	return model.Name, err
}

// storeAdvice says what to do about a file that cannot be used.
func storeAdvice(err error) string {
	switch {
	case errors.Is(err, store.ErrForeign):
		return "move the file away, or set another state_dir"
	case errors.Is(err, store.ErrNewer):
		return "use the newer a2e that wrote it, or set another state_dir"
	case errors.Is(err, store.ErrCorrupt):
		return "stop the hosts that use it and keep a copy of the file; save what can still be read with `a2e state export -o FILE`, move the file and those named alike away, then `a2e state import FILE`"
	}
	return "see that this user may read and write the file and its folder, and that there is space left"
}

func (c *storeCheck) section() section {
	s := section{title: "store"}
	if c == nil {
		return s
	}
	for _, p := range c.Problems {
		s.row("wrong", p)
	}
	if c.Advice != "" {
		s.row("advice", c.Advice)
	}
	switch {
	case !c.Exists:
		s.row("ok", noted(c.Path, "does not exist yet; it is made when it is needed"))
	case c.OK:
		s.row("ok", noted(c.Path, fmt.Sprintf("%d KiB", (c.Bytes+1023)/1024)))
	}
	if c.Exists && c.OK && !c.Checksums {
		s.row("note", "its pages have no checksums; they get them when a host opens it alone, or by export and import")
	}
	for _, name := range slices.Sorted(maps.Keys(c.Parts)) {
		s.row("part", fmt.Sprintf("%s, version %d", name, c.Parts[name]))
	}
	if c.Model != "" {
		s.row("vectors", "made with "+c.Model)
	}
	return s
}
