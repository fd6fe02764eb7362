package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mattn/go-isatty"

	"a2e/host/config"
	"a2e/host/store"
	"a2e/plugins"
	"a2e/plugins/memory"
	"a2e/protocol"
)

type stateCmd struct {
	Export  stateExportCmd  `cmd:"" help:"Write what the plugins keep as NDJSON."`
	Import  stateImportCmd  `cmd:"" help:"Take in what export wrote."`
	Reembed stateReembedCmd `cmd:"" help:"Make the vectors of the memory anew, after the embedding model has changed."`
	Path    statePathCmd    `cmd:"" help:"Print where the state is kept."`
}

type stateExportCmd struct {
	Part   []string `sep:"none" placeholder:"NAME" help:"Only what this plugin type keeps, such as memory; may be given several times."`
	Output string   `short:"o" default:"-" placeholder:"FILE" help:"Write to this file, which appears only once it is complete; - is stdout."`
}

// Run writes the state that there is. It makes no store.
func (e stateExportCmd) Run(cmd *commands, sys *System) error {
	known := partNames()
	for _, name := range e.Part {
		if !slices.Contains(known, name) {
			return fail(exitUsage, unknown("part", name, known))
		}
	}
	return cmd.withState(sys, true, func(ctx context.Context, cfg *config.Config, s *store.SQLite) error {
		return sys.output(e.Output, plugins.StatePath(cfg), func(w io.Writer) error { return s.Export(ctx, w, e.Part...) })
	})
}

func partNames() []string {
	var names []string
	for _, p := range plugins.StateParts() {
		names = append(names, p.Name)
	}
	return names
}

type stateImportCmd struct {
	File    string `arg:"" help:"What export wrote; - is stdin."`
	Replace bool   `help:"Empty the parts first that the import has. Without it, what is there stays, and the same thing in both is replaced."`
	JSON    bool   `name:"json" help:"Print the number of records of each kind as JSON."`
}

// Run takes the records in and tells how many of each kind there were.
func (i stateImportCmd) Run(cmd *commands, sys *System) error {
	in, done, err := i.open(sys)
	if err != nil {
		return err
	}
	defer done()
	var counts store.Counts
	err = cmd.withState(sys, false, func(ctx context.Context, _ *config.Config, s *store.SQLite) error {
		how := store.Merge
		if i.Replace {
			how = store.Replace
		}
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
	var words []string
	for _, kind := range slices.Sorted(maps.Keys(counts)) {
		words = append(words, fmt.Sprintf("%s %d", kind, counts[kind]))
	}
	if words == nil {
		words = []string{"no record"}
	}
	say(sys.Err, "imported: %s", strings.Join(words, ", "))
	return nil
}

// open returns the import as a file. What comes through a pipe is put into one first,
// as nobody else can write to the store while it is read.
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
	_ = os.Remove(in.Name()) // where an open file can be removed: nothing stays, whatever ends the reading
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

// Run makes the vectors with the embedder of the config. On a terminal it shows
// how far it is.
func (stateReembedCmd) Run(cmd *commands, sys *System) error {
	return cmd.withState(sys, true, func(ctx context.Context, cfg *config.Config, s *store.SQLite) error {
		if !hasMemory(cfg) { // the usual embedder would take the place of one that is only left out
			return fail(exitConfig, errors.New("no plugin of the config provides memory"))
		}
		embedder, err := plugins.MemoryEmbedder(cfg)
		if err != nil {
			return fail(exitConfig, err)
		}
		terminal, made := isatty.IsTerminal(sys.Err.Fd()), 0
		err = memory.Reembed(ctx, s, embedder, func(done, total int) {
			if made = done; terminal {
				fmt.Fprintf(sys.Err, "\r%d of %d", done, total)
			}
		})
		if terminal && made > 0 {
			fmt.Fprintln(sys.Err)
		}
		if err != nil {
			return err
		}
		say(sys.Err, "%d entries embedded with %s", made, embedder.Model().Name)
		return nil
	})
}

func hasMemory(cfg *config.Config) bool {
	return slices.ContainsFunc(cfg.Plugins, func(p config.Plugin) bool { return p.Enabled && p.Type == string(protocol.CapMemory) })
}

type statePathCmd struct{}

// Run prints the file of the store.
func (statePathCmd) Run(cmd *commands, sys *System) error {
	cfg, err := cmd.load(sys, sys.warn)
	if err != nil {
		return err
	}
	path, err := filepath.Abs(plugins.StatePath(cfg))
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(sys.Out, path)
	return err
}

// withState opens the store of the config, which has to be there already or is made.
func (c *commands) withState(sys *System, there bool, do func(context.Context, *config.Config, *store.SQLite) error) (err error) {
	ctx, stop := interruptible()
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends even what hangs, on a pipe that nobody reads say
	cfg, err := c.load(sys, sys.warn)
	if err != nil {
		return err
	}
	if _, err := os.Stat(plugins.StatePath(cfg)); there && errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s does not exist yet: nothing was kept so far", plugins.StatePath(cfg))
	}
	s, err := plugins.OpenState(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	return do(ctx, cfg, s)
}
