package worker

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"

	"a2e/protocol/fleet"
)

// play is this test binary as a worker: a program that speaks the fleet protocol. Its
// arguments say what it announces; each brief says what becomes of the task, such as
// "note; sleep 5ms; done".
func play(role string) int {
	if role != "fleet" {
		return 2
	}
	a := &actor{out: bufio.NewWriter(os.Stdout)}
	appendLine("starts", "start")
	if len(os.Args) == 1 || os.Args[1] == "stays" {
		a.write(`{"type":"SESSION_ANNOUNCE"}`)
	}
	for _, arg := range os.Args[1:] {
		switch {
		case arg == "mute":
			fmt.Fprintln(os.Stderr, "cannot find my model")
			return 3
		case arg == "quiet":
		case arg == "stays":
			defer awaitLines("ends", 3)
		case arg == "echoes":
			_, _ = io.Copy(os.Stdout, os.Stdin)
			return 0
		case arg == "dumb":
			os.Stdout.Close()
			time.Sleep(time.Hour)
		case arg == "deaf":
			os.Stdin.Close()
			time.Sleep(time.Hour)
		default:
			a.write(arg)
		}
	}
	in := bufio.NewReader(os.Stdin)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			appendLine("ends", "end")
			return 0
		}
		var d struct {
			fleet.Dispatch
			TaskID string `json:"task_id"`
			Text   string `json:"text"`
		}
		if err := json.Unmarshal(line, &d); err != nil {
			fmt.Fprintln(os.Stderr, "bad line:", err)
			return 4
		}
		if d.Type != fleet.TypeDispatch {
			appendLine("messages", fmt.Sprintf("%s %s %s", d.Type, d.TaskID, d.Text))
			if d.Type == fleet.TypeCancel {
				a.write(fmt.Sprintf(`{"type":"TASK_RESULT","task_id":%q,"status":"error","error":"cancelled"}`, d.TaskID))
			}
			continue
		}
		appendLine("lines", strings.TrimSpace(string(line)))
		go a.act(&d.Dispatch)
	}
}

// actor does the tasks.
type actor struct {
	mu  sync.Mutex
	out *bufio.Writer // guarded by mu
}

func (a *actor) write(lines ...string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, line := range lines {
		a.out.WriteString(line + "\n")
	}
	a.out.Flush()
}

func (a *actor) result(id, rest string) string {
	return fmt.Sprintf(`{"type":"TASK_RESULT","protocol_version":"2.0","task_id":%q,%s}`, id, rest)
}

// act does one task.
func (a *actor) act(d *fleet.Dispatch) {
	id := d.Task.TaskID
	done := `"status":"done","tokens_spent":7,"summary":"did ` + id + `"`
	for step := range strings.SplitSeq(d.Brief, "; ") {
		name, arg, _ := strings.Cut(step, " ")
		switch name {
		case "note":
			appendLine("notes", id)
		case "sleep":
			pause, _ := time.ParseDuration(arg)
			time.Sleep(pause)
		case "hang":
			time.Sleep(time.Hour)
		case "until":
			for _, err := os.Stat(arg); err != nil; _, err = os.Stat(arg) {
				time.Sleep(time.Millisecond)
			}
		case "say":
			a.write(arg)
		case "cry":
			fmt.Fprintln(os.Stderr, arg)
		case "flood":
			junk := strings.Repeat("x", 1<<20)
			for range 20 {
				a.write(junk, a.result("nobody", done))
			}
		case "huge":
			a.write(a.result(id, `"status":"done","summary":"`+strings.Repeat("x", 17<<20)+`"`))
		case "crash":
			fmt.Fprintln(os.Stderr, "out of luck")
			os.Exit(9)
		case "twice":
			again := a.result(id, `"status":"error","error":"again"`)
			a.write(a.result(id, done), again, again, again)
		case "result":
			a.write(a.result(id, arg))
		case "var":
			appendLine("vars", os.Getenv(arg))
		case "done":
			a.write(a.result(id, done))
		}
	}
}

// awaitLines waits until a file in the workspace has this many lines.
func awaitLines(name string, lines int) {
	for text, _ := os.ReadFile(name); strings.Count(string(text), "\n") < lines; text, _ = os.ReadFile(name) {
		time.Sleep(time.Millisecond)
	}
}

// appendLine adds a line to a file in the workspace, by one write.
func appendLine(name, line string) {
	f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(5)
	}
	defer f.Close()
	f.WriteString(line + "\n")
}
