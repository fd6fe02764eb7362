package client

import (
	"context"
	"time"

	"a2e/protocol"
)

// RefusedError is a handshake that was answered with ok:false.
type RefusedError struct {
	Reason protocol.HandshakeReason
}

// Error implements error.
func (e *RefusedError) Error() string {
	return "client: the host refused the handshake: " + string(e.Reason)
}

// Handshake opens a session; token is "" for an open host. When the host refuses,
// the error is a *RefusedError and the answer is there too.
func (c *Client) Handshake(ctx context.Context, agentID string, caps []protocol.Capability, token string) (*protocol.HandshakeResponse, error) {
	req := protocol.HandshakeRequest{AgentID: agentID, AgentCaps: caps, AuthToken: token}
	resp := new(protocol.HandshakeResponse)
	if err := c.Call(ctx, protocol.TypeHandshakeReq, req, resp); err != nil {
		return nil, err
	}
	if !resp.OK {
		return resp, &RefusedError{Reason: resp.Reason}
	}
	return resp, nil
}

// Ping asks whether the host lives and gives how long it has.
func (c *Client) Ping(ctx context.Context) (uptime time.Duration, err error) {
	var pong protocol.Pong
	err = c.Call(ctx, protocol.TypePing, nil, &pong)
	return time.Duration(pong.UptimeSeconds * float64(time.Second)), err
}

// Cancel asks the host to stop a request, by the id of its Pending. The request is
// then answered by the error `cancelled`, unless it had ended.
func (c *Client) Cancel(id string) error {
	_, err := c.Send(protocol.TypeCancel, protocol.Cancel{ReqID: id})
	return err
}

// Shutdown tells the host to stop and waits until it has closed its output, or
// ctx ends. timeout, in whole seconds, is what running requests get to finish.
// Close is still due.
func (c *Client) Shutdown(ctx context.Context, timeout time.Duration) error {
	if _, err := c.Send(protocol.TypeShutdown, protocol.Shutdown{Timeout: int(timeout / time.Second)}); err != nil {
		return err
	}
	select {
	case <-c.ended:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
