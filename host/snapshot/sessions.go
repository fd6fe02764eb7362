package snapshot

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/private"
)

// Bounds of what is kept of sessions.
const (
	maxSessionBytes = 64 << 20
	maxSessionAge   = 30 * 24 * time.Hour
	maxSessions     = 1000
)

// The files of an agent: what its last session left, and what its next one is to
// begin with.
const (
	lastSuffix    = ".last.json"
	pendingSuffix = ".restore.json"
)

// Sessions keeps what sessions had in memory for each agent; it is what host.Options.Sessions takes.
// Several hosts may share it. What is older than 30 days is removed, and the oldest where there are
// more than 1,000 agents.
type Sessions interface {
	Put(agentID string, states map[string]jsontext.Value) error
	Take(agentID string) (map[string]jsontext.Value, error)
	// each calls f for each agent with what its next session begins with, if that was
	// restored, or what its last one left. It returns what cannot be read.
	each(f func(session) error) (broken []error, err error)
	restoration() restoration
}

// restoration is what sessions are to begin with, written but not yet in force.
type restoration interface {
	add(one session) error
	commit() error // puts it in force, in the place of all that was before
	discard()      // removes what is not in force
}

// fileSessions has one file for each agent.
type fileSessions struct {
	dir      string
	maxBytes int // of a file
}

// NewSessions keeps them in a folder, which is made when it is needed.
func NewSessions(dir string) Sessions { return &fileSessions{dir, maxSessionBytes} }

// session is the state of one agent's session.
type session struct {
	AgentID string                    `json:"agent_id"`
	States  map[string]jsontext.Value `json:"states"` // by plugin
}

// encode returns a session as it is kept.
func encode(one session, maxBytes int) ([]byte, error) {
	raw, err := json.Marshal(one, json.Deterministic(true))
	if err == nil && len(raw) > maxBytes {
		err = fmt.Errorf("the state has %d bytes, which is more than the %d that are kept of a session", len(raw), maxBytes)
	}
	return raw, err
}

// keyOf names an agent, whose id may be no file name.
func keyOf(agentID string) string {
	sum := sha256.Sum256([]byte(agentID))
	return hex.EncodeToString(sum[:16])
}

// path returns a file of an agent.
func (s *fileSessions) path(agentID, suffix string) string {
	return filepath.Join(s.dir, keyOf(agentID)+suffix)
}

// Put implements host.SessionStates. It does not wait for the disk: a file that a
// power cut left broken is found out when it is read.
func (s *fileSessions) Put(agentID string, states map[string]jsontext.Value) error {
	last := s.path(agentID, lastSuffix)
	if len(states) == 0 {
		return unlessGone(os.Remove(last))
	}
	temp, err := s.write(last, session{agentID, states})
	if err == nil {
		err = place(temp, last)
	}
	if err == nil {
		s.tidy()
	}
	return err
}

// Take implements host.SessionStates. Of several hosts that ask, one gets it.
func (s *fileSessions) Take(agentID string) (map[string]jsontext.Value, error) {
	pending := s.path(agentID, pendingSuffix)
	if _, err := os.Lstat(pending); err != nil {
		return nil, unlessGone(err) // as for most handshakes, which wait for this
	}
	mine := filepath.Join(s.dir, "."+filepath.Base(pending)+"."+rand.Text()+private.TempSuffix)
	if err := os.Rename(pending, mine); err != nil {
		return nil, unlessGone(err)
	}
	defer func() { _ = os.Remove(mine) }()
	found, err := s.read(mine)
	if err == nil && found.AgentID != agentID {
		err = errors.New("it is that of another agent")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", pending, err)
	}
	return found.States, nil
}

func unlessGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// write writes a file that is to take the place of path, and gives its name.
func (s *fileSessions) write(path string, one session) (temp string, err error) {
	raw, err := encode(one, s.maxBytes)
	if err != nil {
		return "", err
	}
	file, err := newTemp(path)
	if err != nil {
		return "", err
	}
	_, err = file.Write(raw)
	if err = errors.Join(err, file.Close()); err != nil {
		return "", errors.Join(err, os.Remove(file.Name()))
	}
	return file.Name(), nil
}

