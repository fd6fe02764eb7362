// Puts client.go to the test: go run try.go client.go A2E
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"strings"
	"sync"
)

func check(ok bool, format string, args ...any) {
	if !ok {
		log.Fatalf(format, args...)
	}
}

func code(err error) string {
	var failed *Error
	errors.As(err, &failed)
	return fmt.Sprint(failed)
}

func echo(h *Host, text string) {
	data, err := h.Call(context.Background(), "echo", Fields{"text": text}, nil)
	check(err == nil && data["text"] == text, "%.20q gave %.20q, %v", text, data["text"], err)
}

func main() {
	ctx := context.Background()
	host, err := Start(ctx, exec.Command(os.Args[1]), nil)
	check(err == nil, "%v", err)
	var all sync.WaitGroup
	for i := range 1000 {
		all.Go(func() { echo(host, fmt.Sprint(i)) })
	}
	all.Wait()
	echo(host, strings.Repeat("x", 5_000_000))
	echo(host, "äß 日本 \u2028\x00\U0001f600 \"\\\n")
	events := 0
	sh := func(script string) Fields { return Fields{"command": []string{"sh", "-c", script}} }
	_, err = host.Call(ctx, "run_command", sh("echo out"), func(Fields) { events++ })
	check(err == nil && events > 0, "%d events, %v", events, err)
	_, err = host.Call(ctx, "nothing", Fields{}, nil)
	check(strings.HasPrefix(code(err), "unknown_tool: "), "%v", err)
	_, err = host.Call(ctx, "run_command", sh("exit 3"), nil)
	check(strings.HasPrefix(code(err), "tool_error: "), "%v", err)
	stopped, stop := context.WithCancelCause(ctx)
	go stop(errors.New("enough"))
	_, err = host.Call(stopped, "run_command", sh("sleep 600"), nil)
	check(err != nil && err.Error() == "enough", "%v", err)
	check(host.Close() == nil, "it did not end well")
	_, err = host.Do(ctx, "ping", nil, nil)
	check(errors.Is(err, ErrGone), "%v", err)

	host, err = Start(ctx, exec.Command(os.Args[1]), nil)
	check(err == nil, "%v", err)
	for range 10 {
		all.Go(func() {
			_, err := host.Call(ctx, "run_command", sh("sleep 600"), nil)
			check(errors.Is(err, ErrGone), "%v", err)
		})
	}
	check(host.cmd.Process.Kill() == nil, "it is not there")
	all.Wait()
	check(host.Close() != nil, "it was killed")
	model := func(m Fields) Fields {
		if m["type"] != "mcp/sample/req" {
			return nil
		}
		return Fields{"content": Fields{"type": "text", "text": "the model says hi"}, "model": "m"}
	}
	for said, onMessage := range map[string]func(Fields) Fields{"says hi": model, "does not answer": nil} {
		host, err = Start(ctx, exec.Command(os.Args[1], "--config", "asks.yaml"), onMessage)
		check(err == nil, "%v", err)
		data, err := host.Call(ctx, "asks__ask", Fields{}, nil)
		check(err == nil && strings.Contains(fmt.Sprint(data), said), "%v, %v", data, err)
		check(host.Close() == nil, "it did not end well")
	}
	_, err = Start(ctx, exec.Command(os.Args[1], "--config", "token.yaml"), nil)
	check(strings.HasPrefix(code(err), "auth_failed: "), "%v", err)
	fmt.Println("hello from go")
}
