package run

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"a2e/host/sandbox"
)

func TestMain(m *testing.M) {
	sandbox.MaybeRunLauncher()
	MaybeRunModule()
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if dir, err := guestCache(); err == nil {
			_ = os.RemoveAll(dir)
		}
		os.Exit(code)
	}))
}
