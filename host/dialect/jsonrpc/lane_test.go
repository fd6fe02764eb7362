package jsonrpc

import (
	"testing"

	"a2e/protocol/jsonrpc"
)

// TestNext: which request begins, where another waits ahead of it and where none does. What
// needs the handshake does not overtake it.
func TestNext(t *testing.T) {
	send, ping, status := &call{method: jsonrpc.SessionSend, number: 2}, &call{method: jsonrpc.Ping, number: 3}, &call{method: jsonrpc.AuthStatus, number: 1}
	for name, c := range map[string]struct {
		admitted, others bool
		free             *call
		want             *call
	}{
		"the older":               {admitted: true, free: ping, want: send},
		"the older, free":         {admitted: true, free: status, want: status},
		"free, as others wait":    {admitted: true, others: true, free: ping, want: ping},
		"behind the handshake":    {others: true, free: status},
		"a ping before it":        {others: true, free: ping, want: ping},
		"nothing, as others wait": {admitted: true, others: true},
	} {
		t.Run(name, func(t *testing.T) {
			f := &Front{admitted: c.admitted, incoming: []*call{send}}
			if c.free != nil {
				f.overtakes = []*call{c.free}
			}
			if got, over := f.next(c.others); got != c.want || over {
				t.Errorf("%v, over %v", got, over)
			}
		})
	}
}
