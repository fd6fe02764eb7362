package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"a2e/protocol"
	"a2e/protocol/client"
)

// entriesCase measures the memory of the first target: how long it takes to store and find
// entries once there are many. A host without one is left out.
const entriesCase = "entries"

const (
	manyEntries  = 100_000
	quickEntries = 2_000
	entryBatch   = 500 // entries in one request while the memory is filled
	entryCalls   = 300 // of each kind that are timed, one after the other
	vocabulary   = 20_000
	entryWords   = 20 // words of one entry
	rareTags     = 1_000
	commonTags   = 3
)

// entryReport is what the memory costs with so many entries in it.
type entryReport struct {
	Entries   int          `json:"entries"`
	Fill      float64      `json:"fill_per_second"` // entries, in batches
	Megabytes float64      `json:"mb"`              // of the file
	Calls     []*entryCall `json:"calls"`
}

// entryCall is the cost of one kind of call, sent one at a time.
type entryCall struct {
	What  string  `json:"what"`
	P50   float64 `json:"p50_ms"`
	P99   float64 `json:"p99_ms"`
	Times float64 `json:"times"` // its median, of that of an echo beside it
}

// benchEntries runs entriesCase.
func benchEntries(ctx context.Context, r *runner, rep *report) (err error) {
	t := r.targets[0]
	if t.dialect.name != a2eDialect().name {
		return nil
	}
	n := manyEntries
	if r.opts.Quick {
		n = quickEntries
	}
	rep.Entries, err = measureEntries(ctx, t, r.dir, n)
	return err
}

// library is a host with a memory that is filled.
type library struct {
	ctx      context.Context
	host     *client.Client
	memoryID string
	random   *rand.Rand
	zipf     *rand.Zipf
	words    []string
	texts    []string // of the entries, by number
}

// measureEntries fills the memory of a host, whose files go into dir, with n entries and
// times what can be done with them. The report is nil where the host has no memory.
func measureEntries(ctx context.Context, t *target, dir string, n int) (report *entryReport, err error) {
	state := filepath.Join(dir, "entries")
	config := filepath.Join(dir, "entries.yaml")
	text := fmt.Sprintf("state_dir: %q\nplugins:\n  - {name: memory, type: memory, metadata: {semantic_limit: %d}}\n  - {name: tools, type: tools}\n", state, 10*n)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	cmd := exec.Command(t.command[0], t.command[1:]...)
	cmd.Dir, cmd.Env = dir, append(t.strange(os.Environ()), "A2E_CONFIG="+config)
	host, err := client.Spawn(ctx, cmd, client.Options{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, host.Close()) }()
	l := newLibrary(ctx, host)
	if there, err := l.open(); err != nil || !there {
		return nil, err
	}
	began := time.Now()
	if err := l.fill(n); err != nil {
		return nil, err
	}
	report = &entryReport{Entries: n, Fill: float64(n) / time.Since(began).Seconds()}
	if report.Calls, err = l.measure(); err != nil {
		return nil, err
	}
	for _, file := range []string{"state.db", "state.db-wal"} {
		if info, err := os.Stat(filepath.Join(state, file)); err == nil {
			report.Megabytes += float64(info.Size()) / 1e6
		}
	}
	return report, nil
}

// newLibrary invents a vocabulary whose words are as unevenly common as those of a
// language.
func newLibrary(ctx context.Context, host *client.Client) *library {
	l := &library{ctx: ctx, host: host, random: rand.New(rand.NewPCG(1, 2))}
	l.zipf = rand.NewZipf(l.random, 1.1, 5, vocabulary-1)
	for range vocabulary {
		word := make([]byte, 3+l.random.IntN(7))
		for i := range word {
			word[i] = byte('a' + l.random.IntN(26))
		}
		l.words = append(l.words, string(word))
	}
	return l
}

// open begins a session; false means that the host has no memory.
func (l *library) open() (bool, error) {
	hello, err := l.host.Handshake(l.ctx, "bench", []protocol.Capability{protocol.CapTools, protocol.CapMemory}, "")
	if err != nil {
		return false, err
	}
	if !slices.ContainsFunc(hello.AcceptedCaps, func(c protocol.CapabilityRow) bool { return c.Capability == protocol.CapMemory && c.Enabled }) {
		return false, nil
	}
	var resp protocol.MemoryInitResponse
	err = l.host.Call(l.ctx, protocol.TypeMemoryInitReq, &protocol.MemoryInitRequest{Namespace: "bench"}, &resp)
	l.memoryID = resp.MemoryID
	return true, err
}

// next makes up the next entry.
func (l *library) next() protocol.Object {
	words := make([]string, entryWords)
	for i := range words {
		words[i] = l.words[l.zipf.Uint64()]
	}
	n := len(l.texts)
	l.texts = append(l.texts, strings.Join(words, " "))
	obj, err := protocol.ParseObject(fmt.Appendf(nil, `{"key":{"n":%d},"content":{"text":%q},"tier":"semantic","tags":["rare%d","common%d"]}`, n, l.texts[n], n%rareTags, n%commonTags))
	if err != nil {
		panic("bench: an entry of its own making: " + err.Error())
	}
	return obj
}

