package httpd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"

	"a2e/protocol"
	"a2e/protocol/client"
)

// callAgent is the agent_id of the handshake of a call.
const callAgent = "POST /call"

// call serves one request in a session of its own, which ends with the answer.
func (s *Server) call(w http.ResponseWriter, r *http.Request) {
	body, err := s.body(w, r)
	if err != nil {
		status, why := bodyFault(err)
		refuse(w, status, why)
		return
	}
	var req protocol.Line
	if err := answered(&req, body); err != nil {
		refuse(w, http.StatusBadRequest, err)
		return
	}
	c, err := s.begin(Call)
	if err != nil {
		refuse(w, http.StatusServiceUnavailable, err)
		return
	}
	defer c.end()
	defer c.listen()() // so that the session is in use
	token, _ := bearer(r)
	text, err := c.ask(r.Context(), token, &req)
	switch refused, _ := errors.AsType[*client.RefusedError](err); {
	case r.Context().Err() != nil: // nobody waits for the answer
		c.cut()
	case refused != nil:
		refuse(w, http.StatusUnauthorized, fmt.Errorf("%w; bring an agent's token: Authorization: Bearer TOKEN", err))
	case err != nil:
		refuse(w, http.StatusServiceUnavailable, err)
	default:
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(statusOf(text))
		_, _ = w.Write(append(text, '\n')) // fails if the client has gone
	}
}

// answered reads a message, and refuses a message of a type that gets no answer.
func answered(req *protocol.Line, body []byte) error {
	if err := req.Scan(bytes.TrimSuffix(body, []byte{'\n'})); err != nil {
		return err
	}
	if err := req.Check(); err != nil {
		return err
	}
	kind := protocol.Type(req.Type)
	info, known := protocol.Lookup(kind)
	if known && info.Response == "" || kind == protocol.TypeCancel || kind == protocol.TypeMCPElicitResp {
		return fmt.Errorf("%s has no answer; send it in a session, by POST /send", req.Type)
	}
	return nil
}

// ask sends a handshake and a request to the session's host, and returns the line of the answer.
func (c *session) ask(ctx context.Context, token string, req *protocol.Line) ([]byte, error) {
	got, ended := make(chan []byte, 1), make(chan struct{})
	host := client.Attach(c.output, toHost{ctx, c}, client.Options{OnLine: func(raw []byte) {
		var line protocol.Line
		if line.Scan(raw) == nil && answers(&line, req) && len(got) == 0 {
			got <- bytes.Clone(raw)
		}
	}})
	c.server.goes.Go(func() {
		defer close(ended)
		_ = host.Wait() // the host has logged the error
	})
	if _, err := host.Handshake(ctx, callAgent, nil, token); err != nil {
		return nil, err
	}
	if err := host.WriteLine(req.Raw()); err != nil {
		return nil, err
	}
	select {
	case <-ended:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case answer := <-got:
		return answer, nil
	}
	select {
	case answer := <-got:
		return answer, nil
	default:
		return nil, errors.New("the host ended without an answer; send it again")
	}
}

// answers reports whether a line of a host is the answer to a request.
func answers(line, req *protocol.Line) bool {
	info, known := protocol.Lookup(protocol.Type(line.Type))
	if known && info.Direction != protocol.HostResponse && protocol.Type(line.Type) != protocol.TypeError {
		return false
	}
	return idOf(line.ReqID) == idOf(req.ID)
}

// idOf returns an id as the host repeats it: a number becomes a string.
func idOf(id protocol.Value) string {
	if text, ok := id.Str(); ok {
		return text
	}
	return string(id)
}

// toHost is the input of the host of a session.
type toHost struct {
	ctx context.Context
	*session
}

// Write implements io.Writer. p must be one line.
func (t toHost) Write(line []byte) (int, error) { return len(line), t.put(t.ctx, line) }

// Close implements io.Closer.
func (t toHost) Close() error {
	t.end()
	return nil
}

// statusOf returns the HTTP status for an answer: 200, or that of its error.
func statusOf(answer []byte) int {
	var line protocol.Line
	if line.Scan(answer) != nil || protocol.Type(line.Type) != protocol.TypeError {
		return http.StatusOK
	}
	text := protocol.ErrorCode(line.Object().Text("code"))
	switch {
	case text == protocol.CodeUnauthorized:
		return http.StatusUnauthorized
	case text.Retryable():
		return http.StatusServiceUnavailable
	}
	return http.StatusBadRequest
}
