package fleet_test

import (
	"testing"

	"a2e/protocol/fleet"
)

// A deadline is a time as RFC 3339 has it, whose letters may be small.
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
		if got := at.UTC().String(); (err != nil) != (want == "") || ok != (want != "") || ok && got != want {
			t.Errorf("%s is %s, %t, %v", text, got, ok, err)
		}
	}
}
