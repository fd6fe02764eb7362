package link

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/rs/zerolog"

	"a2e/host/redact"
)

func TestLineReader(t *testing.T) {
	full, over := strings.Repeat("a", maxLine), strings.Repeat("b", maxLine+1)
	middle := strings.Repeat("c", 100<<10)
	for name, tc := range map[string]struct {
		in   string
		want []string
	}{
		"empty":        {"", nil},
		"lines":        {"x\n\ny\r\n", []string{"x", "", "y\r"}},
		"no end":       {"x\ny", []string{"x", "y"}},
		"middle":       {middle + "\nx\n" + middle, []string{middle, "x", middle}},
		"full":         {"x\n" + full + "\ny\n", []string{"x", full, "y"}},
		"over":         {"x\n" + over + "\ny\n", []string{"x", "long", "y"}},
		"over, no end": {over + full, []string{"long"}},
	} {
		for _, r := range []io.Reader{strings.NewReader(tc.in), iotest.HalfReader(strings.NewReader(tc.in)), iotest.DataErrReader(strings.NewReader(tc.in))} {
			lines := newLineReader(r)
			var got []string
			for {
				line, err := lines.next()
				if errors.Is(err, errLong) {
					line = []byte("long")
				} else if err != nil {
					break
				}
				got = append(got, string(line))
			}
			if len(got) != len(tc.want) {
				t.Errorf("%s: %d lines, want %d", name, len(got), len(tc.want))
				continue
			}
			for i := range got {
				if got[i] != tc.want[i] {
					t.Errorf("%s: line %d is %.20q of %d bytes, want %.20q of %d", name, i, got[i], len(got[i]), tc.want[i], len(tc.want[i]))
				}
			}
		}
	}
}

func TestEar(t *testing.T) {
	var log bytes.Buffer
	now := time.Unix(0, 0)
	e := newEar(zerolog.New(&log), (&Config{Env: map[string]string{"K": "sesame-open"}}).secrets(nil), func() time.Time { return now })
	say := func(text string) string {
		log.Reset()
		if n, err := e.Write([]byte(text)); n != len(text) || err != nil {
			t.Fatal(n, err)
		}
		return log.String()
	}
	if got := say("a\n\nsesame-"); strings.Count(got, "\n") != 1 {
		t.Errorf("%q", got)
	}
	if got := say("open\r\nb"); !strings.Contains(got, `"stderr":"`+redact.Text+`"`) {
		t.Errorf("%q", got)
	}
	for cut := range 12 { // no part of a secret at the end of a line that is cut
		if got := say(strings.Repeat(".", maxStderr-cut) + "sesame-open" + strings.Repeat(".", 9999) + "\n"); strings.Contains(got, "ses") {
			t.Errorf("%.100q…%q", got, got[max(0, len(got)-100):])
		}
		if got := e.last(); strings.Contains(got, "ses") {
			t.Errorf("last words %q", got)
		}
	}
	say(strings.Repeat("x\n", 2*burstStderr))
	if got := say("y\n"); got != "" {
		t.Errorf("%q", got)
	}
	now = now.Add(2 * time.Second)
	if got := say(strings.Repeat("z\n", 1000)); strings.Count(got, "\n") != 1+perSecond+1 {
		t.Errorf("%d lines", strings.Count(got, "\n"))
	}
	for i := range 10_000 {
		fmt.Fprintf(e, "line %d\n", i)
	}
	say("the end")
	if got := e.last(); !strings.HasSuffix(got, "line 9999") || len(got) > maxLastWords {
		t.Errorf("%q", got)
	}
	now = now.Add(time.Hour)
	e.end()
	e.end()
	if got := e.last(); !strings.HasSuffix(got, "line 9999\nthe end") || len(e.words) > 2*maxWords {
		t.Errorf("%q", got)
	}
}

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
