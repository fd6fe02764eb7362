package cli_test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"a2e/host/cli"
	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
)

// What the command line checks must be all that the model asks for, and each command must run.
func TestModelIsWhatParseKnows(t *testing.T) {
	t.Parallel()
	model := must.Get(cli.Model())(t)
	for _, leaf := range model.Leaves(false) {
		assert.That(t, cli.Runs(leaf.Target.Addr().Interface()), "%s has no Run that parse.go calls", leaf.Path())
	}
	must.OK(t, kong.Visit(model, func(node kong.Visitable, next kong.Next) error {
		flag, isFlag := node.(*kong.Flag)
		value, isValue := node.(*kong.Value)
		if isFlag {
			value, isValue = flag.Value, true
			assert.That(t, len(flag.And) == 0 && len(flag.Envs) == 0, "--%s has a tag that parse.go does not check", flag.Name)
		}
		if isValue && value.Enum != "" {
			assert.That(t, value.Target.CanInt() || value.Target.Kind().String() == "string", "%s: an enum of many", value.Name)
		}
		return next(nil)
	}))
}

// A method that is looked up by a name in a variable makes the linker keep all exported ones.
func TestNoMethodIsLookedUpByName(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-dumpdep", "-o", filepath.Join(t.TempDir(), "a2e"), ".")
	cmd.Dir, cmd.Env = root, append(cmd.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	must.That(t, err == nil && len(out) > 1<<20, "go build: %v", err)
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "<ReflectMethod>") {
			t.Errorf("this keeps 2.5 MB of methods in the binary: %s", line)
		}
	}
}
