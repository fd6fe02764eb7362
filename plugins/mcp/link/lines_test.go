package link

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

func TestEvents(t *testing.T) {
	call, note := `{"jsonrpc":"2.0","id":1,"result":{}}`, `{"jsonrpc":"2.0","method":"notifications/message"}`
	long := "data: " + strings.Repeat("x", maxLine/2) + "\n"
	for name, tc := range map[string]struct {
		transport Transport
		in, want  string
		junk      int64
	}{
		"message":         {HTTP, "event: message\nid: 7\nretry: 5\ndata: " + call + "\n\n", "event: message\nid: 7\nretry: 100\ndata: " + call + "\n\n", 0},
		"crlf":            {HTTP, "data:" + call + "\r\n\r\ndata: " + note + "\r\n\r\n", "data: " + call + "\n\ndata: " + note + "\n\n", 0},
		"two lines":       {HTTP, "data: {\"jsonrpc\":\"2.0\",\ndata: \"id\":1,\"result\":{}}\n\n", "data: {\"jsonrpc\":\"2.0\",\ndata: \"id\":1,\"result\":{}}\n\n", 0},
		"priming":         {HTTP, "id: 3\ndata:\n\n", "id: 3\n\n", 0},
		"junk keeps id":   {HTTP, "id: 3\ndata: no\n\n", "id: 3\n\n", 1},
		"junk":            {SSE, "id: 3\ndata: no\n\ndata: " + call + "\n\n", "data: " + call + "\n\n", 1},
		"endpoint":        {SSE, "event: endpoint\ndata: /post?x=1\n\n", "event: endpoint\ndata: /post?x=1\n\n", 0},
		"another name":    {HTTP, "event: endpoint\nid: 2\ndata: /post?x=1\n\n", "event: endpoint\nid: 2\n\n", 0},
		"odd lines":       {HTTP, ": hello\nnonsense\ndata: " + call + "\nfoo: bar\n\n", "data: " + call + "\n\n", 0},
		"too long":        {HTTP, "data: " + call + "\n\n" + long + long + long + "\n", "data: " + call + "\n\n", 0},
		"too long a line": {SSE, "data: " + strings.Repeat("x", 2*maxLine) + "\n\n", "", 0},
		"broken off":      {HTTP, "data: " + call + "\n", "", 0},
	} {
		l := &Link{cfg: Config{}.withDefaults(), env: Env{Now: time.Now}}
		c := newConn(l, tc.transport)
		released := 0
		e := newEvents(c, io.NopCloser(iotest.HalfReader(strings.NewReader(tc.in))), func() { released++ })
		got, err := io.ReadAll(iotest.OneByteReader(e))
		if (err != nil) != strings.HasPrefix(name, "too long") || string(got) != tc.want || l.junk.Load() != tc.junk {
			t.Errorf("%s: %.200q, %v, %d pieces of junk", name, got, err, l.junk.Load())
		}
		for range 2 {
			if err := e.Close(); err != nil || released != 1 {
				t.Errorf("%s: %v, released %d times", name, err, released)
			}
		}
		c.kill(errClosed)
		if got, err := io.ReadAll(newEvents(c, io.NopCloser(iotest.ErrReader(errors.New("cut"))), func() {})); string(got) != lastEvent || err != nil {
			t.Errorf("%s: ends with %q, %v", name, got, err)
		}
	}
}
