package env

import (
	"os"
	"testing"

	"a2e/host/sandbox"
)

func TestMain(m *testing.M) {
	sandbox.MaybeRunLauncher() // children start through this test binary
	os.Exit(m.Run())
}
