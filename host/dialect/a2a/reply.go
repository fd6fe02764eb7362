package a2a

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/google/uuid"

	"a2e/protocol"
)

const (
	replyTimeout = 30 * time.Second // of one attempt
	replyTries   = 8
)

// reply posts the result of a task to the orchestrator, because it came later than the client has waited.
func (a *Agent) reply(t *task) {
	t.mu.Lock()
	text := resultText(t.result)
	t.mu.Unlock()
	said := object{
		"role": "agent", "parts": []any{object{"text": text}}, "messageId": uuid.NewString(), "contextId": t.context,
		"taskId": t.id,
	}
	body, err := protocol.AppendJSON(nil, object{
		"jsonrpc": "2.0", "id": uuid.NewString(), "method": "SendMessage", "params": object{"message": said},
	})
	if err == nil {
		_, err = backoff.Retry(a.ctx, func() (struct{}, error) { return struct{}{}, a.post(body) },
			backoff.WithMaxTries(replyTries))
	}
	if err != nil {
		a.opts.Log.Warn().Err(err).Str("task_id", t.id).Msg("a result could not be posted to fleet.reply_url; " +
			"GetTask has it")
	}
}

var replies = &http.Client{Timeout: replyTimeout, CheckRedirect: func(*http.Request, []*http.Request) error {
	return errors.New("it redirects; set reply_url to where that leads")
}}

// post makes one attempt.
func (a *Agent) post(body []byte) error {
	ctx, cancel := context.WithTimeout(a.ctx, replyTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.opts.ReplyURL, bytes.NewReader(body))
	if err != nil {
		return backoff.Permanent(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if a.opts.ReplyKey != "" {
		req.Header.Set("Authorization", "Bearer "+a.opts.ReplyKey)
	}
	resp, err := replies.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode < 300:
		return nil
	case resp.StatusCode >= 500 || resp.StatusCode == http.StatusTooManyRequests:
		return fmt.Errorf("it answers %s", resp.Status)
	}
	return backoff.Permanent(fmt.Errorf("it answers %s", resp.Status))
}
