package snapshot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/config"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/hosttest/stores"
	"a2e/host/store"
)

// Sessions is what the host takes.
var _ host.SessionStates = Sessions(nil)

// notes is a part for these tests: texts.
func notes() store.Part {
	records := store.Kinds{store.RecordsOf("notes.note", "SELECT text FROM notes ORDER BY text", func(text *string) []any { return []any{text} },
		func(text *string, tx *store.Tx) error {
			_, err := tx.Exec("INSERT INTO notes VALUES ($1)", *text)
			return err
		})}
	return store.Part{
		Name: "notes", Migrations: []string{"CREATE TABLE notes (text TEXT PRIMARY KEY)"},
		Export: records.Export, Import: records.Import, Clear: store.ClearTables("notes"),
	}
}

// world is a state and where its snapshots are.
type world struct {
	State
	snapshots Store
	t         *testing.T
}

func newWorld(t *testing.T, kind string) *world {
	t.Helper()
	dir := t.TempDir()
	db := stores.Open(t, filepath.Join(dir, store.FileName), append(Parts(), notes())...)
	state := State{Mode: ModeHybrid, HostID: "dev", Sessions: sessionsIn(db), Store: db, Now: func() time.Time { return noon }}
	return &world{state, openStore(t, kind, dir), t}
}

// sessionsIn are those that belong to a state.
func sessionsIn(db store.Store) Sessions {
	if stores.IsPostgres() {
		return NewSharedSessions(func(context.Context) (store.Store, error) { return db, nil })
	}
	return NewSessions(filepath.Join(db.Dir(), "sessions"))
}

// kinds are the stores of snapshots that a state can have.
func kinds() []string {
	if stores.IsPostgres() {
		return []string{config.SnapshotsInState, "file"}
	}
	return []string{"sqlite", "file"}
}

