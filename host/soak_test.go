package host_test

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"a2e/host"
	"a2e/host/hosttest"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/protocol"
)

const (
	soakWriters = 64
	soakWindow  = 64 // requests of one writer under way
)

// soakSize is the number of requests: A2E_SOAK, or 50,000.
func soakSize(t *testing.T) int {
	text := os.Getenv("A2E_SOAK")
	if text == "" {
		return 50_000
	}
	n, err := strconv.Atoi(text)
	must.That(t, err == nil && n >= soakWriters, "A2E_SOAK is %q; should be a number of requests from %d", text, soakWriters)
	return n
}

// soak is the agent of TestSoak: what it has sent, and what came back.
type soak struct {
	t       *testing.T
	answers []atomic.Uint32 // by the number of the request
	room    [soakWriters]chan struct{}
	done    chan struct{} // closed when the host's output has ended
}

// TestSoak: many requests from 64 writers over real pipes, one in a hundred of
// them a fault (panic, end of the goroutine, timeout, cancel): each is answered
// exactly once. `make soak` sets A2E_SOAK to 1,000,000.
func TestSoak(t *testing.T) {
	n := soakSize(t)
	n -= n % soakWriters
	l := newLab()
	l.begun = make(chan string, n)
	h := must.Get(host.New(host.Options{Plugins: []host.Plugin{l}, MaxParallel: 256}))(t)
	inR, inW := pipe(t)
	outR, outW := pipe(t)
	s := &soak{t: t, answers: make([]atomic.Uint32, n), done: make(chan struct{})}
	for i := range s.room {
		s.room[i] = make(chan struct{}, soakWindow)
	}
	ended := make(chan error, 1)
	go func() {
		ended <- h.Serve(inR, outW)
		outW.Close()
	}()
	go s.read(outR)
	begun := time.Now()
	s.write(inW, n)
	written := time.Since(begun)
	inW.Close()
	assert.OK(t, <-ended)
	<-s.done
	close(l.gate)
	for i := range s.answers {
		if got := s.answers[i].Load(); got != 1 {
			t.Errorf("request %d (%s) was answered %d times", i, soakKind(i), got)
		}
	}
	t.Logf("%d requests, sent in %v, answered in %v", n, written.Round(time.Millisecond), time.Since(begun).Round(time.Millisecond))
}

func pipe(t *testing.T) (r, w *os.File) {
	r, w, err := os.Pipe()
	must.OK(t, err)
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}

// soakKind says what request i is.
func soakKind(i int) string {
	switch i % 1000 {
	case 100, 300, 500, 700:
		return "panic"
	case 150:
		return "goexit"
	case 250:
		return "timeout"
	case 350, 450, 550, 650:
		return "cancel"
	}
	switch i % 20 {
	case 0, 5, 10, 15:
		return "ping"
	case 1:
		return "stream"
	}
	return "echo"
}

func soakLine(i int) string {
	id := strconv.Itoa(i)
	call := func(fields string) string { return hosttest.Request(protocol.TypeToolCallReq, id, fields) + "\n" }
	switch kind := soakKind(i); kind {
	case "ping":
		return hosttest.Request(protocol.TypePing, id, "") + "\n"
	case "timeout":
		return call(`{"timeout":1,` + tool("block", `{}`)[1:])
	case "cancel":
		return call(tool("block", `{}`)) + hosttest.Request(protocol.TypeCancel, "x"+id, fmt.Sprintf(`{"req_id":%q}`, id)) + "\n"
	case "stream":
		return call(`{"streaming":true,` + tool("stream", `{}`)[1:])
	default:
		return call(tool(kind, `{"text":"hello"}`))
	}
}

// write sends the requests, each writer a share of them, some whole lines at a time.
func (s *soak) write(w *os.File, n int) {
	fmt.Fprintln(w, hosttest.Request(protocol.TypeHandshakeReq, "hs", `{"agent_caps":["tools"]}`))
	var all sync.WaitGroup
	for writer := range soakWriters {
		all.Go(func() {
			var lines []byte
			for i := writer; i < n; i += soakWriters {
				s.room[writer] <- struct{}{}
				lines = append(lines, soakLine(i)...)
				if len(lines) < 2000 && i+soakWriters < n {
					continue
				}
				if _, err := w.Write(lines); err != nil {
					s.t.Errorf("writer %d: %v", writer, err)
					return
				}
				lines = lines[:0]
			}
		})
	}
	all.Wait()
}

// read counts the answers.
func (s *soak) read(r *os.File) {
	defer close(s.done)
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for count := 0; lines.Scan(); count++ {
		line := lines.Bytes()
		if count%50 == 0 {
			hosttest.CheckLine(s.t, line)
		}
		if bytes.Contains(line[:min(len(line), 60)], []byte(`"invoke/event"`)) {
			continue
		}
		_, rest, _ := strings.Cut(string(line[:min(len(line), 300)]), `"req_id":"`)
		id, _, _ := strings.Cut(rest, `"`)
		i, err := strconv.Atoi(id)
		if err != nil {
			if id != "hs" {
				s.t.Errorf("an answer to nobody: %s", line)
			}
			continue
		}
		s.answers[i].Add(1)
		<-s.room[i%soakWriters]
	}
	if err := lines.Err(); err != nil {
		s.t.Error(err)
	}
}
