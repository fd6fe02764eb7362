package store

import "context"

// Opener gives a store when it is first needed: to open one takes longer than a start may.
// What kept it from opening may be gone at the next call.
type Opener func(context.Context) (Store, error)

// Read is Store.Read on the store that o gives.
func (o Opener) Read(ctx context.Context, fn func(*Tx) error) error {
	s, err := o(ctx)
	if err != nil {
		return err
	}
	return s.Read(ctx, fn)
}

// Write is Store.Write on the store that o gives.
func (o Opener) Write(ctx context.Context, fn func(*Tx) error) error {
	s, err := o(ctx)
	if err != nil {
		return err
	}
	return s.Write(ctx, fn)
}
