package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"a2e/host"
)

// Shares of the room that a model has for a conversation.
const (
	compactFrom = 2 // one half: then the older part is summarised
	keptShare   = 8 // an eighth: what stays as it was said, the newest messages
	summaryMost = 8 // an eighth: of the summary
)

// SummaryHeading begins the message that stands for what was said before.
const SummaryHeading = "[Summary of the conversation before this]"

const compactPrompt = "You sum up a conversation between a user and an assistant, for the assistant to go on with " +
	"in place of the " +
	"conversation itself. Keep every fact, name, number, decision, wish and open question that may matter later, " +
	"also those of a summary " +
	"at its begin; leave out greetings and what was taken back. Write plain text, and nothing but the summary."

// Compact shortens a conversation that takes half of the room that a model with a window (tokens; 0 = not known) has
// for it: the model itself sums up the older part, and the newest messages stay. It returns the conversation itself
// where that is short enough. used is what the summary took.
func Compact(ctx context.Context, model Model, name string, said []host.Said, window int) (shorter []host.Said,
	used Tokens, err error) {
	room := maxContext
	if window > 0 {
		room = min(room, window*windowBytes)
	}
	size := 0
	for _, m := range said {
		size += len(m.Text)
	}
	if size <= room/compactFrom || len(said) < 2 {
		return said, used, nil
	}
	from := anchor(said, room/keptShare)
	var older strings.Builder
	for _, m := range said[:from] {
		fmt.Fprintf(&older, "%s: %s\n\n", m.Role, head(m.Text, room/summaryMost))
	}
	prompt := head(older.String(), room-room/summaryMost)
	reply, err := model.Complete(ctx, Request{System: compactPrompt,
		Messages: []Message{{Role: RoleUser, Text: prompt}}, Model: name})
	if err != nil {
		return said, used, err
	}
	text := strings.TrimSpace(strings.ToValidUTF8(reply.Text, "\uFFFD"))
	if text == "" || reply.Refused {
		return said, reply.Tokens, errors.New("the model gave no summary")
	}
	summary := host.Said{Role: string(RoleUser), Text: SummaryHeading + "\n" + head(text, room/summaryMost)}
	return append([]host.Said{summary}, said[from:]...), reply.Tokens, nil
}

// anchor returns where the newest messages begin that stay: some of the user and what followed, of size bytes at most.
func anchor(said []host.Said, size int) int {
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
