package config

import (
	"crypto/sha256"
	"fmt"
	"io"

	"a2e/host/redact"
)

const redacted = redact.Text

// Secret is a text that no log, error or encoding shows. Its zero value is "".
type Secret struct {
	text *string // behind a pointer, which fmt does not follow in an unexported field
}

// NewSecret wraps s.
func NewSecret(s string) Secret { return Secret{text: &s} }

// Reveal returns the text. Compare tokens by Hash instead.
func (s Secret) Reveal() string {
	if s.text == nil {
		return ""
	}
	return *s.text
}

// Hash is the SHA-256 of the text, for comparing in constant time.
func (s Secret) Hash() [sha256.Size]byte { return sha256.Sum256([]byte(s.Reveal())) }

// String returns "[redacted]", also for the empty secret.
func (Secret) String() string { return redacted }

// GoString returns "[redacted]".
func (Secret) GoString() string { return redacted }

// Format writes "[redacted]" for every verb.
func (Secret) Format(w fmt.State, _ rune) { _, _ = io.WriteString(w, redacted) }

// MarshalJSON returns "[redacted]" as a JSON string.
func (Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }

// MarshalText returns "[redacted]".
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }
