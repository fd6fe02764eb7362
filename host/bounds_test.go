package host_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

// TestPingUnderLoad: the host answers a ping while hundreds of slow calls run and wait, and each of those calls is
// answered afterwards.
func TestPingUnderLoad(t *testing.T) {
	l, p := labHost(t, nil)
	var ids []string
	for range 300 {
		ids = append(ids, p.Go(protocol.TypeToolCallReq, tool("block", `{}`)))
	}
	before := len(p.Messages())
	for range 10 {
		m := p.Call(protocol.TypePing, "")
		assert.Equal(t, m.Type, protocol.TypePong, "the ping was answered by %s", m.Line)
		wantCode(t, p.Call(protocol.TypeProcKillReq, `{"proc_id":"ok"}`), "")
	}
	after := len(p.Messages())
	assert.Equal(t, after, before+20, "%d other messages came", after-before-20)
	close(l.gate)
	for _, id := range ids {
		wantCode(t, p.Answer(id), "")
	}
}

// TestOverload: the host refuses at once the requests that do not fit into the queue, by count or by bytes. It
// answers all others in turn, and then takes requests again.
func TestOverload(t *testing.T) {
	for name, limits := range map[string]host.Limits{
		"count": {Queue: 50},
		"bytes": {QueueBytes: 50 * 1700},
	} {
		t.Run(name, func(t *testing.T) {
			l, p := labHost(t, func(o *host.Options) { o.MaxParallel, o.Limits = 2, limits })
			pad := strings.Repeat("x", 1000)
			var ids []string
			for range 200 {
				ids = append(ids, p.Go(protocol.TypeToolCallReq, tool("block", `{"pad":"`+pad+`"}`)))
			}
			p.Call(protocol.TypePing, "")
			refused := 0
			for _, id := range ids {
				for _, m := range p.Answers(id) {
					wantCode(t, m, protocol.CodeOverloaded)
					assert.Equal(t, m.Get("/retryable"), "true", "not retryable: %s", m.Line)
					refused++
				}
			}
			taken := len(ids) - refused
			assert.That(t, taken >= 45 && taken <= 58, "%d requests were taken", taken)
			close(l.gate)
			for _, id := range ids {
				p.Answer(id)
			}
			wantCode(t, p.Call(protocol.TypeToolCallReq, tool("echo", `{}`)), "")
		})
	}
}

// valve is an output whose writes block until open is closed.
type valve struct {
	open chan struct{}
	mu   sync.Mutex
	got  bytes.Buffer
}

func (v *valve) Write(b []byte) (int, error) {
	<-v.open
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.got.Write(b)
}

// calls is an input of n calls of 1 KB each; given counts how many of them were read.
type calls struct {
	n, given int
	rest     string
}

