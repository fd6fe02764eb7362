package hosttest

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// Running counts the processes of the machine that have an argument, by /proc.
func Running(t testing.TB, arg string) (n int) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		words, _ := os.ReadFile(file) // it may have ended meanwhile
		if bytes.Contains(append([]byte{0}, words...), []byte("\x00"+arg+"\x00")) {
			n++
		}
	}
	return n
}
