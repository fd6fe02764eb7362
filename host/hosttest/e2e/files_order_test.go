package e2e_test

import (
	"fmt"
	"strings"
	"testing"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// TestInputOfAProcessKeepsItsOrder: input that is sent to a process in many requests at once arrives in order, its
// end last, also if the host reads other requests meanwhile, as on a busy machine.
func TestInputOfAProcessKeepsItsOrder(t *testing.T) {
	t.Parallel()
	l := start(t, workDir(t))
	l.send(`{"type":"handshake/req","id":"h","agent_caps":["tools","proc"]}`)
	l.answer("h")
	for round := range 30 {
		spawn := fmt.Sprint("s", round)
		l.send(fmt.Sprintf(`{"type":"proc/spawn/req","id":%q,"cmd":["cat"]}`, spawn))
		m := l.answer(spawn)
		must.That(t, m["ok"] == true, "cat was not started: %v", m)
		var lines []string
		var want strings.Builder
		for i := range 300 {
			text := fmt.Sprintf("%04d%s\n", i, strings.Repeat("x", 3000))
			want.WriteString(strings.TrimSpace(text))
			lines = append(lines, fmt.Sprintf(`{"type":"proc/write/req","id":"w","proc_id":%q,"data":%q}`, m["proc_id"],
				text))
		}
		lines = append(lines, fmt.Sprintf(`{"type":"proc/write/req","id":"e","proc_id":%q,"eof":true}`, m["proc_id"]))
		done := make(chan string)
		go func() { done <- l.output(spawn) }()
		l.send(lines...)
		got := <-done
		must.Equal(t, got, want.String(), "round %d: %d bytes came back, and not in order, of %d", round, len(got),
			want.Len())
	}
}

// output reads the output of a process up to its end, without line ends.
func (l *live) output(spawn string) string {
	var text strings.Builder
	for {
		m := l.next()
		if m["type"] != "proc/read/event" || m["req_id"] != spawn {
			continue
		}
		data := m["data"].(map[string]any)
		if part, ok := data["text"].(string); ok {
			text.WriteString(strings.ReplaceAll(part, "\n", ""))
			continue
		}
		return text.String()
	}
}

// TestCallsOnOneFileKeepTheirOrder: calls that are sent at once see what the calls before them wrote: reads of the
// file by another spelling, searches of its folder, and programs. The file is large, so that no call ends before the
// host reads the next one.
func TestCallsOnOneFileKeepTheirOrder(t *testing.T) {
	t.Parallel()
	l := start(t, workDir(t))
	l.send(`{"type":"handshake/req","id":"h","agent_caps":["tools","proc"]}`)
	l.answer("h")
	pad := strings.Repeat("x", 200<<10)
	sees := []string{
		call("%s", "read_file", `{"path":"./sub//f.txt","limit":1}`),
		call("%s", "grep", `{"pattern":"^v[0-9]+$","path":"sub"}`),
		call("%s", "run_command", `{"command":["head","-n1","sub/f.txt"]}`),
		call("%s", "read_file", `{"path":"sub/../sub/f.txt","limit":1}`),
	}
	for round := range 50 {
		version := fmt.Sprint("v", round)
		lines := []string{call("w", "write_file", fmt.Sprintf(`{"path":"sub/f.txt","content":"%s\n%s\n"}`, version,
			pad))}
		for i, see := range sees {
			if i == 2 && round%10 > 0 {
				see = sees[0]
			}
			lines = append(lines, strings.Replace(see, "%s", fmt.Sprintf("r%d.%d", round, i), 1))
		}
		lines = append(lines, call("e", "edit_file", fmt.Sprintf(`{"path":"sub/f.txt","old":"%s\n","new":"edited\n"}`,
			version)),
			call(fmt.Sprintf("l%d", round), "read_file", `{"path":"sub/f.txt","limit":1}`))
		l.send(lines...)
		for left := len(sees) + 1; left > 0; {
			m := l.next()
			id, _ := m["req_id"].(string)
			if id == "w" || id == "e" || m["type"] == "invoke/event" {
				continue
			}
			left--
			want := version
			if id[0] == 'l' {
				want = "edited"
			}
			text := fmt.Sprint(m["data"])
			if id == fmt.Sprintf("r%d.2", round) && round%10 == 0 { // a program may also see later writes
				assert.That(t, strings.Contains(text, version) || strings.Contains(text, "edited"),
					"round %d: the program saw %.300s", round, text)
			} else if !strings.Contains(text, want) {
				t.Errorf("round %d: %s saw %.300s", round, id, text)
			}
		}
	}
}
