package cli

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"a2e/host/hosttest/assert"
	"a2e/host/hosttest/must"
	"a2e/host/sandbox"
)

// noisyRole is the environment variable that makes this test binary noisy.
const noisyRole = "A2E_TEST_NOISY"

func TestMain(m *testing.M) {
	sandbox.MaybeRunLauncher() // for children of hosts that run in this process
	if os.Getenv(noisyRole) != "" {
		noisy()
		return
	}
	os.Exit(m.Run())
}

// noisy takes stdout as serve does, and then prints to stdout as a careless library and its child do.
func noisy() {
	sys := System{In: os.Stdin, Out: NewOutput(os.Stdout), Err: os.Stderr}
	private, err := takeStdout(&sys)
	if err != nil {
		panic(err)
	}
	fmt.Println("noise of a library")
	child := exec.Command("echo", "noise of a child")
	child.Stdout = os.Stdout
	if err := child.Run(); err != nil {
		panic(err)
	}
	if _, err := private.WriteString("protocol\n"); err != nil {
		panic(err)
	}
}

func TestNothingButProtocolReachesStdout(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), noisyRole+"=1")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	must.That(t, err == nil, "%v: %s", err, stderr.String())
	assert.Equal(t, stdout.String(), "protocol\n", "stdout")
	for _, noise := range []string{"noise of a library", "noise of a child"} {
		assert.Contains(t, stderr.String(), noise, "… is not on stderr")
	}
}
