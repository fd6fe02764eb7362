package fleet_test

import (
	"testing"

	"a2e/host/hosttest/stores"
)

func TestOnPostgres(t *testing.T) { stores.OnPostgres(t, "^Test(Results.*|SentAgain|Again)$") }
