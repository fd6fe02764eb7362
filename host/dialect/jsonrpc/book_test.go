package jsonrpc

import (
	"context"
	"strings"
	"testing"
)

// TestDroppedMessagesAreGone: what a session in memory drops is not held by the list that it
// stood in, however much room that has.
func TestDroppedMessagesAreGone(t *testing.T) {
	b, ctx := newMemory(9), context.Background()
	if _, _, err := b.put(ctx, entry{ID: "s"}, func(*entry) {}); err != nil {
		t.Fatal(err)
	}
	for range maxMessages {
		if err := b.add(ctx, "s", message{Text: "small"}); err != nil {
			t.Fatal(err)
		}
	}
	list := b.kept["s"].messages
	list = list[:cap(list)] // the room for further ones
	large := strings.Repeat("x", 1<<20)
	for range cap(list) - maxMessages {
		if err := b.add(ctx, "s", message{Text: large}); err != nil {
			t.Fatal(err)
		}
	}
	held := 0
	for _, m := range list {
		held += len(m.Text)
	}
	if held > maxHistory {
		t.Errorf("the list holds %d bytes, of which %d are counted", held, b.bytes)
	}
}

// TestCostOfMessages: all that a client can make long is counted.
func TestCostOfMessages(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	for i, m := range []message{
		{Text: long}, {Images: []image{{Path: long}}}, {ToolCalls: []toolCall{{Name: long}}}, {ToolCalls: []toolCall{{Arguments: []byte(long)}}},
	} {
		if m.cost() < len(long) {
			t.Errorf("message %d costs %d", i, m.cost())
		}
	}
}
