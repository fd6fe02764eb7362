package lineio

import (
	"bytes"
	"io"
	"os"
	"testing"
	"time"
)

// TestOutboxOfOneThatDoesNotRead: a child that answers without having read, so that it
// seems to have nothing else to read, holds nobody up, and no line is lost or torn.
func TestOutboxOfOneThatDoesNotRead(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	o := NewOutbox(w)
	line := append(bytes.Repeat([]byte("x"), maxDirect-1-7), '\n') // fits into no pipe a whole number of times
	const lines = 100
	added := make(chan error)
	go func() {
		defer close(added)
		for range lines {
			if err := o.Add(line, true); err != nil {
				added <- err
			}
		}
	}()
	select {
	case err := <-added:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("it waits for a child that does not read")
	}
	o.Close()
	go o.Run(make(chan struct{}), func(err error) { t.Errorf("killed: %v", err) }, time.Minute)
	if all, err := io.ReadAll(r); err != nil || !bytes.Equal(all, bytes.Repeat(line, lines)) {
		t.Errorf("%d bytes, %v", len(all), err)
	}
}
