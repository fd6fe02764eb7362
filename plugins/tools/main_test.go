package tools

import (
	"os"
	"testing"
	"time"

	"a2e/host/hosttest"
	"a2e/host/sandbox"
)

// patience is how long a test waits for what should come at once. Only a test that
// fails waits that long.
const patience = 60 * time.Second

func TestMain(m *testing.M) {
	sandbox.MaybeRunLauncher() // children start through this test binary
	os.Exit(m.Run())
}

// launcherIn returns what starts the programs of a plugin on a workspace; the test closes it.
func launcherIn(t testing.TB, workspace string) func() (*sandbox.Launcher, error) {
	t.Helper()
	launcher, err := sandbox.New(sandbox.Options{
		Path: sandbox.SafePath(os.Getenv("PATH"), workspace), Workspace: workspace, Launcher: hosttest.Launcher(t),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { check(t, launcher.Close()) })
	return func() (*sandbox.Launcher, error) { return launcher, nil }
}
