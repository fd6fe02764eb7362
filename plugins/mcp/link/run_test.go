package link

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// lab makes links to servers in memory, in a synctest bubble.
type lab struct {
	dials  atomic.Int64
	broken atomic.Bool // no server exists
	frozen atomic.Bool // no server answers
	mu     sync.Mutex
	at     []time.Duration // times of the dials, after began
	began  time.Time
	live   []net.Conn
	slow   time.Duration // how long a server takes to end
	filled func() int64  // amount that an installer has installed
	stop   chan struct{}
}

func newLab() *lab { return &lab{began: time.Now(), stop: make(chan struct{})} }

func (b *lab) open(cfg Config, env Env) *Link {
	cfg.ID = "srv"
	return open(cfg, env, b.carry)
}

func (b *lab) carry(c *conn) (carrier, error) {
	b.dials.Add(1)
	b.mu.Lock()
	b.at = append(b.at, time.Since(b.began).Round(time.Second))
	b.mu.Unlock()
	if b.broken.Load() {
		return nil, errors.New("nobody is there")
	}
	near, far := net.Pipe()
	b.mu.Lock()
	b.live = append(b.live, far)
	b.mu.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = newServer(b.stop, "/nowhere").Run(context.Background(), &mcp.IOTransport{
			Reader: far,
			Writer: &freezer{far, &b.frozen},
		})
	}()
	return &memory{
		Transport: &mcp.IOTransport{Reader: near, Writer: near}, pipe: near, done: done, slow: b.slow,
		filling: b.filled,
	}, nil
}

// drop ends all connections.
func (b *lab) drop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.live {
		_ = c.Close()
	}
}

// freezer drops all bytes that are written while it is frozen.
type freezer struct {
	net.Conn
	frozen *atomic.Bool
}

func (f *freezer) Write(p []byte) (int, error) {
	if f.frozen.Load() {
		return len(p), nil
	}
	return f.Conn.Write(p)
}

// memory is a carrier in memory.
type memory struct {
	mcp.Transport
	pipe net.Conn
	done chan struct{}
	slow time.Duration // duration of finish

	filling func() int64
}

func (m *memory) filled() int64 {
	if m.filling == nil {
		return 0
	}
	return m.filling()
}

func (m *memory) finish(context.Context, *mcp.ClientSession) { time.Sleep(m.slow) }
func (m *memory) why(err error) error                        { return err }
func (m *memory) pid() int                                   { return 0 }
func (m *memory) release() {
	_ = m.pipe.Close()
	<-m.done
}

func closeLink(t *testing.T, l *Link) {
	t.Helper()
	assert.OK(t, l.Close(t.Context()))
}

func callTool(ctx context.Context, l *Link, name string) error {
	return l.Call(ctx, func(ctx context.Context, s *mcp.ClientSession) error {
		_, err := s.CallTool(ctx, &mcp.CallToolParams{Name: name, Arguments: echoArgs{}})
		return err
	})
}

// TestCircuit: a server that cannot be reached is tried five times within seconds, then every one to
// ten minutes. A call in between fails at once and says when the next try is.
func TestCircuit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newLab()
		b.broken.Store(true)
		l := b.open(Config{}, Env{})
		defer closeLink(t, l)
		_, err := l.Session(t.Context())
		must.That(t, err != nil, "there is a session")
		st := l.State()
		assert.That(t, st.Status == Reconnecting && st.Failures == 1 && st.LastError == "nobody is there", "%+v", st)
		time.Sleep(20 * time.Second)
		if st := l.State(); st.Status != Failed || st.Failures != maxFailures || b.dials.Load() != maxFailures {
			t.Errorf("after %d tries: %+v", b.dials.Load(), st)
		}
		began := time.Now()
		own := wantError(t, callTool(t.Context(), l, "echo"), protocol.CodeMCPServerUnavailable, "nobody is there",
			"it is tried again in")
		if own.Detail["state"] != "failed" || own.Detail["retry_after"].(float64) <= 0 || time.Since(began) != 0 {
			t.Errorf("%+v after %s", own, time.Since(began))
		}
		time.Sleep(60 * time.Minute)
		b.mu.Lock()
		defer b.mu.Unlock()
		if n := b.dials.Load(); n < maxFailures+7 || n > maxFailures+10 { // waits of 1, 2, 4, 8, 10, 10, 10, … minutes
			t.Errorf("%d tries: %v", n, b.at)
		}
		for i := maxFailures + 4; i < len(b.at); i++ {
			wait := b.at[i] - b.at[i-1]
			assert.That(t, wait >= 8*time.Minute && wait <= 12*time.Minute, "try %d after %s", i, wait)
		}
	})
}

