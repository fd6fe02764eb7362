package snapshot

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/go-json-experiment/json"

	"a2e/host/store"
)

// The values of the config's snapshot_mode: what snapshots are made of.
const (
	ModeHost   = "host"   // what sessions had in memory, which the host collects
	ModePlugin = "plugin" // what plugins keep in the store
	ModeHybrid = "hybrid" // both
)

// HasSessions reports whether the host collects what sessions have in memory.
func HasSessions(mode string) bool { return mode != ModePlugin }

// HasParts reports whether snapshots have what plugins keep in the store.
func HasParts(mode string) bool { return mode != ModeHost }

// contentVersion is the version of what Save writes.
const contentVersion = 1

// sessionKind is how Holds calls a session.
const sessionKind = "session"

// header is the first line of a snapshot. Lines with the sessions follow, and then
// those of store.Export.
type header struct {
	Version int       `json:"a2e_snapshot"`
	Name    string    `json:"name"`
	Made    time.Time `json:"made"`
	Mode    string    `json:"mode"`
	HostID  string    `json:"host_id"`
	Files   Files     `json:"files,omitzero"`
}

const maxHeaderBytes = 1 << 20

// Files says which checkpoint of which workspace goes with a snapshot; zero = none.
type Files struct {
	Workspace  string `json:"workspace"`
	Checkpoint uint64 `json:"checkpoint"`
	Machine    string `json:"machine,omitzero"` // whose checkpoint it is; "" = not known
}

// sessionLine is one session.
type sessionLine struct {
	Session session `json:"session"`
}

// How such lines begin, and those of the records of store.Export.
const (
	sessionStart = `{"session":`
	recordStart  = `{"kind":"`
)

// State is what snapshots are made of, and what they are put back to.
type State struct {
	Mode     string // of the config; what it leaves out is neither saved nor restored
	HostID   string
	Files    Files // noted in what Save writes
	Sessions Sessions
	Store    store.Store // may be nil where HasParts does not hold
	Now      func() time.Time
}

// Save makes a snapshot; replace is what Store.Save takes. broken are the files of
// sessions that are not in it because they cannot be read.
func (s State) Save(ctx context.Context, to Store, name string, replace bool) (saved Info, broken []error, err error) {
	info := Info{Name: name, Made: s.Now().UTC().Truncate(time.Second)}
	saved, err = to.Save(ctx, info, replace, func(w io.Writer) (holds Holds, err error) {
		holds, broken, err = s.write(ctx, w, info)
		return holds, err
	})
	return saved, broken, err
}

func (s State) write(ctx context.Context, w io.Writer, info Info) (holds Holds, broken []error, err error) {
	count := &counter{holds: Holds{}}
	w = io.MultiWriter(w, count)
	if err := writeLine(w, header{contentVersion, info.Name, info.Made, s.Mode, s.HostID, s.Files}); err != nil {
		return nil, nil, err
	}
	if HasSessions(s.Mode) {
		broken, err = s.Sessions.each(func(one session) error { return writeLine(w, sessionLine{one}) })
	}
	if err == nil && HasParts(s.Mode) {
		err = s.Store.Export(ctx, w)
	}
	return count.holds, broken, err
}

func writeLine(w io.Writer, v any) error {
	raw, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		return err
	}
	_, err = w.Write(append(raw, '\n'))
	return err
}

// Restore puts back what a snapshot holds: the parts of the store that it has take
// the place of those there are, and the next session of each agent in it begins
// with its state. It returns what was put back, and the files that go with it, which it leaves
// as they are. A snapshot that is not whole changes nothing.
func (s State) Restore(ctx context.Context, from Store, name string) (holds Holds, files Files, err error) {
	if err := check(ctx, from, name); err != nil {
		return nil, files, err
	}
	c, err := open(ctx, from, name)
	if err != nil {
		return nil, files, err
	}
	defer c.Close()
	holds, err = s.restore(ctx, c)
	return holds, c.head.Files, err
}

