//go:build linux

package sim

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// fate is whether a request has changed the state.
type fate int

const (
	open fate = iota // not answered, or cut off: unknown
	happened
	refused
)

// change is one request to the memory. versions has the new version of each key; 0 = forgotten.
type change struct {
	seq      int
	versions map[string]int
	fate     fate
}

// chain is a chain with a journal, each of whose nodes writes its name into a file.
type chain struct {
	id, nodes string
	steps     int
	done      bool
}

// model records the changes that were sent to one host, and which of them it acknowledged. Only one
// host uses the keys of a model.
type model struct {
	mu      sync.Mutex
	name    string
	version int
	keys    []string
	now     map[string]int // version of each key at the last check
	changes []*change      // since then, in the order sent
	tasks   map[string]fate
	chains  []*chain
	episode string
	steps   [2]int // answered, sent
	strain  bool   // files could not be written; steps are answered even so
}

func newModel(name string) *model {
	return &model{name: name, now: map[string]int{}, tasks: map[string]fate{}}
}

// send records a change of the memory, and returns the function that records its answer.
func (m *model) send(versions map[string]int) func(*answer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := &change{seq: len(m.changes), versions: versions}
	m.changes = append(m.changes, c)
	return func(a *answer) {
		m.mu.Lock()
		defer m.mu.Unlock()
		var stored []jsontext.Value
		_ = json.Unmarshal(a.Stored, &stored) // empty for memory/forget/resp
		c.fate = fateOf(a, a.Type == "memory/forget/resp" || len(a.Errors) == 0 && len(stored) == len(versions))
	}
}

// fateOf returns the fate of a request by its answer; a request that was cut off or done in part is open.
func fateOf(a *answer, whole bool) fate {
	switch {
	case a.Type == "error" && a.Code != "cancelled" && a.Code != "timeout" && a.Code != "store_unavailable":
		return refused
	case a.Type != "error" && whole:
		return happened
	}
	return open
}

// check compares the stored versions with the expected ones: those of the last acknowledged change or of
// a later open one. Each open change must have happened completely or not at all.
func (m *model) check(there map[string]int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	at := map[string]int{} // which change made the value
	for _, key := range m.keys {
		may, seqs := []int{m.now[key]}, []int{-1}
		for _, c := range m.changes {
			version, touches := c.versions[key]
			switch {
			case !touches || c.fate == refused:
			case c.fate == happened:
				may, seqs = []int{version}, []int{c.seq}
			default:
				may, seqs = append(may, version), append(seqs, c.seq)
			}
		}
		i := len(may) - 1
		for i >= 0 && may[i] != there[key] { // the last match, as a key may be forgotten several times
			i--
		}
		if i < 0 {
			return fmt.Errorf("%s: key %s has version %d, and should have one of %v (0 = none)", m.name, key,
				there[key], may)
		}
		at[key] = seqs[i]
	}
	for _, c := range m.changes {
		if err := c.whole(there, at); c.fate == open && err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
	}
	m.now, m.changes = there, nil
	return nil
}

// whole returns an error if a change happened only in part.
func (c *change) whole(there, at map[string]int) error {
	done, undone := "", ""
	for key, version := range c.versions {
		switch {
		case there[key] == version && version > 0:
			done = key
		case at[key] < c.seq && there[key] != version:
			undone = key
		}
	}
	if done != "" && undone != "" {
		return fmt.Errorf("of a change %v %s is there, %s is not", c.versions, done, undone)
	}
	return nil
}

// verify reads the state from the host and compares it with the model.
func (m *model) verify(h *host) {
	if len(m.keys) > 0 {
		m.verifyMemory(h)
	}
	if len(m.tasks) > 0 {
		m.verifyTasks(h)
	}
	if m.episode != "" {
		m.verifySteps(h)
	}
	for _, c := range m.chains {
		m.finish(h, c)
	}
	if !h.killed.Load() { // otherwise the next host is asked again
		m.chains = nil
	}
}

