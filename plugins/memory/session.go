package memory

import (
	"bytes"
	"context"
	"errors"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/store"
	"a2e/protocol"
)

// shelfOf gives the shelf of a tier. That of the working tier is nil while nothing was
// stored in it, unless it is to be made.
func (p *Plugin) shelfOf(ctx context.Context, tier protocol.MemoryTier, make bool) (*shelf, error) {
	if tier == protocol.TierWorking {
		return p.workingShelf(ctx, host.SessionFrom(ctx), make)
	}
	st, err := p.env.Store(ctx)
	if err != nil {
		return nil, err
	}
	return p.diskShelf(st), nil
}

// diskShelf gives the shelf of the shared store.
func (p *Plugin) diskShelf(st store.Store) *shelf {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.disk == nil {
		p.disk = newShelf(st)
	}
	return p.disk
}

// workingShelf gives the shelf of a session's working tier, which is in memory.
func (p *Plugin) workingShelf(ctx context.Context, sess *host.Session, make bool) (*shelf, error) {
	if sess == nil {
		return nil, errors.New("there is no session")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.working[sess.ID]
	if s == nil && make {
		st, err := store.OpenMemory(context.WithoutCancel(ctx), Part())
		if err != nil {
			return nil, err
		}
		s = newShelf(st)
		p.working[sess.ID] = s
	}
	return s, nil
}

// owner is whose entries a tier holds. A working shelf has but one session's.
func (p *Plugin) owner(tx *store.Tx, tier protocol.MemoryTier, sess *host.Session) (string, error) {
	if tier != protocol.TierEpisodic || sess == nil {
		return "", nil
	}
	return memoryOf(tx, sess.AgentID)
}

// EndSession implements host.SessionEnder: the working tier dies with its session.
func (p *Plugin) EndSession(_ context.Context, s *host.Session) {
	p.mu.Lock()
	shelf := p.working[s.ID]
	delete(p.working, s.ID)
	p.mu.Unlock()
	if shelf == nil {
		return
	}
	if err := shelf.store.Close(); err != nil {
		p.env.Log.Warn().Err(err).Msg("the working tier of a session did not close cleanly")
	}
}

func (p *Plugin) dropWorking() (err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, s := range p.working {
		err = errors.Join(err, s.store.Close())
		delete(p.working, id)
	}
	return err
}

// SaveSession implements host.SessionKeeper: it gives the working tier as a list of the
// lines of an export.
func (p *Plugin) SaveSession(ctx context.Context, s *host.Session) (jsontext.Value, error) {
	working, err := p.workingShelf(ctx, s, false)
	if err != nil || working == nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := working.store.Export(ctx, &out); err != nil {
		return nil, err
	}
	var lines []jsontext.Value
	for line := range bytes.Lines(out.Bytes()) {
		lines = append(lines, line)
	}
	return json.Marshal(lines)
}

// RestoreSession implements host.SessionKeeper.
func (p *Plugin) RestoreSession(ctx context.Context, s *host.Session, state jsontext.Value) error {
	var lines []jsontext.Value
	if err := json.Unmarshal(state, &lines); err != nil {
		return err
	}
	working, err := p.workingShelf(ctx, s, true)
	if err != nil {
		return err
	}
	var in bytes.Buffer
	for _, line := range lines {
		in.Write(append(bytes.TrimSpace(line), '\n'))
	}
	_, err = working.store.Import(ctx, &in, store.Replace)
	return err
}
