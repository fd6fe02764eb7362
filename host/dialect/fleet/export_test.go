package fleet

import "time"

// Hurry has a Front wait less.
func (f *Front) Hurry(late, connect, watch time.Duration) { f.pace = pace{late, connect, watch} }

// HurryGit has a Front wait less for git.
func (f *Front) HurryGit(patience time.Duration) { f.repo.patience = patience }

// HurryStore has a Front wait less for the store.
func (f *Front) HurryStore(patience time.Duration) { f.results.patience = patience }