// TestLossCounts: a connection that is lost after a long life is made again at once; the loss of a
// young one counts as a failure.
func TestLossCounts(t *testing.T) {
	for _, lived := range []time.Duration{time.Second, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			b := newLab()
			l := b.open(Config{}, Env{})
			defer closeLink(t, l)
			for range 8 {
				err := callTool(t.Context(), l, "echo")
				must.That(t, err == nil || lived != time.Minute, "%v", err)
				time.Sleep(lived)
				b.drop()
				time.Sleep(7 * time.Second) // the longest of the first waits
			}
			st := l.State()
			assert.Equal(t, (st.Status == Failed), (lived == time.Second), "after connections of %s: %+v", lived, st)
		})
	}
}

// TestPing: a ping finds a frozen server. While calls are under way, it may be busy, and is not ended.
func TestPing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newLab()
		l := b.open(Config{CallTimeout: 3 * time.Minute}, Env{})
		defer closeLink(t, l)
		must.OK(t, callTool(t.Context(), l, "echo"))
		time.Sleep(10 * time.Minute)
		must.Equal(t, b.dials.Load(), 1, "… connections although it answers")
		b.frozen.Store(true)
		ctx, cancel := context.WithTimeout(t.Context(), 115*time.Second) // ends between two pings
		defer cancel()
		if err := callTool(ctx, l, "echo"); !errors.Is(err, context.DeadlineExceeded) || b.dials.Load() != 1 {
			t.Errorf("%v, %d connections", err, b.dials.Load())
		}
		b.frozen.Store(false)
		time.Sleep(2 * time.Minute)
		if b.dials.Load() != 1 || l.State().Status != Connected {
			t.Fatalf("%d connections although it answers again", b.dials.Load())
		}
		b.frozen.Store(true)
		time.Sleep(DefaultPingEvery + pingTimeout + time.Second)
		if st := l.State(); st.Status == Connected || b.dials.Load() < 2 {
			t.Errorf("%d connections, %+v", b.dials.Load(), st)
		}
		b.frozen.Store(false)
	})
}

// TestCallTimeout: a call without an answer ends after CallTimeout; Extend starts this time again.
func TestCallTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newLab()
		l := b.open(Config{CallTimeout: time.Minute}, Env{})
		defer closeLink(t, l)
		must.Get(l.Session(t.Context()))(t)
		began := time.Now()
		wantError(t, callTool(t.Context(), l, "sleep"), protocol.CodeTimeout, "within 1m0s")
		assert.Equal(t, time.Since(began), time.Minute, "it took")
		began = time.Now()
		err := l.Call(t.Context(), func(ctx context.Context, s *mcp.ClientSession) error {
			for range 3 {
				time.Sleep(40 * time.Second)
				Extend(ctx)
			}
			_, err := s.CallTool(ctx, &mcp.CallToolParams{Name: "sleep", Arguments: echoArgs{}})
			return err
		})
		wantError(t, err, protocol.CodeTimeout)
		assert.Equal(t, time.Since(began), 3*time.Minute, "it took")
		Extend(t.Context()) // does nothing outside of a call
		mine := errors.New("mine")
		assert.Fails(t, l.Call(t.Context(), func(context.Context, *mcp.ClientSession) error { return mine }), "",
			"the error is lost")
		refused := protocol.Errorf(protocol.CodeToolDenied, "no")
		if err := l.Call(t.Context(), func(context.Context, *mcp.ClientSession) error {
			return fmt.Errorf("so: %w", refused)
		}); !errors.Is(err, refused) {
			t.Errorf("error %v", err)
		}
	})
}

