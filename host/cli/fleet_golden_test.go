package cli_test

import (
	"a2e/host/hosttest/assert"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
)

// TestGoldenFleet plays the conversations of testdata/sessions/fleet as TestGoldenRPC does
// those of its own. They begin with the command line:
//
//	$ a2e worker   the host is started
func TestGoldenFleet(t *testing.T) { playSessions(t, "fleet", playFleet) }

func playFleet(t *testing.T, files []txtar.File, session []byte) []byte {
	s := &scene{t: t, dir: workDir(t)}
	for _, f := range files {
		put(t, s.dir, block{mark: "with: " + f.Name, text: string(f.Data)})
		if f.Name == "a2e.yaml" {
			writeConfig(t, s.dir, string(f.Data))
		}
	}
	for line := range strings.Lines(string(session)) {
		line = strings.TrimSuffix(line, "\n")
		words := strings.Fields(line)
		if len(words) > 1 && words[0] == "$" && words[1] == "a2e" {
			fmt.Fprintln(&s.out, line)
			s.host = start(t, s.dir, words[2:]...)
			continue
		}
		s.step(line)
	}
	assert.That(t, s.host == nil, "end the script with `! eof`")
	return s.out.Bytes()
}
