package exec

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"a2e/host/child"
	"a2e/host/config"
	"a2e/protocol"
)

// Options are the plugin's options in the config. DefaultOptions has what holds where
// the config says nothing.
type Options struct {
	Command      []string              `yaml:"command" doc:"The program that speaks A2E, and its arguments. A bare name is looked up on the PATH, one with a slash is relative to the workspace."`
	Env          map[string]string     `yaml:"env" secret:"yes" doc:"Further environment variables of the program."`
	Cwd          string                `yaml:"cwd" doc:"The folder it runs in, relative to the workspace or absolute; default: the workspace."`
	Network      bool                  `yaml:"network" doc:"Let the program use the network."`
	Read         []string              `yaml:"read" doc:"Further files and folders that it may read, relative to the workspace or absolute."`
	Capabilities []protocol.Capability `yaml:"capabilities" doc:"The capabilities that it may serve; default: all that it says in its handshake. With them the host's own handshake does not wait for it. exclusive: true needs them."`
	Types        []string              `yaml:"types" doc:"Message types of its own that it serves, beside those that its handshake names."`
	AuthToken    config.Secret         `yaml:"auth_token" doc:"Token for its handshake. Best as a variable."`
	StartTimeout time.Duration         `yaml:"start_timeout" doc:"Seconds until it must have answered its handshake; 0 = 5."`
	Timeout      time.Duration         `yaml:"timeout" doc:"Seconds for a request whose type has no timeout of its own; 0 = 60."`
	MaxParallel  int                   `yaml:"max_parallel" min:"0" doc:"Requests that are given to it at once; 0 = what its handshake says."`
	MaxRestarts  int                   `yaml:"max_restarts" min:"0" doc:"Failures in a row after which it is only started once a minute; 0 = 5."`
}

// DefaultOptions are the options of a config that sets none.
func DefaultOptions() Options { return Options{} }

// What holds where the config says nothing, and what it cannot go beyond.
const (
	defaultStartTimeout = 5 * time.Second
	defaultTimeout      = time.Minute
	defaultMaxRestarts  = 5
	maxPlaces           = 1024 // of max_parallel
	maxTypes            = 1000 // that one child may name
	maxTypeName         = 128  // bytes
)

func (o *Options) setDefaults() {
	o.StartTimeout = cmp.Or(o.StartTimeout, defaultStartTimeout)
	o.Timeout = cmp.Or(o.Timeout, defaultTimeout)
	o.MaxRestarts = cmp.Or(o.MaxRestarts, defaultMaxRestarts)
}

// check tells what in the options cannot work.
func (o *Options) check(exclusive bool) error {
	if err := child.CheckCommand(o.Command, "the program that speaks A2E, such as [python3, tools.py]"); err != nil {
		return err
	}
	switch {
	case exclusive && len(o.Capabilities) == 0:
		return errors.New("exclusive: true needs capabilities, as what an exclusive plugin answers is settled before its child has started; name them, such as capabilities: [tools]")
	case o.StartTimeout < 0 || o.Timeout < 0:
		return errors.New("start_timeout and timeout should be 0 or more seconds")
	case o.MaxParallel < 0 || o.MaxParallel > maxPlaces:
		return fmt.Errorf("max_parallel should be 0 to %d", maxPlaces)
	case o.MaxRestarts < 0 || o.MaxRestarts > math.MaxInt16:
		return errors.New("max_restarts should be 0 or more")
	}
	for _, name := range o.Capabilities {
		if !slices.Contains(capabilities(), name) {
			return fmt.Errorf("capabilities: there is no %.64q; there are %s", name, joined(capabilities()))
		}
	}
	for i, t := range o.Types {
		switch {
		case !isCustom(protocol.Type(t)):
			return fmt.Errorf("types: %.64q should be a type that the protocol does not have, such as \"weather/ask/req\", of printable ASCII characters without quotes", t)
		case slices.Contains(o.Types[:i], t):
			return fmt.Errorf("types: %q stands twice", t)
		}
	}
	return nil
}

// capabilities lists the names that may be negotiated.
func capabilities() []protocol.Capability {
	var all []protocol.Capability
	for _, info := range protocol.Types() {
		if info.Capability != protocol.CapCore && !slices.Contains(all, info.Capability) {
			all = append(all, info.Capability)
		}
	}
	return append(all, protocol.CapTest)
}

func joined(names []protocol.Capability) string {
	texts := make([]string, len(names))
	for i, name := range names {
		texts[i] = string(name)
	}
	return strings.Join(texts, ", ")
}

// isCustom tells whether a type is one of a plugin's own: a name that can stand in a line
// as it is, and none that the protocol or the host has.
func isCustom(t protocol.Type) bool {
	if t == "" || len(t) > maxTypeName || t == protocol.TypeCancel || t == "*" {
		return false
	}
	if _, standard := protocol.Lookup(t); standard || t == protocol.TypeMCPElicitReq || t == protocol.TypeMCPElicitResp {
		return false
	}
	return !strings.ContainsFunc(string(t), func(r rune) bool { return r <= ' ' || r > '~' || r == '"' || r == '\\' })
}