func (s State) restore(ctx context.Context, c *content) (Holds, error) {
	next := s.Sessions.restoration()
	defer next.discard()
	holds := Holds{}
	if err := c.sessions(func(one session) error {
		if !HasSessions(s.Mode) {
			return nil
		}
		holds[sessionKind]++
		return next.add(one)
	}); err != nil {
		return nil, err
	}
	if HasParts(s.Mode) && HasParts(c.head.Mode) {
		counts, err := s.Store.Import(ctx, c.lines, store.Replace)
		if err != nil {
			return nil, err
		}
		for kind, n := range counts {
			holds[kind] = n
		}
	}
	if HasSessions(s.Mode) && HasSessions(c.head.Mode) {
		if err := next.commit(); err != nil {
			return nil, fmt.Errorf("the store was restored, the sessions were not: %w", err)
		}
	}
	return holds, nil
}

// check reads all of a snapshot, before anything is done with it.
func check(ctx context.Context, from Store, name string) error {
	c, err := open(ctx, from, name)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.sessions(func(session) error { return nil }); err != nil {
		return err
	}
	rest, err := io.Copy(io.Discard, c.lines)
	if err != nil {
		return damage(err)
	}
	if rest > 0 != HasParts(c.head.Mode) {
		return damage(fmt.Errorf("%d bytes of state do not fit its mode %q", rest, c.head.Mode))
	}
	return nil
}

// content is a snapshot that is read.
type content struct {
	io.Closer
	head  header
	lines *bufio.Reader // what is left
}

func open(ctx context.Context, from Store, name string) (*content, error) {
	in, err := from.Load(ctx, name)
	if err != nil {
		return nil, err
	}
	c := &content{Closer: in, lines: bufio.NewReader(in)}
	if err := c.header(); err != nil {
		return nil, errors.Join(err, in.Close())
	}
	return c, nil
}

func (c *content) header() error {
	text, err := c.line(maxHeaderBytes)
	if err != nil && !errors.Is(err, io.EOF) {
		return damage(err)
	}
	if err := json.Unmarshal(text, &c.head); err != nil || c.head.Version < 1 {
		return errors.New(`this is not a snapshot: its first line should be {"a2e_snapshot":1,…}`)
	}
	if c.head.Version > contentVersion {
		return fmt.Errorf("this is a snapshot of version %d, made by a newer a2e; this one knows %d", c.head.Version, contentVersion)
	}
	return nil
}

// line reads a line of at most that many bytes: a few of a file can stand for many more.
func (c *content) line(most int) ([]byte, error) {
	var text []byte
	for {
		piece, err := c.lines.ReadSlice('\n')
		if text = append(text, piece...); len(text) > most {
			return nil, fmt.Errorf("a line is longer than %d bytes", most)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return text, err
		}
	}
}

// sessions reads the lines with sessions.
func (c *content) sessions(f func(session) error) error {
	for {
		start, err := c.lines.Peek(len(sessionStart))
		if string(start) != sessionStart {
			if err != nil && !errors.Is(err, io.EOF) {
				return damage(err)
			}
			return nil
		}
		text, err := c.line(maxSessionBytes + len(sessionStart+"}\n"))
		if err != nil {
			return damage(err)
		}
		var line sessionLine
		if err := json.Unmarshal(text, &line); err != nil {
			return damage(err)
		}
		if err := f(line.Session); err != nil {
			return err
		}
	}
}

// counter counts what is written by how the lines begin.
type counter struct {
	holds Holds
	start []byte // of the line at hand
}

// maxStart is how much of a line tells what it is.
const maxStart = 100

// Write implements io.Writer.
func (c *counter) Write(p []byte) (int, error) {
	for rest, whole := p, true; whole && len(rest) > 0; {
		var line []byte
		line, rest, whole = bytes.Cut(rest, []byte("\n"))
		c.start = append(c.start, line[:min(len(line), maxStart-len(c.start))]...)
		if whole {
			c.count()
			c.start = c.start[:0]
		}
	}
	return len(p), nil
}

func (c *counter) count() {
	if bytes.HasPrefix(c.start, []byte(sessionStart)) {
		c.holds[sessionKind]++
	} else if record, ok := bytes.CutPrefix(c.start, []byte(recordStart)); ok {
		kind, _, _ := bytes.Cut(record, []byte(`"`))
		c.holds[string(kind)]++
	}
}
