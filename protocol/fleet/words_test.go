package fleet_test

import (
	"slices"
	"strings"
	"testing"

	"a2e/host/hosttest/assert"
	"a2e/protocol/fleet"
)

// TestServes: a word of the protocol is served by tools of its meaning, or by a tool of the same name.
func TestServes(t *testing.T) {
	for has, want := range map[string]string{
		"":                                  "",
		"run_command":                       "terminal",
		"proc memory":                       "terminal memory",
		"read_file grep":                    "search",
		"read_file write_file edit_file":    "file patch",
		"http_get terminal file patch grep": "terminal file patch browser search",
	} {
		names := strings.Fields(has)
		var got []string
		for _, word := range fleet.Words() {
			if fleet.Serves(func(name string) bool { return slices.Contains(names, name) }, word) {
				got = append(got, word)
			}
		}
		assert.Equal(t, strings.Join(got, " "), want, "%q serves %q", has, got)
	}
}

// TestDeadlineTime: a deadline is a time in RFC 3339, which allows small letters.
func TestDeadlineTime(t *testing.T) {
	for text, want := range map[string]string{
		"2030-01-02T03:04:05Z":        "2030-01-02 03:04:05 +0000 UTC",
		"2030-01-02t03:04:05.5z":      "2030-01-02 03:04:05.5 +0000 UTC",
		"2030-01-02T03:04:05.5-14:00": "2030-01-02 17:04:05.5 +0000 UTC",
		"2030-01-02T03:04:05":         "",
		"2030-02-30T03:04:05Z":        "",
		"2030-01-02":                  "",
	} {
		d := fleet.Dispatch{Deadline: text}
		at, ok, err := d.DeadlineTime()
		got := at.UTC().String()
		assert.That(t, (err != nil) == (want == "") && ok == (want != "") && (!ok || got == want), "%s is %s, %t, %v",
			text, got, ok, err)
	}
}
