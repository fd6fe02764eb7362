package jsonrpc_test

import (
	"testing"

	"a2e/host/hosttest/stores"
)

func TestOnPostgres(t *testing.T) {
	stores.OnPostgres(t, "^Test(TwoHosts|Folders|Pages|Restart|Lists|Turn)$")
}
