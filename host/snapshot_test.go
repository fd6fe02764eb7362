package host_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/rs/zerolog"

	"a2e/host"
	"a2e/host/auth"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/protocol"
)

// diary notes what happens in a test, in order.
type diary struct {
	mu    sync.Mutex
	lines []string // guarded by mu
}

func (d *diary) note(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, fmt.Sprintf(format, args...))
}

// Write takes the lines of a log.
func (d *diary) Write(line []byte) (int, error) {
	d.note("%s", line)
	return len(line), nil
}

func (d *diary) read() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return strings.Join(d.lines, "\n")
}

// bookcase is a store of session states that notes what is asked of it.
type bookcase struct {
	*diary
	pending map[string]jsontext.Value // what Take gives
	err     error
	slow    time.Duration // of Put
}

func (s *bookcase) Put(agentID string, states map[string]jsontext.Value) error {
	time.Sleep(s.slow)
	s.note("put %s %v", agentID, words(states))
	return s.err
}

func (s *bookcase) Take(agentID string) (map[string]jsontext.Value, error) {
	s.note("take %s", agentID)
	return s.pending, s.err
}

func words(states map[string]jsontext.Value) []string {
	all := []string{}
	for _, name := range slices.Sorted(maps.Keys(states)) {
		all = append(all, name+"="+string(states[name]))
	}
	return all
}

// keeper is a plugin with a state.
type keeper struct {
	*diary
	name    string
	save    func(ctx context.Context) (jsontext.Value, error)
	restore func(ctx context.Context) error
}

func (k *keeper) Info() host.PluginInfo {
	return host.PluginInfo{Name: k.name, Capability: protocol.CapMemory}
}
func (k *keeper) Routes() []host.Route        { return nil }
func (k *keeper) Close(context.Context) error { return nil }
func (k *keeper) EndSession(ctx context.Context, s *host.Session) {
	if ctx.Err() != nil {
		k.note("too late")
	}
	k.note("end %s", s.AgentID)
}

func (k *keeper) SaveSession(ctx context.Context, s *host.Session) (jsontext.Value, error) {
	k.note("save %s", s.AgentID)
	return k.save(ctx)
}

func (k *keeper) RestoreSession(ctx context.Context, s *host.Session, state jsontext.Value) error {
	k.note("restore %s %s", s.AgentID, state)
	if k.restore == nil {
		return nil
	}
	return k.restore(ctx)
}

func gives(state string) func(context.Context) (jsontext.Value, error) {
	return func(context.Context) (jsontext.Value, error) { return jsontext.Value(state), nil }
}

func TestSessionIsKeptBeforeItEndsAndRestoredBeforeItBegins(t *testing.T) {
	d := new(diary)
	states := &bookcase{diary: d, pending: map[string]jsontext.Value{"k": jsontext.Value(`"old"`)}}
	synctest.Test(t, func(t *testing.T) {
		p := hosttest.Start(t, host.Options{Plugins: []host.Plugin{wrapped{&keeper{diary: d, name: "k", save: gives(`"new"`)}}}, Sessions: states})
		for _, agent := range []string{"a", "b"} {
			m := p.Call(protocol.TypeHandshakeReq, fmt.Sprintf(`{"agent_id":%q,"agent_caps":["memory"]}`, agent))
			d.note("answer %s", m.Type)
		}
		p.Close()
	})
	want := []string{
		"take a", `restore a "old"`, "answer handshake/resp",
		"save a", `put a [k="new"]`, "end a", "take b", `restore b "old"`, "answer handshake/resp",
		"save b", `put b [k="new"]`, "end b",
	}
	assert.Equal(t, d.read(), strings.Join(want, "\n"), "in this order")
}

// Whatever goes wrong with one plugin's state, the session and the states of the
// others are as they should be.
func TestStatesThatFail(t *testing.T) {
	fails := func(context.Context) (jsontext.Value, error) { return nil, errors.New("no") }
	cases := map[string]struct {
		save []func(context.Context) (jsontext.Value, error)
		put  string
	}{
		"both":             {[]func(context.Context) (jsontext.Value, error){gives("1"), gives("2")}, "put agent [k0=1 k1=2]"},
		"one has nothing":  {[]func(context.Context) (jsontext.Value, error){gives("1"), func(context.Context) (jsontext.Value, error) { return nil, nil }}, "put agent [k0=1]"},
		"none has":         {[]func(context.Context) (jsontext.Value, error){func(context.Context) (jsontext.Value, error) { return nil, nil }}, "put agent []"},
		"one fails":        {[]func(context.Context) (jsontext.Value, error){fails, gives("2")}, "put agent [k1=2]"},
		"all fail":         {[]func(context.Context) (jsontext.Value, error){fails}, ""},
		"one panics":       {[]func(context.Context) (jsontext.Value, error){func(context.Context) (jsontext.Value, error) { panic("boo") }, gives("2")}, "put agent [k1=2]"},
		"one ends its own": {[]func(context.Context) (jsontext.Value, error){func(context.Context) (jsontext.Value, error) { runtime.Goexit(); return nil, nil }, gives("2")}, "put agent [k1=2]"},
		"one is too slow": {[]func(context.Context) (jsontext.Value, error){func(context.Context) (jsontext.Value, error) {
			time.Sleep(2 * time.Second)
			return jsontext.Value("1"), nil
		}, gives("2")}, "put agent [k1=2]"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := new(diary)
				var plugins []host.Plugin
				for i, save := range c.save {
					plugins = append(plugins, &keeper{diary: d, name: fmt.Sprint("k", i), save: save})
				}
				p := hosttest.Start(t, host.Options{Plugins: plugins, Sessions: &bookcase{diary: d}})
				p.Handshake("memory")
				p.Close()
				time.Sleep(3 * time.Second) // lets the slow one end
				put := ""
				for line := range strings.Lines(d.read()) {
					if strings.HasPrefix(line, "put") {
						put += strings.TrimSpace(line)
					}
				}
				if ends := strings.Count(d.read(), "end agent"); put != c.put || ends != len(c.save) || strings.Contains(d.read(), "too late") {
					t.Errorf("kept %q, want %q; %d of %d plugins were told of the end:\n%s", put, c.put, ends, len(c.save), d.read())
				}
			})
		})
	}
}

