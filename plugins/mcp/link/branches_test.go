package link

import (
	"strings"
	"testing"
)

// A message of 16 MiB may not become one of gigabytes: `{},` is one thousand bytes of Go.
func TestMessagesOfTooManyParts(t *testing.T) {
	result := func(v string) []byte { return []byte(`{"jsonrpc":"2.0","id":1,"result":` + v + `}`) }
	for name, tc := range map[string]struct {
		text []byte
		ok   bool
	}{
		"objects":           {result("[" + strings.Repeat("{},", maxBranches) + "{}]"), false},
		"arrays":            {result("[" + strings.Repeat("[],", maxBranches) + "[]]"), false},
		"as many as may be": {result("[" + strings.Repeat("[],", maxBranches-3) + "1]"), true},
		"a text":            {result(`"` + strings.Repeat(`{[\"`, maxBranches) + `"`), true},
		"numbers":           {result("[" + strings.Repeat("1,", maxBranches) + "1]"), true},
	} {
		if _, err := decode(tc.text); (err == nil) != tc.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}
