package env

import (
	"testing"

	"a2e/host/hosttest/stores"
)

func TestOnPostgres(t *testing.T) {
	stores.OnPostgres(t, "^Test(Episodes|Ended|Others|AHost|ExperiencesOf|Stored|Idle|Saved|AStore|Export|Broken|Several|Concurrent|Autoreset)")
}
