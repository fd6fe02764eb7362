//go:build linux

package sim

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host/hosttest"
	"a2e/protocol"
)

// answer is a line that a host wrote, with the fields that the simulator uses.
type answer struct {
	Type    string         `json:"type"`
	ReqID   string         `json:"req_id"`
	Code    string         `json:"code"`
	TaskID  string         `json:"task_id"`
	RPC     string         `json:"jsonrpc"`
	ID      jsontext.Value `json:"id"`
	Method  string         `json:"method"`
	Error   jsontext.Value `json:"error"`
	Success bool           `json:"success"`
	Stored  jsontext.Value `json:"stored"`
	Errors  []string       `json:"errors"`
	Detail  struct {
		Unknown []string `json:"unknown"`
	} `json:"detail"`
	line []byte
}

// get returns a member of the answer as text; for JSON-RPC also a member of its result.
func (a *answer) get(name string) string {
	m := hosttest.Message{Line: a.line}
	if text := m.Get("/" + name); text != "" {
		return text
	}
	return m.Get("/result/" + name)
}

// judge reads the output of a host and compares it with the requests.
type judge struct {
	fail    func(format string, args ...any)
	reply   func(dialect, line string) // answers a question of the host
	note    func(line []byte)          // called with each line
	secrets []string

	mu      sync.Mutex
	owed    map[string]int // answers that are due, by dialect and id
	asked   map[string]string
	kept    map[string]*answer
	then    map[string]func(*answer) // called with the answer
	over    map[string]bool          // answered by an error: no event may follow
	changed chan struct{}
	lines   int
	last    time.Time
}

func newJudge(fail func(string, ...any), secrets []string) *judge {
	return &judge{
		fail: fail, secrets: secrets, owed: map[string]int{}, asked: map[string]string{},
		kept: map[string]*answer{},
		then: map[string]func(*answer){}, over: map[string]bool{}, changed: make(chan struct{}), last: time.Now(),
	}
}

// expect records that a line will be answered; then, if not nil, is called with the answer.
func (j *judge) expect(key, line string, then func(*answer)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.owed[key]++
	j.asked[key] = line
	if then != nil {
		j.then[key] = then
	}
}

// read reads the lines of a host until the end of its output. It waits while gate is held, when the agent stalls.
func (j *judge) read(r io.Reader, gate *sync.Mutex) {
	var rest []byte
	buf := make([]byte, 64<<10)
	for {
		pass(gate)
		n, err := r.Read(buf)
		rest = append(rest, buf[:n]...)
		for {
			line, after, ok := bytes.Cut(rest, []byte("\n"))
			if !ok {
				break
			}
			j.take(bytes.Clone(line))
			rest = after
		}
		if err != nil {
			return // the last line of a killed host may be incomplete
		}
	}
}

// pass waits until nobody holds a gate.
func pass(gate *sync.Mutex) {
	gate.Lock()
	defer gate.Unlock()
}

// take checks one line.
func (j *judge) take(line []byte) {
	j.note(line)
	j.mu.Lock()
	j.last = time.Now()
	j.mu.Unlock()
	for _, secret := range j.secrets {
		if bytes.Contains(line, []byte(secret)) {
			j.fail("a secret is shown: %.600s", line)
		}
	}
	a := &answer{line: line}
	if err := json.Unmarshal(line, a); err != nil && (!jsontext.Value(line).IsValid() || line[0] != '{') {
		j.fail("stdout has a line that is not a message: %v in %.600s", err, line)
		return
	}
	switch {
	case a.RPC == "2.0" && a.Method != "" && a.ID != nil:
		j.reply("rpc", fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no"}}`, a.ID))
	case a.RPC == "2.0" && a.Method != "":
	case a.RPC == "2.0":
		j.settleOne("rpc", string(a.ID), a)
	case a.Type == "SESSION_ANNOUNCE":
	case a.Type == "TASK_RESULT":
		j.settleOne("fleet", a.TaskID, a)
	default:
		j.native(a)
	}
}

// native checks a line of A2E.
func (j *judge) native(a *answer) {
	if err := hosttest.Check(a.line); err != nil {
		j.fail("%v: %.600s", err, a.line)
	}
	info, known := protocol.Lookup(protocol.Type(a.Type))
	switch {
	case known && info.Direction == protocol.HostRequest || a.Type == string(protocol.TypeMCPElicitReq):
		j.reply("a2e", fmt.Sprintf(`{"type":%q,"id":"r","req_id":%s,"roots":[],"action":"cancel","error":"no"}`,
			strings.TrimSuffix(a.Type, "req")+"resp", a.ID))
	case known && info.Direction == protocol.HostEvent || strings.HasSuffix(a.Type, "/event"):
		j.mu.Lock()
		late := j.over[a.ReqID]
		j.mu.Unlock()
		if late && a.Type != string(protocol.TypeProcReadEvent) {
			j.fail("an event after the answer: %.600s", a.line)
		}
	case a.ReqID == "r" && a.Type == "error": // the answer to a question came after its session had ended
	default:
		j.settleOne("a2e", a.ReqID, a)
	}
}

// settleOne records an answer. A broken line may be answered with its id, which begins with "b", or without one.
func (j *judge) settleOne(dialect, id string, a *answer) {
	plain := strings.Trim(id, `"`)
	if id == "null" || id == "" || strings.HasPrefix(plain, "b") {
		plain = ""
	}
	key := dialect + " " + plain
	j.mu.Lock()
	j.owed[key]--
	left, then := j.owed[key], j.then[key]
	if left == 0 {
		delete(j.owed, key)
	}
	delete(j.then, key)
	if plain != "" {
		j.over[plain] = a.Type == "error"
	}
	if strings.HasPrefix(plain, "k") {
		j.kept[plain] = a
	}
	j.lines++
	close(j.changed)
	j.changed = make(chan struct{})
	asked := j.asked[key]
	j.mu.Unlock()
	if left < 0 {
		j.fail("an answer that nobody waits for, of %s: %.600s\nto %.300s", key, a.line, asked)
	}
	if then != nil {
		then(a)
	}
}

// answers returns the number of lines so far that ended a request.
func (j *judge) answers() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.lines
}

// until waits for a condition, which it checks with mu held. It returns false if the condition did not become true.
func (j *judge) until(gone <-chan struct{}, ok func() bool) bool {
	late := time.NewTimer(patience)
	defer late.Stop()
	for {
		j.mu.Lock()
		met, changed := ok(), j.changed
		j.mu.Unlock()
		if met {
			return true
		}
		select {
		case <-changed:
		case <-gone:
			j.mu.Lock()
			defer j.mu.Unlock()
			return ok()
		case <-late.C:
			j.mu.Lock()
			quiet := time.Since(j.last)
			j.mu.Unlock()
			if quiet < patience {
				late.Reset(patience - quiet)
				continue
			}
			return false
		}
	}
}

// waitFor returns the answer to a request whose id begins with "k", or nil if none came.
func (j *judge) waitFor(id string, gone <-chan struct{}) (a *answer) {
	j.until(gone, func() bool { a = j.kept[id]; return a != nil })
	return a
}

// due lists the requests that are not answered.
func (j *judge) due() (all []string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for key, n := range j.owed {
		all = append(all, fmt.Sprintf("%d of %s: %.300s", n, key, j.asked[key]))
	}
	slices.Sort(all)
	return all
}

// release undoes expect for a line that the host did not accept.
func (j *judge) release(key string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.owed[key]--; j.owed[key] == 0 {
		delete(j.owed, key)
	}
}
