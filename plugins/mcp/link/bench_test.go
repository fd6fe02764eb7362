package link

import (
	"context"
	"os"
	"os/exec"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// BenchmarkCall compares a tool call through a Link with one of the SDK alone, to the
// same server.
func BenchmarkCall(b *testing.B) {
	call := func(ctx context.Context, s *mcp.ClientSession) error {
		_, err := s.CallTool(ctx, &mcp.CallToolParams{Name: "echo", Arguments: echoArgs{"x"}})
		return err
	}
	b.Run("sdk", func(b *testing.B) {
		cfg := server(b, "good")
		cmd := exec.Command(cfg.Command)
		cmd.Env = append(os.Environ(), roleVar+"=good")
		s, err := mcp.NewClient(&mcp.Implementation{Name: "bench"}, nil).Connect(b.Context(), &mcp.CommandTransport{Command: cmd}, nil)
		if err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			if err := call(b.Context(), s); err != nil {
				b.Fatal(err)
			}
		}
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	})
	b.Run("link", func(b *testing.B) {
		s := newStage(b, server(b, "good"), nil)
		s.must("echo", echoArgs{})
		for b.Loop() {
			err := s.Call(b.Context(), func(ctx context.Context, cs *mcp.ClientSession) error { return call(ctx, cs) })
			if err != nil {
				b.Fatal(err)
			}
		}
	})
}
