package chains

import (
	"testing"

	"a2e/host/hosttest/stores"
)

func TestOnPostgres(t *testing.T) {
	stores.OnPostgres(t, "^Test(KilledChainsGoOn|JournalHasOneHost|LostJournal|JournalOfAnID|ResumeAfterFailure|Cache.*|WaitIsResumed)$")
}
