package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
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

	writing sync.Mutex // held while a line is written

	gone chan struct{} // closed when the host has ended

	mu      sync.Mutex // guards the fields below
	last    int        // id of a request
	waiting map[int]chan<- rpcAnswer
	over    error // why no answer comes any more
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
			c.end(err)
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

func (c *rpcConn) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrClosedPipe) {
		err = errors.New("the host has ended")
	}
	c.over = err
	for _, to := range c.waiting {
		close(to)
	}
	c.waiting = nil
	close(c.gone)
}

// call makes a request and decodes its answer into result, unless that is nil.
func (c *rpcConn) call(ctx context.Context, method string, params, result any) error {
	answer := make(chan rpcAnswer, 1)
	c.mu.Lock()
	if c.over != nil {
		defer c.mu.Unlock()
		return c.over
	}
	c.last++
	id := c.last
	if c.waiting == nil {
		c.waiting = make(map[int]chan<- rpcAnswer)
	}
	c.waiting[id] = answer
	c.mu.Unlock()
	line, err := protocol.AppendJSON(nil, map[string]any{"jsonrpc": wire.Version, "id": id, "method": method, "params": params})
	if err != nil {
		return err
	}
	c.writing.Lock()
	_, err = c.to.Write(append(line, '\n'))
	c.writing.Unlock()
	if err != nil {
		return fmt.Errorf("the host takes no requests: %w", err)
	}
	select {
	case a, ok := <-answer:
		switch {
		case !ok:
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.over
		case a.Error != nil:
			return errors.New(a.Error.Message)
		case result != nil:
			return json.Unmarshal(a.Result, result)
		}
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