func (w *world) note(texts ...string) {
	w.t.Helper()
	err := w.Store.Write(w.t.Context(), func(tx *store.Tx) error {
		for _, text := range texts {
			if _, err := tx.Exec("INSERT INTO notes VALUES ($1)", text); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) keep(agent, state string) {
	w.t.Helper()
	if err := w.Sessions.Put(agent, states(state)); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) save(name string) Info {
	w.t.Helper()
	info, broken, err := w.State.Save(w.t.Context(), w.snapshots, name, true)
	if err != nil || broken != nil {
		w.t.Fatal(err, broken)
	}
	return info
}

func (w *world) restore(name string) Holds {
	w.t.Helper()
	holds, _, err := w.Restore(w.t.Context(), w.snapshots, name)
	if err != nil {
		w.t.Fatal(err)
	}
	return holds
}

// now is the state as lines: what a snapshot would hold, but for its first line.
func (w *world) now() string {
	w.t.Helper()
	var b strings.Builder
	state := w.State
	state.Mode = ModeHybrid
	if _, _, err := state.write(w.t.Context(), &b, Info{}); err != nil {
		w.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(b.String(), "\n")
	return rest
}

func TestRestoredStateIsTheSavedOne(t *testing.T) {
	for _, kind := range kinds() {
		t.Run(kind, func(t *testing.T) {
			w := newWorld(t, kind)
			w.note("one", "two\n\"line\"")
			w.keep("a", `{"working":[1,2]}`)
			w.keep("b", `"x"`)
			saved := w.now()
			want := Holds{"session": 2, "notes.note": 2}
			info := w.save("s")
			assert.Diff(t, Info{Name: "s", Made: noon, Bytes: info.Bytes, Holds: want}, info)
			w.note("three")
			w.keep("a", `"other"`)
			w.keep("c", `"new"`)
			assert.Diff(t, want, w.restore("s"))
			if err := w.Sessions.Put("c", nil); err != nil { // an agent that the snapshot does not know goes on
				t.Fatal(err)
			}
			assert.Diff(t, saved, w.now())
			for agent, state := range map[string]string{"a": `{"working":[1,2]}`, "b": `"x"`} {
				got, err := w.Sessions.Take(agent)
				assert.That(t, err == nil && string(got["p"]) == state, "%s begins with %s, %v", agent, got, err)
			}
		})
	}
}

// TestBetweenEngines: a snapshot of a state can be restored where another engine keeps it.
func TestBetweenEngines(t *testing.T) {
	here := newWorld(t, "file")
	there := *here
	db := must.Get(store.Open(t.Context(), filepath.Join(t.TempDir(), "elsewhere", store.FileName), store.Options{Parts: []store.Part{notes()}}))(t)
	defer func() { must.OK(t, db.Close()) }()
	there.Store, there.Sessions = db, NewSessions(filepath.Join(db.Dir(), "sessions"))
	here.note("one", "nul\x00 and \U0010fffe")
	here.keep("a", `{"working":["\u0000",2]}`)
	saved := here.now()
	here.save("s")
	there.restore("s")
	assert.Diff(t, saved, there.now())
	there.save("again")
	here.note("more")
	here.restore("again")
	assert.Diff(t, saved, here.now())
}

// TestSharedSessions: what sessions leave is bounded on a server too, and what cannot be read is told.
func TestSharedSessions(t *testing.T) {
	db := stores.Memory(t, Parts()...)
	s := NewSharedSessions(func(context.Context) (store.Store, error) { return db, nil }).(*rowSessions)
	s.maxBytes = 1000
	must.Fails(t, s.Put("x", states(`"`+strings.Repeat("x", 1000)+`"`)), "more than the 1000")
	odd := []string{"x", "", "a/b\x00", strings.Repeat("long", 100), "X"}
	for i, agent := range odd {
		must.OK(t, s.Put(agent, states(fmt.Sprint(i))))
	}
	assert.Equal(t, len(agents(t, s)), len(odd))
	must.OK(t, db.Write(t.Context(), func(tx *store.Tx) error {
		_, err := tx.Exec("UPDATE sessions_states SET at = at - $1 WHERE agent <> $2", int(maxSessionAge.Seconds())+10, keyOf("x"))
		_, more := tx.Exec("UPDATE sessions_states SET state = $1 WHERE agent = $2", []byte("{"), keyOf("x"))
		return errors.Join(err, more)
	}))
	must.OK(t, s.Put("new", states("1")))
	left := agents(t, s)
	assert.That(t, len(left) == 2 && left["new"] == "1" && strings.Contains(left["broken"], keyOf("x")), "%v", left)
	must.OK(t, s.Put("x", nil))
	must.OK(t, s.Put("x", nil))
	assert.Equal(t, len(files(t, s)), 1)
}

func TestContentIsWhatIsDocumented(t *testing.T) {
	w := newWorld(t, "file")
	w.note("one")
	w.keep("a", `1`)
	w.save("s")
	want := `{"a2e_snapshot":1,"name":"s","made":"2026-03-04T12:00:00Z","mode":"hybrid","host_id":"dev"}
{"session":{"agent_id":"a","states":{"p":1}}}
{"a2e_state":1,"parts":["notes"]}
{"kind":"notes.note","record":"one"}
`
	assert.Diff(t, want, get(w.snapshots, "s"))
}

// What the mode of the config leaves out is neither saved nor restored.
func TestModes(t *testing.T) {
	cases := []struct {
		saved, restored string
		holds           Holds
	}{
		{ModeHybrid, ModeHybrid, Holds{"session": 1, "notes.note": 1}},
		{ModeHost, ModeHybrid, Holds{"session": 1}},
		{ModePlugin, ModeHybrid, Holds{"notes.note": 1}},
		{ModeHybrid, ModeHost, Holds{"session": 1}},
		{ModeHybrid, ModePlugin, Holds{"notes.note": 1}},
		{ModeHost, ModePlugin, Holds{}},
	}
	for _, c := range cases {
		t.Run(c.saved+" "+c.restored, func(t *testing.T) {
			w := newWorld(t, kinds()[0])
			w.note("one")
			w.keep("a", "1")
			w.Mode = c.saved
			info := w.save("s")
			w.note("two")
			give(t, w.Sessions, session{"b", states("2")})
			w.Mode = c.restored
			assert.Diff(t, c.holds, w.restore("s"))
			_, has := info.Holds["session"]
			assert.Equal(t, has, HasSessions(c.saved), "saved %v", info.Holds)
			a, _ := w.Sessions.Take("a")
			b, _ := w.Sessions.Take("b")
			assert.That(t, (a != nil) == (c.holds["session"] > 0) && (b == nil) == (c.holds["session"] > 0),
				"sessions begin with %v, %v", a, b)
			if two := strings.Contains(w.now(), "two"); two != (c.holds["notes.note"] == 0) {
				t.Errorf("the store has\n%s", w.now())
			}
		})
	}
}

func TestBrokenSnapshotChangesNothing(t *testing.T) {
	const head = `{"a2e_snapshot":1,"name":"s","made":"2026-03-04T12:00:00Z","mode":"hybrid","host_id":"dev"}` + "\n"
	const one = `{"session":{"agent_id":"a","states":{"p":2}}}` + "\n"
	const parts = `{"a2e_state":1,"parts":["notes"]}` + "\n"
	cases := map[string]struct{ text, want string }{
		"nothing":               {"", "this is not a snapshot"},
		"no snapshot":           {parts, "this is not a snapshot"},
		"endless head":          {strings.Repeat("x", 2<<20), "a line is longer than 1048576 bytes"},
		"newer":                 {strings.Replace(head, ":1,", ":2,", 1) + one + parts, "version 2, made by a newer a2e; this one knows 1"},
		"session cut":           {head + one[:30], "damaged"},
		"session that is none":  {head + `{"session":3}` + "\n" + parts, "damaged"},
		"agent twice":           {head + one + one + parts, "twice"},
		"no state":              {head + one, "damaged"},
		"state that is none":    {head + one + "{}\n", "this is not an export"},
		"record that fails":     {head + one + parts + `{"kind":"notes.note","record":3}` + "\n", "line 2"},
		"record twice":          {head + one + parts + strings.Repeat(`{"kind":"notes.note","record":"x"}`+"\n", 2), "line 3"},
		"part that is unknown":  {head + one + `{"a2e_state":1,"parts":["other"]}` + "\n", "it has: notes"},
		"state where none is":   {strings.Replace(head, "hybrid", "host", 1) + one + parts, "do not fit its mode"},
		"session after records": {head + parts + one, "line 2"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, kinds()[0])
			w.note("one")
			w.keep("a", "1")
			give(t, w.Sessions, session{"b", states("2")})
			before := w.now()
			must.Get(put(w.snapshots, "s", c.text, false))(t)
			holds, _, err := w.Restore(t.Context(), w.snapshots, "s")
			assert.That(t, err != nil && holds == nil && strings.Contains(err.Error(), c.want),
				"it gave %v, %v; want %q", holds, err, c.want)
			assert.Diff(t, before, w.now())
			names := files(t, w.Sessions)
			assert.Equal(t, len(names), 2, "files are left: %q", names)
		})
	}
}

// A checksum that is wrong at the very end is found before anything is changed.
func TestDamagedSnapshotChangesNothing(t *testing.T) {
	w := newWorld(t, "file")
	w.note("one")
	w.keep("a", "1")
	w.save("x")
	change(t, w.snapshots, func(b []byte) []byte { b[len(b)-6] ^= 4; return b })
	w.note("two")
	before := w.now()
	_, _, err := w.Restore(t.Context(), w.snapshots, "x")
	assert.That(t, err != nil && strings.Contains(err.Error(), "damaged"), "it gave %v", err)
	if w.now() != before || len(files(t, w.Sessions)) != 1 {
		t.Errorf("there is now\n%s", w.now())
	}
}

func states(text string) map[string]jsontext.Value {
	return map[string]jsontext.Value{"p": jsontext.Value(text)}
}

// give makes a state one that Take gives.
func give(t *testing.T, s Sessions, all ...session) {
	t.Helper()
	next := s.restoration()
	defer next.discard()
	for _, one := range all {
		must.OK(t, next.add(one))
	}
	must.OK(t, next.commit())
}

// agents returns what a snapshot would have, by agent.
func agents(t *testing.T, s Sessions) map[string]string {
	t.Helper()
	got := map[string]string{}
	broken := must.Get(s.each(func(one session) error {
		got[one.AgentID] = string(one.States["p"])
		return nil
	}))(t)
	for _, b := range broken {
		got["broken"] += b.Error()
	}
	return got
}

// files are the names of what is kept of sessions.
func files(t *testing.T, s Sessions) (names []string) {
	t.Helper()
	if rows, ok := s.(*rowSessions); ok {
		must.OK(t, rows.store.Read(t.Context(), func(tx *store.Tx) error {
			return tx.Each("SELECT agent || what FROM sessions_states", nil, func(scan func(...any) error) error {
				names = append(names, "")
				return scan(&names[len(names)-1])
			})
		}))
		return names
	}
	entries := must.Get(os.ReadDir(s.(*fileSessions).dir))(t)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestPutAndTake(t *testing.T) {
	s := NewSessions(filepath.Join(t.TempDir(), "a", "sessions")).(*fileSessions)
	got, err := s.Take("x")
	assert.That(t, got == nil && err == nil, "without a folder: %v, %v", got, err)
	assert.OK(t, s.Put("x", nil))
	assert.That(t, !present(s.dir), "a folder was made for nothing")
	odd := []string{"x", "", "../../etc/passwd", "a/b\x00", strings.Repeat("long", 1000), "X"}
	for i, agent := range odd {
		err := s.Put(agent, states(fmt.Sprint(i)))
		assert.That(t, err == nil, "%.20q: %v", agent, err)
	}
	want := map[string]string{}
	for i, agent := range odd {
		want[agent] = fmt.Sprint(i)
	}
	assert.Diff(t, want, agents(t, s))
	got, err = s.Take("x")
	assert.That(t, got == nil && err == nil, "nothing was restored, and yet: %v, %v", got, err)
	if runtime.GOOS != "windows" {
		stat, _ := os.Stat(s.path("x", lastSuffix))
		folder, _ := os.Stat(s.dir)
		if stat.Mode().Perm() != 0o600 || folder.Mode().Perm() != 0o700 {
			t.Errorf("modes %v, %v", stat.Mode(), folder.Mode())
		}
	}
	for _, agent := range odd {
		assert.OK(t, s.Put(agent, nil))
	}
	names := files(t, s)
	assert.Equal(t, len(names), 0, "these are left: %q", names)
}

func TestRestoredStateIsTakenOnce(t *testing.T) {
	db := stores.Open(t, filepath.Join(t.TempDir(), store.FileName), Parts()...)
	s := sessionsIn(db)
	must.OK(t, s.Put("x", states("1")))
	give(t, s, session{"x", states("2")}, session{"y", states("3")})
	assert.Diff(t, map[string]string{"x": "2", "y": "3"}, agents(t, s))
	var takers atomic.Int64
	var all sync.WaitGroup
	for range 16 { // hosts that ask at the same time
		all.Go(func() {
			got, err := sessionsIn(db).Take("x")
			assert.That(t, err == nil && (got == nil || string(got["p"]) == "2"), "%v, %v", got, err)
			if got != nil {
				takers.Add(1)
			}
		})
	}
	all.Wait()
	assert.Equal(t, takers.Load(), 1, "… took it")
	assert.Diff(t, map[string]string{"x": "1", "y": "3"}, agents(t, s))
	give(t, s, session{"z", states("4")})
	got, err := s.Take("y")
	assert.That(t, got == nil && err == nil, "what an earlier restore left: %v, %v", got, err)
}

func TestSessionsThatCannotBeRead(t *testing.T) {
	s := NewSessions(t.TempDir()).(*fileSessions)
	for _, agent := range []string{"good", "bad", "cut"} {
		must.OK(t, s.Put(agent, states("1")))
	}
	give(t, s, session{"bad", states("2")}, session{"swapped", states("2")})
	for path, text := range map[string]string{
		s.path("bad", pendingSuffix):     "{",
		s.path("cut", lastSuffix):        `{"agent_id":"cut","sta`,
		s.path("swapped", pendingSuffix): `{"agent_id":"good","states":{"p":2}}`,
	} {
		must.OK(t, os.WriteFile(path, []byte(text), 0o600))
	}
	got := agents(t, s)
	if got["good"] == "" || !strings.Contains(got["broken"], s.path("bad", "")) || !strings.Contains(got["broken"], s.path("cut", "")) {
		t.Errorf("a snapshot has %q", got)
	}
	for _, agent := range []string{"bad", "swapped"} {
		got, err := s.Take(agent)
		assert.That(t, got == nil && err != nil, "%s: %v, %v", agent, got, err)
		got, err = s.Take(agent)
		assert.That(t, got == nil && err == nil, "%s again: %v, %v", agent, got, err)
	}
}

func TestStateThatIsTooLarge(t *testing.T) {
	s := NewSessions(t.TempDir()).(*fileSessions)
	s.maxBytes = 1000
	must.OK(t, s.Put("x", states("1")))
	large := states(`"` + strings.Repeat("x", s.maxBytes) + `"`)
	assert.Fails(t, s.Put("x", large), "more than the 1000", "it")
	if got := agents(t, s); got["x"] != "1" || len(files(t, s)) != 1 {
		t.Errorf("there is %v in %v", got, files(t, s))
	}
	must.OK(t, os.Truncate(s.path("x", lastSuffix), int64(s.maxBytes)+1))
	got := agents(t, s)
	assert.That(t, strings.Contains(got["broken"], "more than 1000"), "a file that is too large: %.200v", got)
}

func TestOldAndTooManySessionsAreRemoved(t *testing.T) {
	s := NewSessions(t.TempDir()).(*fileSessions)
	ages := map[string]time.Duration{
		s.path("old", lastSuffix):                      maxSessionAge + time.Minute,
		s.path("old", pendingSuffix):                   maxSessionAge + time.Minute,
		s.path("young", pendingSuffix):                 maxSessionAge - time.Minute,
		filepath.Join(s.dir, ".x.last.json.1.tmp"):     tempAge + time.Minute,
		filepath.Join(s.dir, ".y.last.json.1.tmp"):     tempAge - time.Minute,
		filepath.Join(s.dir, "note of somebody's own"): maxSessionAge + time.Minute,
	}
	for i := range maxSessions {
		ages[s.path(fmt.Sprint("agent", i), lastSuffix)] = time.Duration(i+1) * time.Minute
	}
	for path, age := range ages {
		must.OK(t, os.WriteFile(path, []byte("{}"), 0o600))
		must.OK(t, os.Chtimes(path, time.Time{}, time.Now().Add(-age)))
	}
	must.OK(t, s.Put("new", states("1")))
	gone := []string{s.path("old", lastSuffix), s.path("old", pendingSuffix), filepath.Join(s.dir, ".x.last.json.1.tmp"), s.path(fmt.Sprint("agent", maxSessions-1), lastSuffix)}
	for _, path := range gone {
		assert.That(t, !present(path), "%s is still there", path)
	}
	got, want := len(files(t, s)), len(ages)+1-len(gone)
	assert.Equal(t, got, want, "… files are there")
	assert.That(t, present(s.path("new", lastSuffix)), "the new one is gone")
}