func TestRestoreThatFailsFailsNoHandshake(t *testing.T) {
	cases := map[string]struct {
		restore func(context.Context) error
		err     error
		logged  string
		takes   time.Duration
	}{
		"works":              {func(context.Context) error { return nil }, nil, "", 0},
		"fails":              {func(context.Context) error { return errors.New("no") }, nil, "restore of the session in plugin k failed", 0},
		"panics":             {func(context.Context) error { panic("boo") }, nil, "not all of the session's state was restored", 0},
		"waits for too long": {func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, nil, "not all of the session's state was restored", 5 * time.Second},
		"cannot be read":     {nil, errors.New("disk"), "begins without the state", 0},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, log := new(diary), new(diary)
				states := &bookcase{diary: d, err: c.err}
				if c.err == nil {
					states.pending = map[string]jsontext.Value{"k": jsontext.Value("1")}
				}
				p := hosttest.Start(t, host.Options{
					Plugins: []host.Plugin{&keeper{diary: d, name: "k", restore: c.restore, save: gives("1")}}, Sessions: states, Log: zerolog.New(log).Level(zerolog.WarnLevel),
				})
				begun := time.Now()
				m := p.Handshake("memory")
				assert.That(t, strings.Contains(string(m.Line), `"ok":true`), "the handshake was answered %s", m.Line)
				assert.Equal(t, time.Since(begun), c.takes, "it took")
				synctest.Wait()
				said := log.read()
				assert.That(t, (c.logged == "") == (said == "") && strings.Contains(said, c.logged), "logged %q, want %q", said, c.logged)
				p.Close()
			})
		})
	}
}

func TestStateOfAPluginThatIsNotThereIsTold(t *testing.T) {
	d, log := new(diary), new(diary)
	p := hosttest.New(t, host.Options{
		Plugins:  []host.Plugin{&keeper{diary: d, name: "k", save: gives("1")}},
		Sessions: &bookcase{diary: d, pending: map[string]jsontext.Value{"gone": jsontext.Value("1")}}, Log: zerolog.New(log).Level(zerolog.WarnLevel),
	})
	p.Handshake("memory")
	p.Close()
	if !strings.Contains(log.read(), "not all of the session's state was restored") || strings.Contains(d.read(), "restore") {
		t.Errorf("log %q, calls %q", log.read(), d.read())
	}
}

// A session that may not use the plugin must not wipe out what the agent's real
// sessions leave, nor use up what was restored for them.
func TestSessionsThatLeaveStatesAlone(t *testing.T) {
	cases := map[string]struct {
		tokens auth.Tokens
		caps   string
	}{
		"other capabilities":  {nil, `["tools"]`},
		"a name that is none": {nil, `["memorie"]`},
		"refused":             {auth.Tokens{auth.New("secret", "")}, `["memory"]`},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			d := new(diary)
			p := hosttest.New(t, host.Options{
				Plugins: []host.Plugin{&keeper{diary: d, name: "k", save: gives("1")}, newLab()}, Sessions: &bookcase{diary: d}, Tokens: c.tokens,
			})
			p.Call(protocol.TypeHandshakeReq, fmt.Sprintf(`{"agent_id":"a","agent_caps":%s}`, c.caps))
			p.Close()
			assert.Equal(t, strings.ReplaceAll(d.read(), "end a", ""), "", "the host did this")
		})
	}
}

func TestSlowDiskHoldsUpNoEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := new(diary)
		p := hosttest.Start(t, host.Options{
			Plugins: []host.Plugin{&keeper{diary: d, name: "k", save: gives("1")}}, Sessions: &bookcase{diary: d, slow: 10 * time.Second},
		})
		p.Handshake("memory")
		begun := time.Now()
		p.Close()
		if took := time.Since(begun); took > time.Second || !strings.Contains(d.read(), "end agent") {
			t.Errorf("the end took %v; %s", took, d.read())
		}
		time.Sleep(10 * time.Second)
		assert.Contains(t, d.read(), "put agent [k=1]", "what was written slowly is not there")
	})
}
