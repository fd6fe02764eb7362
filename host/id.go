package host

import (
	"crypto/rand"
	"encoding/hex"
	"io"
	mathrand "math/rand/v2"
	"sync"

	"github.com/google/uuid"
)

// idSource makes the ids of messages and sessions: UUIDs of version 4 as 32 hex
// digits.
type idSource struct {
	mu  sync.Mutex
	src io.Reader
	id  uuid.UUID // the last one made; here so that none is allocated
}

func newIDSource(src io.Reader) *idSource {
	if src == nil {
		var seed [32]byte
		rand.Read(seed[:]) // never fails: the program would have ended
		src = mathrand.NewChaCha8(seed)
	}
	return &idSource{src: src}
}

// next gives a fresh id. A source that fails repeats itself.
func (s *idSource) next() (id [32]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _ = io.ReadFull(s.src, s.id[:])
	s.id[6] = s.id[6]&0x0f | 0x40 // version 4
	s.id[8] = s.id[8]&0x3f | 0x80 // variant of RFC 9562
	hex.Encode(id[:], s.id[:])
	return id
}

// text gives a fresh id as a string.
func (s *idSource) text() string {
	id := s.next()
	return string(id[:])
}
