package client_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"a2e/protocol"
	"a2e/protocol/client"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// line is one message as the fake host reads it.
type line struct {
	Type, ID, ReqID string
	Object          protocol.Object
	Raw             string
}

// fakeHost is the other end of a Client: a script in a goroutine of its own.
type fakeHost struct {
	t   *testing.T
	in  *bufio.Scanner
	mu  sync.Mutex // one writer at a time
	out io.Writer
}

// next reads the next line; ok is false at the end of the input.
func (h *fakeHost) next() (l line, ok bool) {
	if !h.in.Scan() {
		return line{}, false
	}
	obj, err := protocol.ParseObject([]byte(h.in.Text()))
	if err != nil {
		h.t.Errorf("the client wrote %q: %v", h.in.Text(), err)
		return line{}, false
	}
	l = line{Object: obj, Raw: h.in.Text()}
	for name, dst := range map[string]*string{"type": &l.Type, "id": &l.ID, "req_id": &l.ReqID} {
		if val, there := obj.Get(name); there {
			*dst, _ = val.Str()
		}
	}
	return l, true
}

// expect reads the next line, which must be of type t.
func (h *fakeHost) expect(t string) line {
	l, ok := h.next()
	if !ok || l.Type != t {
		h.t.Errorf("the client sent %q, should be %s", l.Raw, t)
	}
	return l
}

func (h *fakeHost) write(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, err := fmt.Fprintf(h.out, format+"\n", args...); err != nil && !errors.Is(err, io.ErrClosedPipe) {
		h.t.Errorf("fake host: %v", err)
	}
}

// rest answers every ping until the client closes.
func (h *fakeHost) rest() {
	for l, ok := h.next(); ok; l, ok = h.next() {
		if l.Type == "ping" {
			h.write(`{"type":"pong","req_id":%q,"uptime_seconds":1.5}`, l.ID)
		}
	}
}

// attach connects a Client with a script. The fake host closes its output when
// the script returns.
func attach(t *testing.T, opts client.Options, script func(h *fakeHost)) *client.Client {
	t.Helper()
	hostIn, out := io.Pipe()
	in, hostOut := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer hostOut.Close()
		h := &fakeHost{t: t, in: bufio.NewScanner(hostIn), out: hostOut}
		h.in.Buffer(nil, 32<<20)
		script(h)
		hostIn.Close()
	}()
	c := client.Attach(in, out, opts)
	t.Cleanup(func() {
		c.Close()
		<-done
	})
	return c
}

// eventually waits until cond holds.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}