func (s *fileSessions) read(path string) (one session, err error) {
	file, err := private.Open(path, os.O_RDONLY)
	if err != nil {
		return one, err
	}
	defer file.Close()
	raw, err := io.ReadAll(io.LimitReader(file, int64(s.maxBytes)+1))
	if err != nil {
		return one, err
	}
	if len(raw) > s.maxBytes {
		return one, fmt.Errorf("it has more than %d bytes", s.maxBytes)
	}
	err = json.Unmarshal(raw, &one)
	return one, err
}

// each implements Sessions.
func (s *fileSessions) each(f func(session) error) (broken []error, err error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, unlessGone(err)
	}
	var agents []string
	for _, e := range entries {
		for _, suffix := range []string{lastSuffix, pendingSuffix} {
			if hash, ok := strings.CutSuffix(e.Name(), suffix); ok {
				agents = append(agents, hash)
			}
		}
	}
	slices.Sort(agents)
	for _, hash := range slices.Compact(agents) {
		found, err := s.read(filepath.Join(s.dir, hash+pendingSuffix))
		if errors.Is(err, fs.ErrNotExist) {
			found, err = s.read(filepath.Join(s.dir, hash+lastSuffix))
		}
		switch {
		case errors.Is(err, fs.ErrNotExist): // a host has taken it just now
		case err != nil:
			broken = append(broken, fmt.Errorf("%s: %w", filepath.Join(s.dir, hash), err))
		default:
			if err := f(found); err != nil {
				return broken, err
			}
		}
	}
	return broken, nil
}

// tidy keeps the bounds. What it fails to remove is removed another time.
func (s *fileSessions) tidy() {
	entries, _ := os.ReadDir(s.dir)
	var last []fs.FileInfo
	for _, e := range entries {
		isLast := strings.HasSuffix(e.Name(), lastSuffix)
		switch info, err := e.Info(); {
		case err != nil || !isLast && !strings.HasSuffix(e.Name(), pendingSuffix):
		case time.Since(info.ModTime()) > maxSessionAge:
			_ = os.Remove(filepath.Join(s.dir, e.Name()))
		case isLast:
			last = append(last, info)
		}
	}
	slices.SortFunc(last, func(a, b fs.FileInfo) int { return b.ModTime().Compare(a.ModTime()) })
	for _, info := range last[min(len(last), maxSessions):] {
		_ = os.Remove(filepath.Join(s.dir, info.Name()))
	}
	removeTemps(s.dir)
}

// fileRestoration is a restoration in files.
type fileRestoration struct {
	sessions *fileSessions
	temps    map[string]string // by the path that each is for
}

func (s *fileSessions) restoration() restoration {
	return &fileRestoration{s, make(map[string]string)}
}

func (r *fileRestoration) add(one session) error {
	path := r.sessions.path(one.AgentID, pendingSuffix)
	if r.temps[path] != "" {
		return fmt.Errorf("the agent %.100q appears in it twice", one.AgentID)
	}
	temp, err := r.sessions.write(path, one)
	if err == nil {
		r.temps[path] = temp
	}
	return err
}

// commit implements restoration.
func (r *fileRestoration) commit() error {
	entries, err := os.ReadDir(r.sessions.dir)
	errs := []error{unlessGone(err)}
	for _, e := range entries {
		path := filepath.Join(r.sessions.dir, e.Name())
		if strings.HasSuffix(path, pendingSuffix) && r.temps[path] == "" {
			errs = append(errs, unlessGone(os.Remove(path)))
		}
	}
	for path, temp := range r.temps {
		errs = append(errs, place(temp, path))
		delete(r.temps, path)
	}
	return errors.Join(errs...)
}

// discard implements restoration.
func (r *fileRestoration) discard() {
	for _, temp := range r.temps {
		_ = os.Remove(temp)
	}
}
