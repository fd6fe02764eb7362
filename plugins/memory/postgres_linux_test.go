package memory

import (
	"testing"

	"a2e/host/hosttest/stores"
)

func TestOnPostgres(t *testing.T) { stores.OnPostgres(t, "^Test[A-Z]") }
