// Package run has the ways to run a skill that need something outside of it: a program
// in the sandbox, or a WebAssembly module.
//
//	script.go    a script: one child process in the sandbox
//	run.go       a WASI module: likewise
//	engine.go    that process: this program again, with wazero in it
//	folders.go   the folders that a module sees; none is ever left
//	output.go    what scripts and modules print: events and the result
//
// A script and a module get their arguments as one JSON object on stdin. Each line of
// their stdout that is an object with a text "kind" and a "data" is an event; one with a
// "result" has the result, and maybe a "summary", a text for a person. Without such a
// line the last other object is the result, without any object all that was printed is
// the result, as a text. What else stands on stdout and stderr goes on as log events.
package run

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/child/spill"
	"a2e/host/sandbox"
	"a2e/protocol"
)

// What holds where a Job does not say.
const (
	defaultOutputBytes = 1 << 20
	defaultMemoryBytes = 256 << 20
)

// Job is one call of a skill that is a script or a module.
type Job struct {
	Name           string         // the skill's
	Dir            string         // absolute folder of the skill, no link on the way to it, for reading only
	File           string         // the script or module, relative to Dir; it must lie in it
	Args           jsontext.Value // an object, checked; nil is {}
	Workspace      string         // absolute; the working directory of a script. "" = none
	Write          bool           // the workspace may be changed
	Hidden         bool           // Dir is hidden from agents, also where it lies in the workspace
	Network        bool           // a script reaches what the host reaches; a module never does
	MaxOutputBytes int            // largest result, in bytes of JSON; 0 = 1 MiB
	MemoryBytes    int64          // 0 = 256 MiB for a module, what the launcher allows for a script
	Spill          *spill.Keeper  // keeps longer output; nil = nothing does
	CacheDir       string         // absolute folder for compiled modules, kept for the next call; "" = none is kept

	engine string // the program that runs a module, by MaybeRunModule; "" = this one
}

// Result is what came of a run that came to its own end, well or not.
type Result struct {
	Data      jsontext.Value // nil = null
	Summary   string         // for a person; "" = none
	Truncated bool           // Data is the beginning of a longer text
	Failed    bool           // see Failure; Data is nil
	Failure   string         // why, with the end of what it said on stderr
	ExitCode  *int           // of a script or module that ended by itself
}

// EventFunc takes an event of a kind that an Emitter has no method for. The data is
// JSON, and valid only until it returns.
type EventFunc func(kind string, data jsontext.Value)

// withDefaults fills in what a Job leaves open.
func (j Job) withDefaults() Job {
	if j.MaxOutputBytes <= 0 {
		j.MaxOutputBytes = defaultOutputBytes
	}
	if j.Spill == nil {
		j.Spill = spill.New("", nil)
	}
	if len(j.Args) == 0 {
		j.Args = jsontext.Value("{}")
	}
	return j
}

// errorf makes the error of a skill that cannot be run, or was stopped.
func errorf(format string, args ...any) *protocol.Error {
	return protocol.Errorf(protocol.CodeSkillError, format, args...)
}

// The bounds of a module's process.
const (
	maxModuleBytes = 64 << 20
	engineBytes    = 768 << 20 // of memory, beside that of the module: to compile it
	moduleFiles    = 512       // open at once
	moduleFile     = 512 << 20 // bytes of one
	keptModules    = 32        // in a CacheDir
	maxGuestBytes  = 4 << 30   // what a module can address
)

// moduleRun tells a module's process what to run.
type moduleRun struct {
	Name      string `json:"name"`
	Module    string `json:"module"` // path of the file
	Skill     string `json:"skill"`
	Workspace string `json:"workspace"` // "" = none
	Write     bool   `json:"write"`
	Tmp       string `json:"tmp"`
	Memory    int64  `json:"memory"`
	Cache     string `json:"cache"`   // "" = none
	Outcome   string `json:"outcome"` // where it writes how it went
}

// outcome is how a module ended.
type outcome struct {
	Kind outcomeKind `json:"kind"`
	Code uint32      `json:"code"`
	Text string      `json:"text"`
}

type outcomeKind string

const (
	outcomeExit    outcomeKind = "exit"    // Code is its status
	outcomeTrap    outcomeKind = "trap"    // Text says which
	outcomeMemory  outcomeKind = "memory"  // it wanted more than it may have
	outcomeInvalid outcomeKind = "invalid" // it was not run: Text says why
)

// Wasm runs a WASI module (preview 1, with _start), to its end or that of ctx. It sees
// its skill as /skill, for reading, the workspace as /workspace, which PWD names, and an
// empty /tmp that goes with it; no link leads out of them. It has no network.
//
// The module runs in a process of its own in the sandbox: this program again, see
// MaybeRunModule. With a CacheDir the second call of a module spares the compilation.
//
// A module that exits with another status than 0 is no error; one that traps is
// sandbox_crash, one that wants more memory than it may have out_of_memory.
func Wasm(ctx context.Context, l *sandbox.Launcher, j Job, emit host.Emitter, event EventFunc) (*Result, error) {
	j = j.withDefaults()
	if j.MemoryBytes <= 0 {
		j.MemoryBytes = defaultMemoryBytes
	}
	j.MemoryBytes = min(j.MemoryBytes, maxGuestBytes)
	sum, err := checkModule(&j)
	if err != nil {
		return nil, err
	}
	scratch, err := l.MakeScratch()
	if err != nil {
		return nil, errorf("the module cannot be run: %w", withoutPath(err))
	}
	defer l.Discard(scratch)
	order, policy, err := modulePolicy(&j, scratch, sum)
	if err != nil {
		return nil, err
	}
	state, out, err := launch(ctx, l, policy, &j, emit, event)
	if err != nil {
		return nil, err
	}
	return judge(order.Outcome, state, out)
}