func (c *calls) Read(b []byte) (int, error) {
	if c.rest == "" {
		if c.given == c.n {
			return 0, io.EOF
		}
		args := `{"pad":"` + strings.Repeat("x", 1000) + `"}`
		c.rest = hosttest.Request(protocol.TypeToolCallReq, fmt.Sprint(c.given), tool("echo", args)) + "\n"
		if c.given%10 == 9 {
			c.rest = hosttest.Request(protocol.TypeToolCallReq, fmt.Sprint(c.given),
				`{"streaming":true,`+tool("stream", args)[1:]) + "\n"
		}
		if c.given == 0 {
			c.rest = hosttest.Request(protocol.TypeHandshakeReq, "hs", `{"agent_caps":["tools"]}`) + "\n" + c.rest
		}
		c.given++
	}
	n := copy(b, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestStalledOutput: while nobody reads the answers, the host stops reading requests, so its memory stays bounded.
// Afterwards it continues: no answer is missing, and the events of each request come in order, before its answer.
func TestStalledOutput(t *testing.T) {
	const n, limit = 2000, 1 << 20
	synctest.Test(t, func(t *testing.T) {
		h := must.Get(host.New(host.Options{
			Plugins: []host.Plugin{newLab()},
			Limits:  host.Limits{OutputBuffer: limit},
		}))(t)
		before := heap()
		in, out := &calls{n: n}, &valve{open: make(chan struct{})}
		ended := make(chan error, 1)
		go func() { ended <- h.Serve(in, out) }()
		time.Sleep(5 * time.Second) // by the clock of the synctest bubble: every goroutine that can run has run
		synctest.Wait()
		read := in.given
		time.Sleep(5 * time.Second)
		synctest.Wait()
		assert.That(t, in.given == read && read != n, "the host read on: %d requests, then %d", read, in.given)
		grown := int64(heap()) - int64(before)
		assert.That(t, grown <= 6*limit, "the heap grew by %d bytes", grown)
		close(out.open)
		assert.OK(t, <-ended)
		checkStream(t, out.got.Bytes(), n)
	})
}

// checkStream fails unless out has the n answers to calls, each after its events.
func checkStream(t *testing.T, out []byte, n int) {
	t.Helper()
	next := map[string]int{}
	answered := 0
	for line := range bytes.Lines(out) {
		obj, err := protocol.ParseObject(line)
		must.That(t, err == nil, "%v in %.300s", err, line)
		text := obj.Text("req_id")
		if seq, ok := obj.Get("seq"); ok {
			must.Equal(t, string(seq), fmt.Sprint(next[text]), "an event is out of order, want seq %d: %.300s",
				next[text], line)
			next[text]++
			continue
		}
		if kind, _ := obj.Get("type"); string(kind) == `"tool/call/resp"` {
			want := map[bool]int{true: 6}[strings.HasSuffix(text, "9")]
			must.Equal(t, next[text], want, "… events before the answer, want …: %.300s", line)
			next[text] = -1 // no event and no second answer may follow: no seq is -1
			answered++
		}
	}
	assert.Equal(t, answered, n, "… calls were answered")
}

// TestInterruptWithStalledOutput: a signal ends the host within 1.5 seconds even if nobody reads its output.
func TestInterruptWithStalledOutput(t *testing.T) {
	for name, tc := range map[string]struct{ calls, buffer int }{
		"handlers wait for the full output, the input is open": {1000, 1 << 16},
		"handlers wait for the full output, the input is over": {60, 1 << 16},
		"only the writing is left to do":                       {100, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLab()
				h := must.Get(host.New(host.Options{
					Plugins: []host.Plugin{l},
					Limits:  host.Limits{OutputBuffer: tc.buffer},
				}))(t)
				out := &valve{open: make(chan struct{})}
				ended := make(chan error, 1)
				go func() { ended <- h.Serve(&calls{n: tc.calls}, out) }()
				time.Sleep(3 * time.Second)
				begun := time.Now()
				h.Interrupt()
				<-ended
				took := time.Since(begun)
				assert.That(t, took <= 1500*time.Millisecond, "took %v", took)
				assert.Equal(t, l.closed, 1, "the plugin was closed … times")
				close(out.open)
			})
		})
	}
}

// pipeEnd is an output that fails with err after left bytes.
type pipeEnd struct {
	left int
	err  error
}

func (p *pipeEnd) Write(b []byte) (int, error) {
	if p.left -= len(b); p.left < 0 {
		return 0, p.err
	}
	return len(b), nil
}

// TestOutputFails: if the output fails while calls run and the input is open, Serve closes the plugins and returns an
// error. The error distinguishes a reader that has gone from an output that is broken.
func TestOutputFails(t *testing.T) {
	for after, fault := range map[int]error{
		0: syscall.EPIPE, 1000: syscall.EPIPE, 100_000: io.ErrClosedPipe, 1: syscall.ENOSPC, 1001: syscall.EIO,
		100_001: syscall.EBADF,
	} {
		t.Run(fmt.Sprint(after), func(t *testing.T) {
			l := newLab()
			defer close(l.gate)
			h, err := host.New(host.Options{Plugins: []host.Plugin{l}})
			must.OK(t, err)
			in, w := io.Pipe()
			go func() {
				io.WriteString(w, hosttest.Request(protocol.TypeHandshakeReq, "hs", `{"agent_caps":["tools"]}`)+"\n"+
					hosttest.Request(protocol.TypeToolCallReq, "b", tool("block", `{}`))+"\n")
				io.Copy(w, &calls{n: 10_000, given: 1})
				<-l.gate // the input stays open
				w.Close()
			}()
			err = h.Serve(in, &pipeEnd{after, fault})
			in.Close()
			gone := after%10 == 0
			assert.That(t, errors.Is(err, host.ErrOutputClosed) == gone && errors.Is(err, fault), "Serve gave %v", err)
			assert.Equal(t, l.closed, 1, "the plugin was closed … times")
		})
	}
}

// TestLongAgentID: the agent_id of a handshake has at most 1024 bytes, because the host keeps and logs it. A
// handshake with a longer one does not end the session that exists.
func TestLongAgentID(t *testing.T) {
	_, p := labHost(t, nil)
	hello := func(n int) hosttest.Message {
		return p.Call(protocol.TypeHandshakeReq, fmt.Sprintf(`{"agent_id":%q,"agent_caps":["tools"]}`,
			strings.Repeat("é", n/2)))
	}
	m := hello(1026)
	assert.That(t, m.Code == protocol.CodeSchemaViolation && m.Problem() == "/agent_id" &&
		strings.Contains(m.Get("/message"), "at most 1024") && len(m.Line) <= 1000, "%.1000s", m.Line)
	wantCode(t, p.Call(protocol.TypeToolCallReq, tool("ok", `{}`)), "")
	hello(1024).Has(t, "/ok", "true")
}
