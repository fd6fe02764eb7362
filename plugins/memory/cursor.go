package memory

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"strings"

	"github.com/go-json-experiment/json"

	"a2e/host/state/store"
	"a2e/protocol"
)

const (
	maxCursor  = 64 << 10 // bytes
	signature  = 16       // bytes at the front of a cursor
	cursorMark = "c"      // first character: a cursor that begins with - would be read as a flag
)

// cursor is where the previous answer ended. It stays valid when entries are added or removed: it
// has the ids that were sent, or the id below which the entries are still to be sent.
type cursor struct {
	Of      []byte  `json:"of"`              // hash of what the request asks for
	Durable int64   `json:"d,omitzero"`      // the last id sent from the shared store; 0 = none
	Working int64   `json:"w,omitzero"`      // the last id sent from the working tier; 0 = none
	Given   int     `json:"n,omitzero"`      // number of entries in all previous answers
	Ranked  []int64 `json:"ranked,omitzero"` // with a query: the ids sent; those of the working tier are negative
	Last    *string `json:"last,omitzero"`   // in a list of namespaces: the last one sent
}

// subject is the part of a request that must be the same for all pages of a cursor.
type subject struct {
	MemoryID, Agent, Query string
	Select                 protocol.MemorySelection
	MinScore               float64
	ListNamespaces         bool
	MaxDepth               int
}

// asked returns the hash of the subject of a request.
func asked(agent string, req *protocol.MemoryRetrieveRequest) ([]byte, error) {
	raw, err := json.Marshal(subject{
		req.MemoryID, agent, req.Query, req.MemorySelection, req.MinScore,
		req.ListNamespaces, req.MaxDepth,
	}, json.Deterministic(true))
	sum := sha256.Sum256(raw)
	return sum[:signature], err
}

// secret returns the key that signs cursors, from the shared store.
func (p *Plugin) secret(ctx context.Context) (secret []byte, err error) {
	s, err := p.repositoryOf(ctx, protocol.TierEpisodic, true)
	if err != nil {
		return nil, err
	}
	err = s.store.Read(ctx, func(tx *store.Tx) error {
		_, err := tx.Get("SELECT secret FROM memory_secret", nil, &secret)
		return err
	})
	return secret, err
}

// text returns the cursor as clients get it, signed with secret.
func (c *cursor) text(secret []byte) (string, error) {
	raw, err := json.Marshal(c)
	return cursorMark + base64.RawURLEncoding.EncodeToString(append(sign(secret, raw), raw...)), err
}

func sign(secret, raw []byte) []byte {
	mac := hmac.New(sha256.New, secret)
	mac.Write(raw)
	return mac.Sum(nil)[:signature]
}

// readCursor returns the cursor in text, or one at the beginning if text is empty. It returns a
// `schema_violation` for a cursor of another host or of another request.
func (p *Plugin) readCursor(ctx context.Context, text string, of []byte) (*cursor, error) {
	if text == "" {
		return &cursor{Of: of}, nil
	}
	const hint = "send next_cursor of an answer to the same request as it is, or none to start over"
	if len(text) > maxCursor {
		return nil, protocol.Wrong("/cursor", "is not a cursor of this host: %s", hint)
	}
	secret, err := p.secret(ctx)
	if err != nil {
		return nil, err
	}
	c := new(cursor)
	raw, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(text, cursorMark))
	if err != nil || len(raw) < signature || !hmac.Equal(raw[:signature], sign(secret, raw[signature:])) ||
		json.Unmarshal(raw[signature:], c) != nil {
		return nil, protocol.Wrong("/cursor", "is not a cursor of this host: %s", hint)
	}
	if !hmac.Equal(c.Of, of) {
		return nil, protocol.Wrong("/cursor", "belongs to another request: %s. Only limit and refresh_ttl may change "+
			"between pages", hint)
	}
	return c, nil
}
