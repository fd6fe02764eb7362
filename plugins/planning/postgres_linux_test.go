package planning

import (
	"testing"

	"a2e/host/hosttest/stores"
)

func TestOnPostgres(t *testing.T) {
	stores.OnPostgres(t, "^Test(EverythingSurvives|ExportAndImport|ImportKeepsOrder|Merge|CycleOverTwoHosts|Claim.*|Version|DoneAfterDeps|Delete|Filters|Folders|Update)$")
}
