package mcp

import (
	"testing"

	"a2e/host/hosttest/stores"
)

func TestOnPostgres(t *testing.T) { stores.OnPostgres(t, "^Test(Pins|Part|TwoPlugins)$") }
