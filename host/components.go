package host

import (
	"context"
	"crypto/sha256"
	"time"
)

// The kinds of components.
const (
	KindTool   = "tool"
	KindSkill  = "skill"
	KindEnv    = "env"
	KindWorker = "worker"
	KindServer = "server" // of MCP
	KindChain  = "chain"
	KindPrompt = "prompt" // of an MCP server; see protocol.MCPName
)

// CallOutcome is the outcome of one call of a component.
type CallOutcome struct {
	Kind        string
	Component   string // the tool's, skill's, environment's… name
	Correlation string // the request's correlation_id, or its id; feedback names the call by it
	Success     bool
	Duration    time.Duration
	Ended       time.Time // zero = now
	Reward      *float64  // of an environment's step
}

// CallCounter is a plugin that counts calls.
type CallCounter interface {
	// CountCall counts one call. It must not block and takes well under a microsecond, because it is called on
	// the way of every answer.
	CountCall(CallOutcome)
}

// Weigher is a plugin that knows how well components did.
type Weigher interface {
	// Weight returns the routing weight of a component: 1 is neutral, more is better, never
	// negative. It must be quick.
	Weight(kind, component string) float64
}

// Override replaces things that a component says about itself. It does not change.
type Override struct {
	// Timeout bounds a call of a tool, in place of the tool's own limit; 0 = the tool's own limit. The limit of the
	// request applies as well.
	Timeout time.Duration
	// Deferred says whether a tool is left out of lists that do not ask for deferred tools; nil = as the tool says.
	Deferred *bool
	Texts    map[string]Text // by name: one of the constants below
}

// The names of texts that an Override can have.
const (
	TextDescription  = "description"  // of a tool, of a prompt
	TextInstructions = "instructions" // of a skill
	TextPrompt       = "text"         // of a prompt that takes no arguments and is one message
)

// Text replaces another text, as long as the component still has that text.
type Text struct {
	Of [sha256.Size]byte // SHA-256 of the text that it was made for
	To string
}

// Text returns the replacement of a text of the component, or the text itself if there is none. A nil Override
// replaces nothing.
func (o *Override) Text(name, original string) string {
	if o != nil {
		if t, ok := o.Texts[name]; ok && t.Of == sha256.Sum256([]byte(original)) {
			return t.To
		}
	}
	return original
}

// Overrider is a plugin that keeps overrides. Services.Override finds it.
type Overrider interface {
	// Overrides returns the overrides of the components of a kind, by name. The map does not change. Overrides must
	// be quick, because it is called for each call of a tool.
	Overrides(kind string) map[string]*Override
}

// Instructor is a plugin with skills whose instructions follow the overrides. Services.Instructions finds it.
type Instructor interface {
	// Instructions returns the instructions of a skill without overrides; false = the plugin has no such skill, or
	// the skill has no instructions.
	Instructions(skill string) (text string, ok bool)
}

// originalKey is the context key that WithoutOverrides sets.
type originalKey struct{}

// WithoutOverrides returns a context for requests that want components without overrides.
func WithoutOverrides(ctx context.Context) context.Context {
	return context.WithValue(ctx, originalKey{}, true)
}

// WantsOriginals reports whether a context comes from WithoutOverrides.
func WantsOriginals(ctx context.Context) bool { return ctx.Value(originalKey{}) != nil }

// limitedKey is the context key of the tool whose call the host bounds in time.
type limitedKey struct{}

// WithLimit returns a context for a call of a tool that the host bounds in time.
func WithLimit(ctx context.Context, tool string) context.Context {
	return context.WithValue(ctx, limitedKey{}, tool)
}

// Limited reports whether the host bounds a call of a tool in time in place of the tool's
// own limit.
func Limited(ctx context.Context, tool string) bool { return ctx.Value(limitedKey{}) == tool }
