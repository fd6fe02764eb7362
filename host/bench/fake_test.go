package bench

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
)

// faultVariable makes the test binary a host of its own, with one fault or "".
const faultVariable = "BENCH_TEST_FAULT"

// fakeHost returns the path of a small a2e host.
func fakeHost(t *testing.T, fault string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(faultVariable, fault)
	t.Setenv("GORACE", "atexit_sleep_ms=0") // else each fake host takes a second to end
	return self
}

// strikes is the answer at which the fault strikes, the first one of a load: the handshake
// and a probe come before it. A slow machine may not get to many more.
const strikes = 3

// serveFake answers on stdout what comes on stdin. The fault strikes once.
func serveFake(fault string) {
	in, out := bufio.NewReaderSize(os.Stdin, 1<<21), bufio.NewWriter(os.Stdout)
	for n := 1; ; n++ {
		line, err := in.ReadSlice('\n')
		if err != nil {
			out.Flush()
			return
		}
		answer := fakeAnswer(line)
		if n == strikes {
			switch fault {
			case "error":
				answer = strings.NewReplacer(`"tool/call/resp"`, `"error"`, `"pong"`, `"error"`).Replace(answer)
			case "short":
				answer = strings.Replace(answer, payload(text100)[:2*slack], "", 1)
			case "twice":
				answer += answer
			case "missing":
				answer = ""
			case "dies":
				fmt.Fprintln(os.Stderr, "a bug in the host")
				return
			case "notification":
				answer = `{"jsonrpc":"2.0","method":"notifications/message"}` + "\n" + answer
			}
		}
		out.WriteString(answer)
		if in.Buffered() == 0 {
			out.Flush()
		}
	}
}

func fakeAnswer(line []byte) string {
	var q struct {
		Type string            `json:"type"`
		ID   string            `json:"id"`
		Args map[string]string `json:"arguments"`
	}
	if err := json.Unmarshal(line, &q); err != nil {
		return `{"type":"error"}` + "\n"
	}
	head := `{"a2e":"1.0","req_id":"` + q.ID + `","type":`
	switch q.Type {
	case "handshake/req":
		return head + `"handshake/resp","ok":true}` + "\n"
	case "ping":
		return head + `"pong"}` + "\n"
	}
	return head + `"tool/call/resp","data":{"success":true,"data":{"text":"` + q.Args["text"] + `"}}}` + "\n"
}

// Guards against a bench that counts what is no answer.
func TestFaultsAreNoticed(t *testing.T) {
	for _, c := range []struct{ fault, want string }{ // want is a regular expression; "" is no error
		{"", ""},
		{"notification", ""},
		{"error", "not an answer"},
		{"short", "cut short"},
		{"twice", "more than requests|req_id is"}, // whether the next exchange sees it first,
		{"missing", "no answer in time"},
		{"dies", "a bug in the host"},
	} {
		t.Run(c.fault, func(t *testing.T) {
			self := fakeHost(t, c.fault)
			dir := t.TempDir()
			for _, window := range []int{1, 8} {
				tg := &target{command: []string{self}, dialect: a2eDialect(), dir: dir, logs: dir, pipe: 1 << 20, patience: time.Minute}
				if c.fault == "missing" {
					tg.patience = 300 * time.Millisecond
				}
				var got tally
				_, err := tg.session(t.Context(), text100, window, 20*time.Millisecond, func(l *load) (err error) {
					got, err = l.run()
					return err
				})
				switch {
				case c.want == "" && (err != nil || got.answers < 1):
					t.Errorf("window %d: %d answers, %v", window, got.answers, err)
				case c.want != "" && (err == nil || !regexp.MustCompile(c.want).MatchString(err.Error())):
					t.Errorf("window %d: got %v, want %q", window, err, c.want)
				}
			}
		})
	}
}

