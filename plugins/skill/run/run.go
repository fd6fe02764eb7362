// Package run has the ways to run a skill that need something outside of it: a program
// in the sandbox, or a WebAssembly module.
//
//	script.go    a script: one child process in the sandbox
//	wasm.go      a WASI module: one child process in the sandbox
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
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
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
	if len(j.Args) == 0 {
		j.Args = jsontext.Value("{}")
	}
	return j
}

// errorf makes the error of a skill that cannot be run, or was stopped.
func errorf(format string, args ...any) *protocol.Error {
	return protocol.Errorf(protocol.CodeSkillError, format, args...)
}

// orMute returns an Emitter and an EventFunc that may be called.
func orMute(emit host.Emitter, event EventFunc) (host.Emitter, EventFunc) {
	if emit == nil {
		emit = host.Mute{}
	}
	if event == nil {
		event = func(string, jsontext.Value) {}
	}
	return emit, event
}
