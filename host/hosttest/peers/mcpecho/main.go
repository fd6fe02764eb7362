// Command mcpecho is an MCP server on the official Go SDK with one tool,
// `echo{text}`, over standard input and output, or over HTTP at the address in its argument. The bench compares
// a host with it, to show the cost of the same call with the usual library.
package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"

	"github.com/go-json-experiment/json"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func main() {
	server := mcp.NewServer(&mcp.Implementation{Name: "mcpecho", Version: "1.0.0"}, nil)
	// This method passes raw arguments. The SDK's generic AddTool also validates them, which makes a
	// call take 1.5 times as long.
	server.AddTool(&mcp.Tool{
		Name:        "echo",
		Description: "Gives the text back.",
		InputSchema: map[string]any{
			"type":       "object",
			"properties": map[string]any{"text": map[string]any{"type": "string"}},
			"required":   []string{"text"},
		},
	}, echo)
	if len(os.Args) == 1 {
		if err := server.Run(context.Background(), &mcp.StdioTransport{}); err != nil {
			log.Fatal("mcpecho: ", err)
		}
		return
	}
	listener, err := net.Listen("tcp", os.Args[1])
	if err != nil {
		log.Fatal("mcpecho: ", err)
	}
	fmt.Printf("http://%s\n", listener.Addr())
	log.Fatal(http.Serve(listener, mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server },
		nil)))
}

// echo answers with the text it was called with.
func echo(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	var args struct {
		Text string `json:"text"`
	}
	if err := json.Unmarshal(req.Params.Arguments, &args); err != nil {
		return nil, err
	}
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: args.Text}}}, nil
}
