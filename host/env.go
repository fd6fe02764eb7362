package host

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/rs/zerolog"

	"a2e/host/guard/redact"
	"a2e/host/guard/wall"
	"a2e/host/sandbox"
	"a2e/host/state/checkpoint"
	"a2e/host/state/store"
	"a2e/protocol"
	"a2e/protocol/fleet"
)

// Env is what a plugin gets when it is made: one struct for all plugins. A field that is nil or "" is absent;
// WithDefaults sets the fields that have a default.
type Env struct {
	Log       zerolog.Logger
	Now       func() time.Time // default: time.Now
	Workspace string           // the folder that the agent works in
	StateDir  string           // the host's own folder; "" = nothing is kept
	// URL of the state on a PostgreSQL server, with its password; "" = the state is a file in StateDir
	StateURL       string
	UserDir        string       // the user's config folder of a2e; its skills lie in "skills"
	MaxOutputBytes int          // limits.max_output_bytes; 1 MiB
	MaxLineBytes   int          // limits.max_line_bytes; 16 MiB
	Exclusive      bool         // the config has exclusive: true for this plugin
	Wall           *wall.Wall   // around the host's own files; nil = none are within reach
	Secrets        *redact.Set  // no output, log or error shows these; nil = none
	Agent          *fleet.Agent // the child agent that this host serves; nil = no particular one

	// Launcher returns the launcher of programs, which is made when it is first needed. Whoever made Env closes it,
	// after the plugin.
	Launcher func() (*sandbox.Launcher, error)
	// Confined makes a launcher of programs that may change one folder only. The plugin closes it.
	Confined func(Confinement) (*sandbox.Launcher, error)
	// ToolBox makes the tools of one folder. The plugin closes it.
	ToolBox func(ToolBoxOptions) (ToolBox, error)

	// Store returns the store with the plugin's component. The first call opens it, so a plugin calls it only when
	// it needs the store. It is closed after the plugin.
	Store store.Opener
	// StoreExists reports whether there is a store to open. It makes none. nil = there is one if Store is set.
	StoreExists func() bool

	// Checkpoints keeps the checkpoints of Workspace; nil = none are made.
	Checkpoints        *checkpoint.Keeper
	RestoreCheckpoints bool // agents may restore checkpoints

	// MCPClient returns the capabilities of the one MCP client of the host, as JSON. It waits until the client has
	// sent them, and returns nil if ctx ends before. If MCPClient itself is nil, the agent may speak A2E.
	MCPClient func(ctx context.Context) jsontext.Value
}

// WithDefaults returns e with Now, StoreExists, MaxOutputBytes and MaxLineBytes set.
func (e Env) WithDefaults() Env {
	if e.Now == nil {
		e.Now = time.Now
	}
	if e.StoreExists == nil {
		e.StoreExists = func() bool { return e.Store != nil }
	}
	if e.MaxOutputBytes <= 0 {
		e.MaxOutputBytes = 1 << 20
	}
	if e.MaxLineBytes <= 0 {
		e.MaxLineBytes = 16 << 20
	}
	return e
}

// Kept is the store as the requests of a plugin use it. It logs failures of the store, but not errors of the
// request itself.
type Kept struct {
	store.Opener
	log    zerolog.Logger
	plugin string
}

// Kept returns the store of the plugin called name.
func (e Env) Kept(name string) Kept {
	return Kept{e.Store, e.Log, name}
}

// Read calls Read of store.Opener, and logs a failure.
func (k Kept) Read(ctx context.Context, fn func(*store.Tx) error) error {
	return k.Noted(ctx, k.Opener.Read(ctx, fn))
}

// Write calls Write of store.Opener, and logs a failure.
func (k Kept) Write(ctx context.Context, fn func(*store.Tx) error) error {
	return k.Noted(ctx, k.Opener.Write(ctx, fn))
}

// Noted returns err. It logs err unless it is the request's own failure.
func (k Kept) Noted(ctx context.Context, err error) error {
	var refusal *protocol.Error
	if err != nil && ctx.Err() == nil && !errors.As(err, &refusal) {
		k.log.Error().Str("plugin", k.plugin).Err(err).Msg("the store failed")
	}
	return err
}

// Confinement says what programs may reach; see Env.Confined.
type Confinement struct {
	Folder  string      // absolute; the one that they may change
	Is      os.FileInfo // the file that Folder must still be; nil = any file of that name
	Read    []string    // what they may read in addition to what the config says
	Hidden  string      // absolute folder that they cannot see; "" = none
	Counted bool        // what they leave in Folder counts for children.disk_bytes
}
