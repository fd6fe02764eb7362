package cli

import (
	"bufio"
	"context"
	"errors"
	"io"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/protocol"
	wire "a2e/protocol/jsonrpc"
)

// rpcConn is a client of the JSON-RPC sessions of a host. It is safe for concurrent use.
type rpcConn struct {
	to      *io.PipeWriter
	event   func(wire.EventType, jsontext.Value) // called in the order of the events; it must not call the host
	gone    chan struct{}                        // closed when the host has ended
	last    atomic.Int64                         // id of the last request
	waiting sync.Map                             // from the id of a request to the chan rpcAnswer of its answer
}

// rpcAnswer is a line of the host: an answer, or an event.
type rpcAnswer struct {
	ID     *int64         `json:"id"`
	Result jsontext.Value `json:"result"`
	Error  *struct {
		Message string `json:"message"`
	} `json:"error"`
	Params struct {
		Type    wire.EventType `json:"type"`
		Payload jsontext.Value `json:"payload"`
	} `json:"params"`
}

var errHostEnded = errors.New("the host has ended")

// newRPC creates a client of a host. It writes requests to to and reads answers and events from from.
func newRPC(to *io.PipeWriter, from *io.PipeReader, event func(wire.EventType, jsontext.Value)) *rpcConn {
	c := &rpcConn{to: to, event: event, gone: make(chan struct{})}
	go func() {
		from.CloseWithError(c.read(from)) // after this nobody reads what the host writes
		close(c.gone)
	}()
	return c
}

// read handles the lines of the host until the input ends.
func (c *rpcConn) read(from io.Reader) error {
	for in := bufio.NewReaderSize(from, 64<<10); ; {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return err
		}
		var a rpcAnswer
		if err := json.Unmarshal(line, &a); err != nil {
			return err
		}
		if a.ID == nil {
			c.event(a.Params.Type, a.Params.Payload)
		} else if to, ok := c.waiting.LoadAndDelete(*a.ID); ok {
			to.(chan rpcAnswer) <- a
		}
	}
}

// call sends a request and decodes its answer into result, unless result is nil.
func (c *rpcConn) call(ctx context.Context, method string, params, result any) error {
	raw, err := protocol.AppendJSON(nil, params)
	if err != nil {
		return err
	}
	id, answer := c.last.Add(1), make(chan rpcAnswer, 1)
	c.waiting.Store(id, answer)
	line := wire.AppendCall(nil, jsontext.Value(strconv.FormatInt(id, 10)), method, raw)
	_, _ = c.to.Write(append(line, '\n')) // an error means that the host has ended, which gone reports
	select {
	case a := <-answer:
		if a.Error != nil {
			return errors.New(a.Error.Message)
		}
		if result == nil {
			return nil
		}
		return json.Unmarshal(a.Result, result)
	case <-c.gone:
		return errHostEnded
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
