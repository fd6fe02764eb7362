package memory

import (
	"testing"

	"a2e/host/hosttest/stores"
)

// TestOnPostgres leaves out what is the same with either store: options, endpoints, the search among vectors.
func TestOnPostgres(t *testing.T) {
	stores.OnPostgres(t, "^Test([B-MO-QS-U]|Any|Against|Namespaces|Reads|Reembed|Refresh|Retrieval|V)")
}
