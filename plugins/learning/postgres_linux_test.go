package learning

import (
	"testing"

	"a2e/host/hosttest/stores"
)

func TestOnPostgres(t *testing.T) {
	stores.OnPostgres(t, "^Test(Experiences|CallsOf|OldAndFaint|WhatFeedback|Scores|FeedbackAgain|Correlations|HostsCount|Rollback|OneOfMany|ExportAndImport|Merge|Clear|Trials|FromPlan|PPO|WeightsOf|TwoPlugins|StoreOfAn)")
}
