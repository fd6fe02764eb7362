package cli

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"io"
	"strconv"
	"sync"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/protocol"
	wire "a2e/protocol/jsonrpc"
)

// rpcConn is a client of the JSON-RPC sessions of a host. It is safe for concurrent use.
type rpcConn struct {
	to    io.WriteCloser
	event func(wire.EventType, jsontext.Value) // called in the order of the events; it must not call the host
	gone  chan struct{}                        // closed when the host has ended
	over  error                                // why, once gone is closed

	writing sync.Mutex // held while a line is written

	mu      sync.Mutex // guards the fields below
	last    int        // id of a request
	waiting map[int]chan<- rpcAnswer
}

// rpcAnswer is a line of the host: an answer, or an event.
type rpcAnswer struct {
	ID     *int           `json:"id"`
	Result jsontext.Value `json:"result"`
	Error  *struct {
		Message string `json:"message"`
	} `json:"error"`
	Params struct {
		Type    wire.EventType `json:"type"`
		Payload jsontext.Value `json:"payload"`
	} `json:"params"`
}

// newRPC makes a client of the host that reads to and writes from.
func newRPC(to io.WriteCloser, from *io.PipeReader, event func(wire.EventType, jsontext.Value)) *rpcConn {
	c := &rpcConn{to: to, event: event, gone: make(chan struct{}), waiting: make(map[int]chan<- rpcAnswer)}
	go c.read(from)
	return c
}

// read takes the lines of the host until there are no more.
func (c *rpcConn) read(from *io.PipeReader) {
	in := bufio.NewReaderSize(from, 64<<10)
	for {
		line, err := in.ReadBytes('\n')
		var a rpcAnswer
		if err == nil {
			err = json.Unmarshal(line, &a)
		}
		switch {
		case err != nil:
			from.CloseWithError(err) // what the host writes has no reader any more
			if c.over = err; errors.Is(err, io.EOF) || errors.Is(err, io.ErrClosedPipe) {
				c.over = errHostEnded
			}
			close(c.gone)
			return
		case a.ID == nil:
			c.event(a.Params.Type, a.Params.Payload)
			continue
		}
		c.mu.Lock()
		to := c.waiting[*a.ID]
		delete(c.waiting, *a.ID)
		c.mu.Unlock()
		if to != nil {
			to <- a
		}
	}
}

var errHostEnded = errors.New("the host has ended")

// call makes a request and decodes its answer into result, unless that is nil.
func (c *rpcConn) call(ctx context.Context, method string, params, result any) error {
	answer := make(chan rpcAnswer, 1)
	c.mu.Lock()
	c.last++
	id := c.last
	c.waiting[id] = answer
	c.mu.Unlock()
	raw, err := protocol.AppendJSON(nil, params)
	if err != nil {
		return err
	}
	line := wire.AppendCall(nil, jsontext.Value(strconv.Itoa(id)), method, raw)
	c.writing.Lock()
	_, err = c.to.Write(append(line, '\n')) // of a host that has ended, gone tells
	c.writing.Unlock()
	select {
	case a := <-answer:
		switch {
		case a.Error != nil:
			return errors.New(a.Error.Message)
		case result != nil:
			return json.Unmarshal(a.Result, result)
		}
		return nil
	case <-c.gone:
		return cmp.Or(c.over, err)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