func (l *library) store(n int) error {
	req := &protocol.MemoryStoreRequest{MemoryID: l.memoryID}
	for range n {
		req.Entries = append(req.Entries, l.next())
	}
	var resp protocol.MemoryStoreResponse
	if err := l.host.Call(l.ctx, protocol.TypeMemoryStoreReq, req, &resp); err != nil {
		return err
	}
	if len(resp.Stored) != n {
		return fmt.Errorf("%d of %d entries were stored: %s", len(resp.Stored), n, strings.Join(resp.Errors, "; "))
	}
	return nil
}

func (l *library) fill(n int) error {
	for n > 0 {
		if err := l.store(min(n, entryBatch)); err != nil {
			return err
		}
		n -= entryBatch
	}
	return nil
}

// retrieve finds at least one entry, or fails.
func (l *library) retrieve(req protocol.MemoryRetrieveRequest) error {
	req.MemoryID, req.Limit, req.Tier = l.memoryID, 10, protocol.TierSemantic
	var resp protocol.MemoryRetrieveResponse
	if err := l.host.Call(l.ctx, protocol.TypeMemoryRetrieveReq, &req, &resp); err != nil {
		return err
	}
	if len(resp.Entries) == 0 {
		return fmt.Errorf("nothing was found by %+v", req)
	}
	return nil
}

// query gives some words of an entry, in another order, and its common tag.
func (l *library) query(words int) (query, tag string) {
	n := l.random.IntN(len(l.texts))
	all := strings.Fields(l.texts[n])
	l.random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return strings.Join(all[:words], " "), fmt.Sprintf("common%d", n%commonTags)
}

// measure times each kind of call.
func (l *library) measure() ([]*entryCall, error) {
	tags := func(kind string, n int) []string { return []string{fmt.Sprintf("%s%d", kind, l.random.IntN(n))} }
	search := func(words int) func() error {
		return func() error {
			query, _ := l.query(words)
			return l.retrieve(protocol.MemoryRetrieveRequest{Query: query})
		}
	}
	var all []*entryCall
	for _, kind := range []struct {
		what string
		call func() error
	}{
		{"store one", func() error { return l.store(1) }},
		{"by key", func() error {
			key, err := protocol.ParseObject(fmt.Appendf(nil, `{"n":%d}`, l.random.IntN(len(l.texts))))
			return errors.Join(err, l.retrieve(protocol.MemoryRetrieveRequest{Keys: []protocol.Object{key}}))
		}},
		{"by a rare tag", func() error { return l.retrieve(protocol.MemoryRetrieveRequest{Tags: tags("rare", rareTags)}) }},
		{"by a common tag", func() error { return l.retrieve(protocol.MemoryRetrieveRequest{Tags: tags("common", commonTags)}) }},
		{"newest", func() error { return l.retrieve(protocol.MemoryRetrieveRequest{}) }},
		{"search, 2 words", search(2)},
		{"search, 4 words", search(4)},
		{"search, 8 words", search(8)},
		{"search and a common tag", func() error {
			query, tag := l.query(4)
			return l.retrieve(protocol.MemoryRetrieveRequest{Query: query, Tags: []string{tag}})
		}},
	} {
		c, err := l.time(kind.what, kind.call)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", kind.what, err)
		}
		all = append(all, c)
	}
	return all, nil
}

// time measures a call in turn with an echo, so that what disturbs the machine disturbs
// both. The first one is not counted: it may load what the others find loaded.
func (l *library) time(what string, call func() error) (*entryCall, error) {
	var took, echo []float64
	for i := range entryCalls + 1 {
		begin := time.Now()
		if err := call(); err != nil {
			return nil, err
		}
		middle := time.Now()
		if err := l.echo(); err != nil {
			return nil, err
		}
		if i > 0 {
			took = append(took, middle.Sub(begin).Seconds()*1e3)
			echo = append(echo, time.Since(middle).Seconds()*1e3)
		}
	}
	slices.Sort(took)
	c := &entryCall{What: what, P50: took[len(took)/2], P99: took[len(took)*99/100]}
	c.Times = c.P50 / median(echo)
	return c, nil
}

func (l *library) echo() error {
	args, err := protocol.ParseObject([]byte(`{"text":"x"}`))
	if err != nil {
		return err
	}
	return l.host.Call(l.ctx, protocol.TypeToolCallReq, &protocol.ToolCallRequest{ToolName: "echo", Arguments: args, Timeout: 30}, new(protocol.ToolCallResponse))
}

// writeEntries prints a line for each kind of call.
func (r *report) writeEntries(w io.Writer) error {
	e := r.Entries
	if e == nil {
		return nil
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "\nmemory of this program, %d entries\tp50\tp99\ttimes an echo\t\n", e.Entries)
	for _, c := range e.Calls {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t\n", c.What, format(c.P50, "ms"), format(c.P99, "ms"), ratioText(c.Times))
	}
	fmt.Fprintf(t, "filled in batches of %d\t%s\t\t\t\n", entryBatch, format(e.Fill, "/s"))
	fmt.Fprintf(t, "size of the file\t%s\t\t\t\n", format(e.Megabytes, "MB"))
	return t.Flush()
}
