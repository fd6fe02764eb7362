package mcp

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// conn is the go-sdk's transport: it reads what the pump feeds, and its answers go out
// under the ids that the client gave. Between the two a request has a number, for the
// go-sdk keeps no ids but texts and 64-bit integers.
type conn struct {
	server *server
	in     chan rpcMessage
	once   sync.Once
	closed chan struct{}
}

// Connect implements mcp.Transport.
func (c *conn) Connect(context.Context) (mcp.Connection, error) { return c, nil }

// SessionID implements mcp.Connection.
func (c *conn) SessionID() string { return "" }

// Read implements mcp.Connection.
func (c *conn) Read(ctx context.Context) (rpcMessage, error) {
	select {
	case msg := <-c.in:
		return msg, nil
	case <-c.closed:
		return nil, io.EOF
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Write implements mcp.Connection. It does not fail: that would end the session.
func (c *conn) Write(_ context.Context, msg rpcMessage) error {
	switch m := msg.(type) {
	case *jsonrpc.Response:
		if r := c.server.desk.find(m.ID.Raw()); r != nil {
			if m.Error != nil {
				c.server.answer(r, nil, toRPC(m.Error))
			} else if r.method == methodInitialize && c.server.hasServers() {
				c.server.answer(r, withTasks(m.Result), nil)
			} else {
				c.server.answer(r, m.Result, nil)
			}
		}
	case *jsonrpc.Request:
		switch {
		case m.IsCall() && !c.server.desk.asks(m.ID):
			return nil
		case m.Method == notifyCancelled:
			c.server.desk.asksNot(member(jsontext.Value(m.Params), "requestId"))
		}
		line, err := jsonrpc.EncodeMessage(m)
		if err != nil {
			return err
		}
		c.server.send(line)
	}
	return nil
}

// Close implements mcp.Connection.
func (c *conn) Close() error {
	c.close()
	return nil
}

func (c *conn) close() { c.once.Do(func() { close(c.closed) }) }

// feed gives a message to the go-sdk; false means that it reads no more.
func (c *conn) feed(msg rpcMessage) bool {
	select {
	case c.in <- msg:
		return true
	case <-c.closed:
		return false
	}
}

// numberHeader carries a request's number past the go-sdk, to its handler.
const numberHeader = "A2e-Request"

// forSDK makes the go-sdk's form of a request.
func (r *request) forSDK() *jsonrpc.Request {
	id, _ := jsonrpc.MakeID(float64(r.number)) // a number is always fine
	return &jsonrpc.Request{
		ID: id, Method: r.method, Params: []byte(r.params),
		Extra: &mcp.RequestExtra{Header: http.Header{numberHeader: {strconv.FormatInt(r.number, 10)}}},
	}
}

// requestOf finds the request that a handler of the go-sdk serves.
func (s *server) requestOf(req mcp.Request) *request {
	extra := req.GetExtra()
	if extra == nil {
		return nil
	}
	n, err := strconv.ParseInt(extra.Header.Get(numberHeader), 10, 64)
	if err != nil {
		return nil
	}
	return s.desk.find(n)
}