// TestCloseEarly: Close ends a link in each state, also while its server hangs in the handshake.
func TestCloseEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newLab()
		b.frozen.Store(true)
		l := b.open(Config{}, Env{})
		waiting := make(chan error, 1)
		go func() {
			_, err := l.Session(t.Context())
			waiting <- err
		}()
		time.Sleep(time.Second)
		closeLink(t, l)
		closeLink(t, l)
		wantError(t, <-waiting, protocol.CodeMCPServerUnavailable, "was closed")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		wantError(t, callTool(ctx, l, "echo"), protocol.CodeMCPServerUnavailable)

		b.frozen.Store(false)
		b.broken.Store(true)
		l = b.open(Config{}, Env{})
		time.Sleep(time.Minute)
		closeLink(t, l)
		closeLink(t, b.open(Config{}, Env{}))
	})
}

// TestCallsEndFirst: the calls on a connection fail at once when it is closed, even if its end takes
// longer.
func TestCallsEndFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newLab()
		b.slow = time.Second
		l := b.open(Config{}, Env{})
		waiting := make(chan time.Duration, 1)
		go func() {
			err := callTool(t.Context(), l, "sleep")
			assert.Contains(t, fmt.Sprint(err), "the host closes", "error %v", err)
			waiting <- time.Since(b.began)
		}()
		synctest.Wait()
		closeLink(t, l)
		if took := <-waiting; took != 0 || time.Since(b.began) != time.Second {
			t.Errorf("it took %s of %s", took, time.Since(b.began))
		}
	})
}

// TestSessionGivesUp: a caller that waits for the first connection may give up.
func TestSessionGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newLab()
		b.frozen.Store(true)
		l := b.open(Config{}, Env{})
		defer closeLink(t, l)
		mine := errors.New("mine")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, mine)
		defer cancel()
		_, err := l.Session(ctx)
		assert.That(t, errors.Is(err, mine), "error %v", err)
	})
}

// TestStartTimeout: a server has a limited time to connect. An installer has more by default, and still
// more while the amount that it has installed grows, up to five times the default.
func TestStartTimeout(t *testing.T) {
	for name, c := range map[string]struct {
		cfg   Config
		grows time.Duration
		want  time.Duration
	}{
		"any program":           {Config{Command: "node"}, 0, DefaultConnectTimeout},
		"a program that is set": {Config{Command: "node", ConnectTimeout: time.Minute}, 0, time.Minute},
		"npx":                   {Config{Command: "npx", Args: []string{"-y", "x"}}, 0, DefaultInstallTimeout},
		"uv, with an option": {
			Config{Command: "/opt/uv", Args: []string{"--quiet", "tool", "run", "x"}},
			0,
			DefaultInstallTimeout,
		},
		"uv, for another thing": {Config{Command: "uv", Args: []string{"pip", "list"}}, 0, DefaultConnectTimeout},
		"an installer at work":  {Config{Command: "npx"}, 200 * time.Second, 240 * time.Second},
		"one that never stops":  {Config{Command: "npx"}, time.Hour, 5 * DefaultInstallTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newLab()
				b.frozen.Store(true)
				began := time.Now()
				b.filled = func() int64 { return int64(min(time.Since(began), c.grows)) }
				l := b.open(c.cfg, Env{})
				defer closeLink(t, l)
				err := callTool(t.Context(), l, "echo")
				wantError(t, err, protocol.CodeMCPServerUnavailable, "start_timeout")
				assert.Equal(t, time.Since(began), c.want, "it had")
			})
		})
	}
}
