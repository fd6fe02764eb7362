package cli_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// What the real host may take in memory while it is attacked, and in address space at all:
// one that wants terabytes, or that many requests drive beyond, ends at the second.
const (
	peakBytes    = 1536 << 20
	addressBytes = 6 << 30
)

// TestWallMemory guards against requests that make the host build what nobody computed the
// size of before: each is sent to the real binary under a bound of its address space,
// several at once, and the host answers all of them and a ping after that.
func TestWallMemory(t *testing.T) {
	t.Parallel()
	dir := workDir(t)
	for name, text := range map[string]string{"a.txt": strings.Repeat("a", 1<<20), "deep.json": strings.Repeat("[", 1<<20), "lines": strings.Repeat("x\n", 500_000)} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	cmd := command(t, dir, "./a2e")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	must(t, cmd.Start())
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	must(t, unix.Prlimit(cmd.Process.Pid, unix.RLIMIT_AS, &unix.Rlimit{Cur: addressBytes, Max: addressBytes}, nil))
	answers := make(chan string, 1000)
	go func() {
		defer close(answers)
		lines := bufio.NewReaderSize(out, 1<<20)
		for {
			line, err := lines.ReadBytes('\n')
			if err != nil {
				return
			}
			var m struct {
				Type string `json:"type"`
				Req  string `json:"req_id"`
			}
			if json.Unmarshal(line, &m) == nil && m.Req != "" && !strings.HasSuffix(m.Type, "/event") {
				answers <- m.Req
			}
		}
	}()
	ask := func(id string, times int, request string) {
		t.Helper()
		for i := range times {
			if _, err := fmt.Fprintf(in, `{"id":"%s-%d",%s}`+"\n", id, i, request); err != nil {
				t.Fatalf("the host is gone: %v", err)
			}
		}
		for got := 0; got < times; {
			select {
			case a, ok := <-answers:
				if !ok {
					t.Fatal("the host ended")
				}
				if strings.HasPrefix(a, id+"-") {
					got++
				}
			case <-time.After(3 * time.Minute):
				t.Fatal("no answer")
			}
		}
	}
	ask("hello", 1, `"type":"handshake/req","agent_id":"x","agent_caps":["tools","chains","memory","proc"]`)
	for _, attack := range memoryAttacks() {
		t.Run(attack[0], func(t *testing.T) {
			ask(strings.ReplaceAll(attack[0], " ", "_"), 4, attack[1])
			ask("ping", 1, `"type":"ping"`)
			if peak := peakOf(t, cmd.Process.Pid); peak > peakBytes {
				t.Errorf("the host took %d MiB", peak>>20)
			}
		})
	}
	t.Logf("peak of the host: %d MiB", peakOf(t, cmd.Process.Pid)>>20)
	must(t, in.Close())
	for range answers {
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the host ended with %v", err)
	}
}

// peakOf is the most that a process has taken so far, in bytes.
func peakOf(t *testing.T, pid int) int64 {
	t.Helper()
	status := got(os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)))(t)
	_, after, _ := strings.Cut(string(status), "VmHWM:")
	kib, err := strconv.ParseInt(strings.Fields(after)[0], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}

// memoryAttacks are requests, each with its name.
func memoryAttacks() [][2]string {
	big := strings.Repeat("x", 2<<20)
	list := "[" + strings.Repeat("0,", 47) + "0]"
	tool := func(name, args string) string {
		return fmt.Sprintf(`"type":"tool/call/req","timeout":20,"tool_name":%q,"arguments":%s`, name, args)
	}
	chain := func(nodes string) string {
		return fmt.Sprintf(`"type":"chain/req","timeout":60,"chain_id":"c","entry_node":"a","nodes":[%s],"initial_input":{"l":%s,"t":%q}`, nodes, list, big)
	}
	each := func(expr, more string) string {
		return chain(`{"node_id":"a","kind":"map","items_path":"input.l","map_node":"e"},{"node_id":"e","kind":"tool","name":"echo","input_map":{` + expr + `}` + more + `}`)
	}
	seven := `join('',[` + strings.TrimSuffix(strings.Repeat("input.t,", 7), ",") + `])`
	var row []string
	for i := range 200 {
		row = append(row, fmt.Sprintf(`{"node_id":"a%d","kind":"tool","name":"echo","input_map":{"text":"join('',[input.t,input.t,input.t,input.t])"}}`, i))
	}
	return [][2]string{
		{"edit all", tool("edit_file", `{"path":"a.txt","old":"a","new":"`+strings.Repeat("n", 10<<20)+`","all":true}`)},
		{"edit all lines", tool("edit_file", `{"path":"lines","old":"\n","new":"`+strings.Repeat("n", 1<<20)+`","all":true}`)},
		{"grep repeats", tool("grep", `{"pattern":"`+strings.Repeat("(a{1000})", 450)+`b"}`)},
		{"grep ranges", tool("grep", `{"pattern":"`+strings.Repeat(`\\PL`, 1300)+`"}`)},
		{"grep optional", tool("grep", `{"pattern":"`+strings.Repeat("([ab]{0,1000})", 200)+`[cd]"}`)},
		{"glob braces", tool("glob", `{"pattern":"`+strings.Repeat("{*,*a}", 600)+`"}`)},
		{"glob wide", tool("glob", `{"pattern":"{`+strings.Repeat("*,", 1500)+`}","limit":100000}`)},
		{"read all", tool("read_file", `{"path":"a.txt","limit":1000000000}`)},
		{"echo large", tool("echo", `{"text":"`+strings.Repeat("y", 14<<20)+`"}`)},
		{"echo escapes", tool("echo", `{"text":"`+strings.Repeat(`\u0001`, 2<<20)+`"}`)},
		{"write large", tool("write_file", `{"path":"w","content":"`+strings.Repeat("y", 14<<20)+`"}`)},
		{"stdin large", tool("run_command", `{"command":["cat"],"stdin":"`+strings.Repeat("y", 12<<20)+`"}`)},
		{"output large", tool("run_command", `{"command":["head","-c","300000000","/dev/zero"]}`)},
		{"map of large calls", each(`"text":"`+seven+`"`, "")},
		{"map of failing calls", each(`"nope":"`+seven+`"`, `,"on_error":"skip"`)},
		{"map of maps", chain(`{"node_id":"a","kind":"map","items_path":"input.l","map_node":"m"},{"node_id":"m","kind":"map","items_path":"input.l","map_node":"e"},` +
			`{"node_id":"e","kind":"tool","name":"echo","input_map":{"text":"input.t"}}`)},
		{"row of calls", strings.Replace(chain(strings.Join(row, ",")), `"entry_node":"a"`, `"entry_node":"a0"`, 1)},
		{"to_string", each(`"text":"to_string([input,input,input,input,input,input,input])"`, "")},
		{"doubling", each(`"text":"to_string(input`+strings.Repeat(" | [@,@]", 60)+`)"`, "")},
		{"replace", each(`"text":"replace(input.t, 'x', input.t)"`, "")},
		{"pad", each("\"text\":\"pad_left('', `1000000000000`)\"", "")},
		{"repeated join", each(`"text":"join(input.t, split(input.t, ''))"`, "")},
		{"search", fmt.Sprintf(`"type":"tool/search/req","query":%q,"limit":1000000`, strings.Repeat("read file ", 1<<20))},
		{"line of brackets", `"type":"tool/call/req","tool_name":"echo","arguments":{"text":` + strings.Repeat("[", 900) + strings.Repeat("]", 900) + `}`},
	}
}
