package host

import (
	"context"
	"crypto/sha256"
	"time"
)

// Override takes the place of what a component says of itself. It does not change.
type Override struct {
	// Timeout bounds a call of a tool in place of the tool's own limit; 0 = that one. The
	// request's limit holds beside it.
	Timeout time.Duration
	// Deferred says whether a tool is left out where deferred tools are not asked for; nil = as
	// the tool says.
	Deferred *bool
	Texts    map[string]Text // by name: one of the constants below
}

// The names of texts that an Override can have.
const (
	TextDescription  = "description"  // of a tool, of a prompt
	TextInstructions = "instructions" // of a skill
	TextPrompt       = "text"         // of a prompt that takes no arguments and is one message
)

// Text takes the place of another text, as long as the component has that.
type Text struct {
	Of [sha256.Size]byte // SHA-256 of the text that it was made for
	To string
}

// Text returns what stands in the place of a text of the component: the text itself where
// nothing was made for it. A nil Override has nothing.
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
	// Overrides returns those of the components of a kind, by name. The map does not change.
	// It must be quick: calls ask.
	Overrides(kind string) map[string]*Override
}

// Instructor is a plugin with skills whose instructions follow the overrides. Services.Instructions finds it.
type Instructor interface {
	// Instructions returns those of a skill, as they are by themselves; false = the plugin has no
	// such skill, or one without any.
	Instructions(skill string) (text string, ok bool)
}

// originalKey finds in a context that WithoutOverrides made it.
type originalKey struct{}

// WithoutOverrides returns a context for requests that want to see components as they are by
// themselves.
func WithoutOverrides(ctx context.Context) context.Context {
	return context.WithValue(ctx, originalKey{}, true)
}

// WantsOriginals reports whether a context is one of WithoutOverrides.
func WantsOriginals(ctx context.Context) bool { return ctx.Value(originalKey{}) != nil }

// limitedKey finds the tool whose call the host bounds in time.
type limitedKey struct{}

// WithLimit returns a context for a call of a tool that the host bounds in time.
func WithLimit(ctx context.Context, tool string) context.Context {
	return context.WithValue(ctx, limitedKey{}, tool)
}

// Limited reports whether the host bounds a call of a tool in time in place of the tool's
// own limit.
func Limited(ctx context.Context, tool string) bool { return ctx.Value(limitedKey{}) == tool }
