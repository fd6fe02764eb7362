// Package run runs skills that are a program in the sandbox or a WebAssembly module.
//
//	script.go    a script: one child process in the sandbox
//	run.go       a WASI module: likewise
//	engine.go    the module's process: this program again, with wazero in it
//	folders.go   the folders that a module sees and cannot leave
//	output.go    the output of scripts and modules: events and the result
//
// A script and a module get their arguments as one JSON object on stdin. A line of
// their stdout that is an object with a string "kind" and "data" is an event. An object with
// "result" has the result, and may have a "summary", a text for a person. Without such a
// line the last other object is the result; without any object, all text on stdout is
// the result, as a string. Other lines of stdout and stderr are sent as log events.
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
	"a2e/host/guard/wall"
	"a2e/host/sandbox"
	"a2e/protocol"
)

// Job is one call of a skill that is a script or a module.
type Job struct {
	Name           string         // the skill's
	Dir            string         // absolute folder of the skill, a path without links, read-only
	File           string         // the script or module, relative to Dir; it must be inside Dir
	Args           jsontext.Value // an object, checked
	Workspace      string         // absolute; the working directory of a script. "" = none
	Write          bool           // the workspace may be changed
	Hidden         bool           // Dir is hidden from agents, even if it is in the workspace
	Network        bool           // a script has the network of the host; a module never has one
	MaxOutputBytes int            // largest result, in bytes of JSON
	MemoryBytes    int64          // at most 4 GiB for a module; 0 = the launcher's limit for a script
	Spill          *spill.Keeper  // keeps longer output
	CacheDir       string         // absolute folder that keeps compiled modules for later calls; "" = none

	engine string // the program that runs a module with MaybeRunModule; "" = this program
}

// Result is the result of a run that ended by itself, successful or not.
type Result struct {
	Data      jsontext.Value // nil = null
	Summary   string         // for a person; "" = none
	Truncated bool           // Data is the beginning of a longer text
	Failed    bool           // see Failure; Data is nil
	Failure   string         // why, with the end of its stderr
	ExitCode  *int           // of a script or module that ended by itself
}

// EventFunc handles an event of a kind for which an Emitter has no method. The data is
// JSON, and valid only until the function returns.
type EventFunc func(kind string, data jsontext.Value)

// errorf makes the error for a skill that cannot be run or was stopped.
func errorf(format string, args ...any) *protocol.Error {
	return protocol.Errorf(protocol.CodeSkillError, format, args...)
}

// Limits of a module's process.
const (
	maxModuleBytes = 64 << 20
	engineBytes    = 768 << 20 // of memory for compiling, in addition to that of the module
	moduleFiles    = 512       // open at once
	moduleFile     = 512 << 20 // bytes of one
	keptModules    = 32        // in a CacheDir
)

// moduleRun is the order to a module's process, as JSON in its argument.
type moduleRun struct {
	Name      string `json:"name"`
	Module    string `json:"module"` // path of the file
	Skill     string `json:"skill"`
	Workspace string `json:"workspace"` // "" = none
	Write     bool   `json:"write"`
	Tmp       string `json:"tmp"`
	Memory    int64  `json:"memory"`
	Cache     string `json:"cache"`   // "" = none
	Outcome   string `json:"outcome"` // file for the outcome
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
	outcomeMemory  outcomeKind = "memory"  // it needed more memory than allowed
	outcomeInvalid outcomeKind = "invalid" // it could not be run: Text says why
)

// Wasm runs a WASI module (preview 1, with _start) until it ends or ctx does. The module sees
// its skill as /skill, read-only, the workspace as /workspace, which is its PWD, and an
// empty /tmp that is deleted afterwards; no link leads out of these. It has no network.
//
// The module runs in its own process in the sandbox: this program again, see
// MaybeRunModule. With a CacheDir a later call of the same module needs no compilation.
//
// An exit status other than 0 is not an error. The error is sandbox_crash for a module that
// traps, and out_of_memory for one that needs more memory than allowed.
func Wasm(ctx context.Context, l *sandbox.Launcher, j Job, emit host.Emitter, event EventFunc) (*Result, error) {
	sum, err := checkModule(&j)
	if err != nil {
		return nil, err
	}
	scratch, err := l.MakeScratch()
	if err != nil {
		return nil, errorf("the module cannot be run: %w", wall.Cause(err))
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

// checkModule checks that the file is a module, and returns its hash in hex.
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
		return "", errorf("%s cannot be read: %w", j.File, wall.Cause(err))
	}
	if n >= maxModuleBytes {
		return "", errorf("%s has more than %d MiB, the largest module", j.File, maxModuleBytes>>20)
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// modulePolicy returns the order to the module's process, and its sandbox policy.
func modulePolicy(j *Job, scratch, sum string) (*moduleRun, sandbox.Policy, error) {
	policy := j.policy(scratch)
	order := &moduleRun{
		Name: j.Name, Module: filepath.Join(j.Dir, filepath.FromSlash(j.File)), Skill: j.Dir, Workspace: j.Workspace,
		Write: j.Write, Tmp: filepath.Join(scratch, "tmp"), Memory: j.MemoryBytes,
		Outcome: filepath.Join(scratch, "outcome"),
	}
	if err := os.Mkdir(order.Tmp, 0o700); err != nil {
		return nil, policy, errorf("the module cannot be run: %w", wall.Cause(err))
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
		MemoryBytes: j.MemoryBytes + engineBytes, OpenFiles: moduleFiles, FileBytes: moduleFile,
	}
	return order, policy, nil
}

// cacheOf makes the folder for the compiled code of one module, and deletes the least recently
// used ones over keptModules. It returns "" if it cannot make the folder. Each module has its own folder, so
// that no module can change the code of another.
func cacheOf(dir, sum string) string {
	own := filepath.Join(dir, sum)
	if err := os.MkdirAll(own, 0o700); err != nil {
		return ""
	}
	now := time.Now()
	_ = os.Chtimes(own, now, now) // the age only decides what is deleted first
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

// judge returns the result or error of a module, from its outcome file and the state of its process.
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

// readOutcome reads the outcome that the module's process wrote.
func readOutcome(file string) (*outcome, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	end := new(outcome)
	return end, json.UnmarshalRead(io.LimitReader(f, maxOutcome), end)
}
