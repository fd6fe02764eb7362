package memory

import (
	"context"

	"a2e/host/store"
	"a2e/plugins/memory/embed"
)

// Stored gives the model that made the vectors of a store; no name = there are none
// yet. The error is that the model a host is set to does not go with it.
func Stored(ctx context.Context, s store.Store, set embed.Model) (there embed.Model, err error) {
	err = s.Read(ctx, func(tx *store.Tx) error {
		if there, err = modelOf(tx); err != nil {
			return err
		}
		return sameModel(there, set)
	})
	return there, err
}
