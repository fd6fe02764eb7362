package cli_test

import (
	"path/filepath"
	"testing"

	"a2e/host/hosttest"
	"a2e/host/hosttest/stores"
)

// TestOnPostgres: what the binary keeps, it keeps on a server as in a file.
func TestOnPostgres(t *testing.T) {
	t.Setenv(hosttest.Built, filepath.Dir(hosttest.Program(t, "a2e")))
	stores.OnPostgres(t, "^Test(FourHosts|HostsSee|StepsOutlive|PlanByHand|PlanBoard|LearnStats|LearnFrom|LearnExportOfR|StateMoves|StateImportThat|ChainRun$|ChainJournal|DispatchIsKilled|DispatchResumes|RestoredSession|LookingLeaves|GoldenRPC|GoldenFleet|EnvByHand|MemoryAdd|MemoryForget|MemoryTells|MemoryList)")
}
