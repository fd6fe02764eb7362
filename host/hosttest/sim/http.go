//go:build linux

package sim

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"time"

	"a2e/host/hosttest/must"
	"a2e/host/hosttest/poll"
)

// session is a host's session over HTTP.
type session struct {
	host   *host
	url    string
	id     string
	cancel context.CancelFunc
	heard  chan struct{} // closed when nothing more is read
	last   string        // id of the last event
}

var listens = regexp.MustCompile(`a2e listens on (\S+)`)

// startHTTP starts a host and opens a session. The host must write nothing to its stdout.
func (s *Sim) startHTTP(h *host, stdout io.Reader) {
	must.OK(s.t, h.cmd.Start())
	go func() {
		defer close(h.ended)
		if out, _ := io.ReadAll(stdout); len(out) > 0 {
			h.fail("a host on HTTP writes to stdout: %.300s", out)
		}
	}()
	c := &session{host: h, heard: make(chan struct{})}
	poll.Within(s.t, patience, "the address", func() bool {
		text, _ := os.ReadFile(h.stderr)
		found := listens.FindSubmatch(text)
		if found != nil {
			c.url = string(found[1])
		}
		return found != nil
	})
	resp := must.Get(http.Post(c.url+"/session", "application/json", nil))(s.t)
	body := must.Get(io.ReadAll(resp.Body))(s.t)
	_ = resp.Body.Close()
	c.id = strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(string(body)), `{"session_id":"`), `"}`)
	var ctx context.Context
	ctx, c.cancel = context.WithCancel(context.Background())
	h.to = c
	go c.listen(ctx)
}

// send implements sender. It sends each line as one HTTP request; a line that is not accepted gets no answer.
func (c *session) send(text string) error {
	for line := range strings.Lines(text) {
		for try := 0; ; try++ {
			req, err := http.NewRequest(http.MethodPost, c.url+"/send",
				strings.NewReader(strings.TrimSuffix(line, "\n")))
			if err != nil {
				return err
			}
			req.Header.Set("X-Session-Id", c.id)
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				return err
			}
			said, _ := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				break
			}
			if resp.StatusCode != http.StatusServiceUnavailable || try > 20 {
				return fmt.Errorf("%w: %s: %s", errRefused, resp.Status, said)
			}
		}
	}
	return nil
}

// close implements sender.
func (c *session) close() error {
	c.cancel()
	<-c.heard
	return nil
}

// listen reads the stream of events, and continues after the last event when a connection ends.
func (c *session) listen(ctx context.Context) {
	defer close(c.heard)
	for ctx.Err() == nil {
		select {
		case <-c.host.ended:
			return
		default:
		}
		req, _ := http.NewRequestWithContext(ctx, http.MethodGet, c.url+"/stream", nil)
		req.Header.Set("X-Session-Id", c.id)
		if c.last != "" {
			req.Header.Set("Last-Event-ID", c.last)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			time.Sleep(time.Millisecond)
			continue
		}
		c.events(resp.Body)
		_ = resp.Body.Close()
	}
}

// events reads events until the end of a connection, or ends it itself after some events. Only an
// empty line completes an event, as the death of the host may cut one off anywhere.
func (c *session) events(r io.Reader) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 64<<20)
	var id string
	var data []byte
	for n := 0; lines.Scan() && n < 100; {
		pass(&c.host.gate)
		field, rest, _ := bytes.Cut(lines.Bytes(), []byte(": "))
		switch string(field) {
		case "id":
			id = string(rest)
		case "data":
			data = bytes.Clone(rest)
		case "":
			if data != nil {
				c.host.judge.take(data)
				c.last, data = id, nil
				n++
			}
		}
	}
}
