package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
)

// Shares of a model's window, in percent.
const (
	limitShare   = 75 // of all that is sent: from there on the older part of a conversation is summarised
	keptShare    = 12 // of the newest messages, which stay as they are
	summaryShare = 12 // of the summary
	targetShare  = keptShare + summaryShare
	chunkShare   = 50 // of the messages that one request summarises
	roomShare    = 75 // of what a run sends: beyond that its oldest results are left out
)

// usualWindow is the window that is assumed for a model if none is known, in tokens.
const usualWindow = 256 << 10

// SummaryHeading begins the message that replaces the earlier messages.
const SummaryHeading = "[Summary of the conversation before this]"

const compactPrompt = "You sum up a conversation between a user and an assistant, for the assistant to go on with " +
	"in place of the conversation itself. Keep every fact, name, number, decision, wish and open question that may " +
	"matter later, also those of a summary at its beginning; leave out greetings and what was taken back. Write " +
	"plain text, and nothing but the summary."

// Meter learns how many tokens a model counts for a byte, from what its endpoint reports. The zero value is ready, and
// a nil one learns nothing.
type Meter struct {
	mu    sync.Mutex
	ratio float64 // tokens for each byte; 0 = nothing was reported yet
}

// The ratios that are believed of an endpoint, in tokens per byte, and what each message takes beside its text, in
// tokens.
const (
	leastRatio       = 1. / 16
	mostRatio        = 2
	perMessage       = 4
	learnFrom        = 400 // bytes: shorter requests say little
	imageTokens      = 1000
	usualRatio       = 1. / bytesPerToken
	requestsOverhead = 3
)

func (m *Meter) rate() float64 {
	if m == nil {
		return usualRatio
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ratio == 0 {
		return usualRatio
	}
	return m.ratio
}

func (m *Meter) tokens(bytes int) int { return int(float64(bytes)*m.rate() + 0.5) }

func (m *Meter) bytes(tokens int) int { return int(float64(tokens) / m.rate()) }

// learn notes that a request took tokens; bytes is the size of its texts, messages is how many it had. Short
// requests and unlikely ratios are ignored.
func (m *Meter) learn(bytes, messages, tokens int) {
	rate := float64(tokens-messages*perMessage-requestsOverhead) / float64(max(bytes, 1))
	if m == nil || bytes < learnFrom || rate < leastRatio || rate > mostRatio {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ratio = rate
}

// Use estimates how much of its model's window the first request of a run takes.
func (t *Turns) Use() ContextUse {
	u := ContextUse{Window: t.Window, Pinned: t.Meter.tokens(len(t.System))}
	for _, tool := range toolsOf(t) {
		u.Tools += t.Meter.tokens(tool.size())
	}
	size, images := len(t.Prompt), len(t.Images)
	for _, m := range t.Earlier {
		size += len(m.Text)
		images += len(m.Images)
	}
	u.Conversation = t.Meter.tokens(size) + images*imageTokens
	u.Overhead = requestsOverhead + perMessage*(len(t.Earlier)+2) // with the system prompt and the prompt
	window := t.window()
	u.Limit, u.Target = window*limitShare/100, window*targetShare/100
	return u
}

func (t *Turns) window() int {
	if t.Window > 0 {
		return t.Window
	}
	return usualWindow
}

// Summary replaces the beginning of a conversation.
type Summary struct {
	Text   string // with SummaryHeading
	Of     int    // how many messages it replaces
	Tokens Tokens // that it took
}

// Said returns the message that replaces the summarised ones.
func (s *Summary) Said() Said { return Said{Role: string(RoleUser), Text: s.Text} }

// Summarise lets the model summarise all earlier messages of the run but the newest. It does so piece by piece if
// they take more than half of the window. The error is that of the model, the cause of ctx, or says why there is no
// summary.
func (t *Turns) Summarise(ctx context.Context) (s Summary, err error) {
	window := t.window()
	s.Of = anchor(t.Earlier, t.Meter.bytes(window*keptShare/100))
	most, text := t.Meter.bytes(window*summaryShare/100), ""
	for rest := t.Earlier[:s.Of]; len(rest) > 0; {
		var prompt strings.Builder
		if text != "" {
			fmt.Fprintf(&prompt, "%s: %s\n%s\n\n", RoleUser, SummaryHeading, text)
		}
		room, n := t.Meter.bytes(window*chunkShare/100), 0
		for ; n < len(rest) && (n == 0 || prompt.Len()+len(rest[n].Text) < room); n++ {
			fmt.Fprintf(&prompt, "%s: %s\n\n", rest[n].Role, head(rest[n].Text, most))
			for _, i := range rest[n].Images {
				fmt.Fprintf(&prompt, "(with the image %s)\n\n", i.Name)
			}
		}
		rest = rest[n:]
		reply, err := t.Model.Complete(ctx, Request{
			System: compactPrompt, Model: t.Name,
			Messages: []Message{{Role: RoleUser, Text: prompt.String()}},
		})
		if err != nil {
			return s, err
		}
		s.Tokens = s.Tokens.add(reply.Tokens)
		text = head(strings.TrimSpace(strings.ToValidUTF8(reply.Text, "\uFFFD")), most)
		if text == "" || reply.Refused {
			return s, errors.New("the model gave no summary")
		}
	}
	if s.Of == 0 {
		return s, errors.New("there is nothing to sum up")
	}
	s.Text = SummaryHeading + "\n" + text
	return s, nil
}

// anchor returns the index of the first message that stays. It is a message of the user; it and all later ones have
// at most size bytes.
func anchor(said []Said, size int) int {
	from := len(said)
	for i := len(said) - 1; i > 0; i-- {
		if size -= len(said[i].Text); size < 0 {
			break
		}
		if said[i].Role == string(RoleUser) {
			from = i
		}
	}
	return from
}