// Guards against a load that writes while nobody reads: such a window does not
// fit into the pipes.
func TestWindowLargerThanThePipes(t *testing.T) {
	self := fakeHost(t, "")
	dir := t.TempDir()
	tg := &target{command: []string{self}, dialect: a2eDialect(), dir: dir, logs: dir, patience: time.Minute}
	_, err := tg.session(t.Context(), text1M, 8, 50*time.Millisecond, func(l *load) error {
		got, err := l.run()
		if err == nil && got.answers == 0 {
			t.Error("no answers")
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestLinesOfAllLengths(t *testing.T) {
	sizes := []int{0, 1, 10, keepSize, keepSize + 1, readSize - 1, readSize, readSize + 1, 3 * readSize, 5, 1_000_000, 0}
	for _, whole := range []bool{true, false} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			defer w.Close()
			for i, n := range sizes {
				fmt.Fprintf(w, "%s\n", strings.Repeat(string(rune('a'+i)), n))
			}
		}()
		l := newLines(r)
		l.whole = whole
		var got []int
		for {
			for line := l.next(); line != nil; line = l.next() {
				if want := strings.Repeat(string(rune('a'+len(got))), len(line)); string(line) != want {
					t.Errorf("line %d holds another line", len(got))
				}
				if whole && l.cut != 0 {
					t.Errorf("line %d was cut", len(got))
				}
				got = append(got, len(line)+l.cut)
			}
			if err := l.fill(); err != nil {
				break
			}
		}
		r.Close()
		if fmt.Sprint(got) != fmt.Sprint(sizes) {
			t.Errorf("whole %v: lengths %v, want %v", whole, got, sizes)
		}
		if !whole && len(l.buf) != readSize {
			t.Errorf("the buffer grew to %d bytes", len(l.buf))
		}
	}
}

func TestEveryRequestHasItsOwnID(t *testing.T) {
	for _, d := range []*dialect{a2eDialect(), mcpDialect(), lineDialect()} {
		for _, size := range []string{"", text100, text1M} {
			q := ask(d, size)
			b := newBatch(q, 64)
			seen := map[string]bool{}
			for range 3 {
				data, n := b.take(64)
				if strings.Count(string(data), "\n") != n {
					t.Fatalf("%s %s: %d requests, but not as many lines", d.name, size, n)
				}
				for line := range strings.Lines(string(data)) {
					seen[line] = true
				}
			}
			if want := 3 * b.slots; len(seen) != want {
				t.Errorf("%s %s: %d different requests of %d", d.name, size, len(seen), want)
			}
		}
	}
}

func TestEchoOfALineIsAsLongAsItsName(t *testing.T) {
	for size, want := range map[string]int{text100: 100, text10K: 10_000, text1M: 1_000_000} {
		if got := newBatch(ask(lineDialect(), size), 1).size - 1; got != want {
			t.Errorf("%s: %d bytes", size, got)
		}
		if got := len(ask(a2eDialect(), size).text); got != want {
			t.Errorf("%s: a text of %d bytes", size, got)
		}
	}
}

func TestALoadEndsWithItsContext(t *testing.T) {
	self := fakeHost(t, "")
	dir := t.TempDir()
	tg := &target{command: []string{self}, dialect: a2eDialect(), dir: dir, logs: dir, patience: time.Minute}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err := tg.session(ctx, "", 8, time.Second, func(l *load) error {
		cancel()
		_, err := l.run()
		return err
	})
	if err == nil {
		t.Error("the load went on to its end")
	}
}

// Guards against figures that are no numbers, where all answers come after the
// time is up.
func TestRunOfAnInstant(t *testing.T) {
	self, dir := fakeHost(t, ""), t.TempDir()
	tg := &target{command: []string{self}, dialect: a2eDialect(), dir: dir, logs: dir, pipe: 1 << 20, patience: time.Minute}
	for _, window := range []int{1, 8} {
		var got tally
		_, err := tg.session(t.Context(), text100, window, time.Nanosecond, func(l *load) (err error) {
			got, err = l.run()
			return err
		})
		if err != nil || got.answers < 1 || got.answers > window || got.elapsed <= 0 {
			t.Errorf("window %d: %+v, %v", window, got, err)
		}
	}
}
