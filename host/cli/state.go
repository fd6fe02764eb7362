package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"a2e/host/config"
	"a2e/host/state/store"
	"a2e/plugins"
	"a2e/plugins/env"
	"a2e/plugins/memory"
	"a2e/protocol"
)

type stateCmd struct {
	Export  stateExportCmd  `cmd:"" help:"Write what the plugins keep as NDJSON."`
	Import  stateImportCmd  `cmd:"" help:"Import what export wrote."`
	Reembed stateReembedCmd `cmd:"" help:"Recompute the vectors of the memory, after the embedding model has changed."`
	Path    statePathCmd    `cmd:"" help:"Print where the state is kept."`
}

type stateExportCmd struct {
	Part   []string `complete:"part" sep:"none" placeholder:"NAME" help:"Only what this plugin type keeps, such as memory; may be given several times."`
	Output string   `short:"o" default:"-" placeholder:"FILE" help:"Write to this file, which appears only once it is complete; - is stdout."`
}

// Run writes the stored state. It does not create a store.
func (e stateExportCmd) Run(cmd *commands, sys *System) error {
	known := partNames()
	for _, name := range e.Part {
		if !slices.Contains(known, name) {
			return fail(exitUsage, unknown("part", name, known))
		}
	}
	return cmd.withState(sys, true, func(ctx context.Context, cfg *config.Config, s store.Store) error {
		if e.Output != "-" {
			defer sys.waitingFor("exporting")()
		}
		return sys.output(e.Output, plugins.StatePath(cfg),
			func(w io.Writer) error { return s.Export(ctx, w, e.Part...) })
	})
}

func partNames() []string {
	return each(plugins.StateParts(), func(p store.Part) string { return p.Name })
}

type stateImportCmd struct {
	File    string `arg:"" help:"What export wrote; - is stdin."`
	Replace bool   `help:"First delete all records of the imported parts. Without it only equal ones are replaced."`
	JSON    bool   `name:"json" help:"Print the number of records of each kind as JSON."`
}

// Run imports the records and prints how many of each kind there were.
func (i stateImportCmd) Run(cmd *commands, sys *System) error {
	in, done, err := i.open(sys)
	if err != nil {
		return err
	}
	defer done()
	var counts store.Counts
	err = cmd.withState(sys, false, func(ctx context.Context, _ *config.Config, s store.Store) error {
		how := store.Merge
		if i.Replace {
			how = store.Replace
		}
		defer sys.waitingFor("importing")()
		if counts, err = s.Import(ctx, in, how); err != nil {
			return fmt.Errorf("nothing was imported: %w", err)
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case i.JSON:
		return printJSON(sys.Out, counts)
	}
	words := each(slices.Sorted(maps.Keys(counts)),
		func(kind string) string { return fmt.Sprintf("%s %d", kind, counts[kind]) })
	if len(words) == 0 {
		words = []string{"no record"}
	}
	say(sys.Err, "imported: %s", strings.Join(words, ", "))
	return nil
}

// open returns the import as a regular file. Data from a pipe is first copied to a temporary file,
// because nobody else can write to the store while the import reads it.
func (i stateImportCmd) open(sys *System) (in *os.File, done func(), err error) {
	src := sys.In
	if i.File != "-" {
		if src, err = os.Open(i.File); err != nil {
			return nil, nil, err
		}
	}
	if info, err := src.Stat(); err == nil && info.Mode().IsRegular() {
		return src, func() { src.Close() }, nil
	}
	defer src.Close()
	if in, err = os.CreateTemp("", "a2e-import-"); err != nil {
		return nil, nil, err
	}
	_ = os.Remove(in.Name()) // on systems that allow this, the file is gone even after a crash
	done = func() {
		in.Close()
		_ = os.Remove(in.Name())
	}
	_, err = io.Copy(in, src)
	if err == nil {
		_, err = in.Seek(0, io.SeekStart)
	}
	if err != nil {
		done()
		return nil, nil, fmt.Errorf("nothing was imported: %w", err)
	}
	return in, done, nil
}

type stateReembedCmd struct{}

// Run computes the vectors with the embedder of the config. At a terminal it shows the progress.
func (stateReembedCmd) Run(cmd *commands, sys *System) error {
	return cmd.withState(sys, true, func(ctx context.Context, cfg *config.Config, s store.Store) error {
		if !hasMemory(cfg) { // or the default embedder would replace the configured one
			return fail(exitConfig, errors.New("no plugin of the config provides memory"))
		}
		embedder, err := plugins.MemoryEmbedder(cfg)
		if err != nil {
			return fail(exitConfig, err)
		}
		var made, all atomic.Int64
		done := sys.waiting(func() string { return fmt.Sprintf("making vectors: %d of %d", made.Load(), all.Load()) })
		err = memory.Reembed(ctx, s, embedder, func(done, total int) {
			made.Store(int64(done))
			all.Store(int64(total))
		})
		done()
		if err != nil {
			return err
		}
		if model := embedder.Model().Name; model != "" {
			say(sys.Err, "%s embedded with %s", protocol.Count(made.Load(), "entry"), model)
		} else {
			say(sys.Err, "the config has no embeddings: vectors were removed, and search is by words only")
		}
		return nil
	})
}

func hasMemory(cfg *config.Config) bool {
	return slices.ContainsFunc(cfg.Plugins, func(p config.Plugin) bool {
		return p.Enabled &&
			p.Type == string(protocol.CapMemory)
	})
}

type statePathCmd struct{}

// Run prints the file of the store, or the address of its server without the password.
func (statePathCmd) Run(cmd *commands, sys *System) error {
	cfg, err := cmd.load(sys, sys.warn)
	if err != nil {
		return err
	}
	place := plugins.StatePlace(cfg)
	if plugins.StatePath(cfg) != "" {
		if place, err = filepath.Abs(place); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintln(sys.Out, place)
	return err
}

// withState opens the store of the config for do. If there is set, a store that does not exist is
// an error; otherwise it is created.
func (c *commands) withState(sys *System, there bool, do func(context.Context, *config.Config,
	store.Store) error,
) (err error) {
	ctx, stop := interruptible()
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal also ends what hangs, for example on a pipe without a reader
	cfg, err := c.load(sys, sys.warn)
	if err != nil {
		return err
	}
	if there && !plugins.StateKept(cfg) {
		return fmt.Errorf("%s does not exist yet: nothing was kept so far", plugins.StatePath(cfg))
	}
	s, err := plugins.OpenState(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	// no part has the episodes in these files before that
	if err := env.TakeFormer(ctx, s, func(file string, err error) {
		sys.warn(fmt.Sprintf("%s: %s: %v", file, env.FormerLeftOut, err))
	}); err != nil {
		return err
	}
	return do(ctx, cfg, s)
}
