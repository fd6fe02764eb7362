package snapshot

import (
	"testing"

	"a2e/host/hosttest/stores"
)

func TestOnPostgres(t *testing.T) {
	stores.OnPostgres(t, "^Test(RestoredState.*|Modes|BrokenSnapshot.*|BetweenEngines|SharedSessions|WhatIsSaved.*|Replace.*|SavesAtTheSameTime|Damaged.*)$")
}