// checkModule looks at the file, and gives its hash.
func checkModule(j *Job) (sum string, err error) {
	f, err := openNamed(j)
	if err != nil {
		return "", err
	}
	defer f.Close()
	hash := sha256.New()
	var magic [4]byte
	if _, err := io.ReadFull(f, magic[:]); err != nil || string(magic[:]) != "\x00asm" {
		return "", errorf("%s is not a WebAssembly module", j.File)
	}
	n, err := io.Copy(hash, io.LimitReader(f, maxModuleBytes))
	if err != nil {
		return "", errorf("%s cannot be read: %w", j.File, withoutPath(err))
	}
	if n >= maxModuleBytes {
		return "", errorf("%s has more than %d MiB, the largest module", j.File, maxModuleBytes>>20)
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// modulePolicy returns what the module's process is told, and what it may do.
func modulePolicy(j *Job, scratch, sum string) (*moduleRun, sandbox.Policy, error) {
	policy := j.policy(scratch)
	order := &moduleRun{
		Name: j.Name, Module: filepath.Join(j.Dir, filepath.FromSlash(j.File)), Skill: j.Dir, Workspace: j.Workspace,
		Write: j.Write,
		Tmp:   filepath.Join(scratch, "tmp"), Memory: j.MemoryBytes, Outcome: filepath.Join(scratch, "outcome"),
	}
	if err := os.Mkdir(order.Tmp, 0o700); err != nil {
		return nil, policy, errorf("the module cannot be run: %w", withoutPath(err))
	}
	if j.CacheDir != "" {
		if order.Cache = cacheOf(j.CacheDir, sum); order.Cache != "" {
			policy.Write = append(policy.Write, order.Cache)
		}
	}
	engine := j.engine
	if engine == "" {
		self, err := os.Executable()
		if err != nil {
			return nil, policy, errorf("the module cannot be run: this program does not find itself")
		}
		engine = self
	}
	text, err := json.Marshal(order)
	if err != nil {
		return nil, policy, errorf("the module cannot be run: %w", err)
	}
	policy.Path, policy.Args, policy.Dir = engine, []string{moduleProcess, string(text)}, scratch
	policy.Limits = sandbox.Limits{
		MemoryBytes: j.MemoryBytes + engineBytes, OpenFiles: moduleFiles,
		FileBytes: moduleFile,
	}
	return order, policy, nil
}

// cacheOf makes the folder that keeps the code of one module, and drops those that were
// not in use for the longest time; "" where none can be made. Each module has its own, so
// that none could ever change what another one runs.
func cacheOf(dir, sum string) string {
	own := filepath.Join(dir, sum)
	if err := os.MkdirAll(own, 0o700); err != nil {
		return ""
	}
	now := time.Now()
	_ = os.Chtimes(own, now, now) // the age only decides what is dropped first
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) <= keptModules {
		return own
	}
	age := func(e fs.DirEntry) time.Time {
		info, err := e.Info()
		if err != nil {
			return now
		}
		return info.ModTime()
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return age(a).Compare(age(b)) })
	for _, old := range entries[:len(entries)-keptModules] {
		if old.IsDir() && old.Name() != sum && len(old.Name()) == len(sum) {
			_ = sandbox.RemoveSoon(filepath.Join(dir, old.Name())) // the next call tries again
		}
	}
	return own
}

// maxOutcome is how much of an outcome is read.
const maxOutcome = 64 << 10

// judge says how a module ended.
func judge(file string, state sandbox.State, out *output) (*Result, error) {
	end, err := readOutcome(file)
	words := out.words(keptStderr)
	switch {
	case err != nil && strings.Contains(words, "out of memory"):
		err = outOfModuleMemory()
	case err != nil:
		_, how := ended(state)
		err = protocol.Errorf(protocol.CodeSandboxCrash, "what runs the module was lost: %s",
			strings.TrimPrefix(how, "it "))
	case end.Kind == outcomeExit && end.Code == 0:
		return out.finish(0, ""), nil
	case end.Kind == outcomeExit:
		return out.finish(int(end.Code), fmt.Sprintf("it ended with exit status %d", end.Code)), nil
	case end.Kind == outcomeMemory:
		err = outOfModuleMemory()
	case end.Kind == outcomeTrap:
		err = protocol.Errorf(protocol.CodeSandboxCrash, "the module crashed: %s", end.Text)
	default:
		err = errorf("the module cannot be run: %s", end.Text)
	}
	if refused := (*protocol.Error)(nil); words != "" && errors.As(err, &refused) {
		err = refused.With("stderr", words)
	}
	return nil, err
}

func outOfModuleMemory() error {
	return protocol.Errorf(protocol.CodeOutOfMemory, "the module wanted more memory than allowed")
}

// readOutcome reads what the module's process wrote last.
func readOutcome(file string) (*outcome, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxOutcome))
	if err != nil {
		return nil, err
	}
	end := new(outcome)
	return end, json.Unmarshal(data, end)
}