func (m *model) verifyMemory(h *host) {
	var keys []map[string]string
	for _, key := range m.keys {
		keys = append(keys, map[string]string{"id": key})
	}
	list, _ := json.Marshal(keys)
	a := h.look("memory/retrieve/req", fmt.Sprintf(`"memory_id":%q,"keys":%s,"limit":1000`, memoryID, list))
	if a == nil {
		return
	}
	var got struct {
		Entries []struct {
			Key     struct{ ID string }       `json:"key,case:ignore"`
			Content struct{ V int }           `json:"content,case:ignore"`
			Rest    map[string]jsontext.Value `json:",unknown"`
		} `json:"entries"`
	}
	if err := json.Unmarshal(a.line, &got, json.MatchCaseInsensitiveNames(true)); err != nil || a.Type == "error" {
		h.fail("the memory cannot be read: %v: %.600s", err, a.line)
		return
	}
	there := map[string]int{}
	for _, e := range got.Entries {
		there[e.Key.ID] = e.Content.V
	}
	if err := m.check(there); err != nil {
		h.fail("acknowledged state is lost: %v", err)
	}
}

func (m *model) verifyTasks(h *host) {
	a := h.look("planning/task/list", fmt.Sprintf(`"plan_id":%q,"limit":100000`, h.sim.plan))
	if a == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for title, f := range m.tasks {
		if is := strings.Contains(string(a.line), `"`+title+`"`); f != open && is != (f == happened) {
			h.fail("the task %s is there: %t; acknowledged is %t: %.600s", title, is, f == happened, a.line)
		}
	}
}

func (m *model) verifySteps(h *host) {
	a := h.look("env/exp/list/req", fmt.Sprintf(`"episode_id":%q,"limit":10000`, m.episode))
	if a == nil {
		return
	}
	var list struct {
		Episodes []jsontext.Value `json:"episodes"`
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.strain {
		m.steps[0] = 0
	}
	if err := json.Unmarshal(a.line, &list); err != nil || len(list.Episodes) < m.steps[0] ||
		len(list.Episodes) > m.steps[1] {
		h.fail("%d steps are there of %d answered and %d sent: %v %.300s", len(list.Episodes), m.steps[0], m.steps[1],
			err, a.line)
	}
	m.episode, m.strain = "", false
}

// strained records that files could not be written.
func (m *model) strained() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.strain = true
}

// finish resumes or starts a chain until it ends, and checks how often its nodes acted.
func (m *model) finish(h *host, c *chain) {
	begin := fmt.Sprintf(`"chain_id":%q,"journal":true,"nodes":[%s]`, c.id, c.nodes)
	fields := fmt.Sprintf(`"chain_id":%q,"resume":true`, c.id)
	for try := 0; !c.done && try < 10; try++ {
		a := h.look("chain/req", fields)
		switch {
		case a == nil:
			return
		case a.Type != "error":
			c.done = a.Success
		case len(a.Detail.Unknown) > 0:
			fields = fmt.Sprintf(`"chain_id":%q,"resume":true,"resolve":%s`, c.id, m.lookUp(h, c, a.Detail.Unknown))
		case strings.Contains(string(a.line), "no journal") || strings.Contains(string(a.line), "there is no chain"):
			fields = begin
		}
	}
	did := h.sim.effects(c.id)
	slices.Sort(did)
	if !c.done || len(did) != c.steps || len(slices.Compact(did)) != c.steps {
		h.fail("the chain %s of %d nodes is done: %t, and these acted: %q", c.id, c.steps, c.done, did)
	}
}

// lookUp returns the decision for each node that was under way, by whether the node has acted.
func (m *model) lookUp(h *host, c *chain, unknown []string) string {
	decisions := map[string]any{}
	for _, path := range unknown {
		decisions[path] = "run"
		if slices.Contains(h.sim.effects(c.id), path) {
			decisions[path] = "done"
		}
	}
	text, _ := json.Marshal(decisions, json.Deterministic(true))
	return string(text)
}

// effects returns the names of the nodes of a chain that have acted.
func (s *Sim) effects(id string) []string {
	text, _ := os.ReadFile(filepath.Join(s.dir, "ws", "effects-"+id)) // no file = no node has acted
	return strings.Fields(string(text))
}
