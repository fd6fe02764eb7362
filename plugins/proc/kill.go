package proc

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"time"

	"a2e/host"
	"a2e/protocol"
)

// killWait bounds how long the answer to a SIGKILL waits for the end that it
// brings about.
const killWait = 2 * time.Second

// kill sends a signal to a whole process tree.
func (p *Plugin) kill(ctx context.Context, req *protocol.ProcKillRequest, _ host.Emitter) (*protocol.ProcKillResponse, error) {
	r, err := p.procs.find(host.SessionFrom(ctx), req.ProcID)
	if err != nil {
		return nil, err
	}
	sig, err := parseSignal(req.Signal)
	if err != nil {
		return nil, err
	}
	sent := r.signal(sig)
	if sig == syscall.SIGKILL || !sent {
		r.awaitEnd(ctx)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return &protocol.ProcKillResponse{OK: sent, State: r.state}, nil
}

// signal sends a signal, unless the process is over.
func (r *process) signal(sig syscall.Signal) (sent bool) {
	l, err := r.running()
	if err != nil {
		return false
	}
	if sig == syscall.SIGKILL {
		r.stop(errKilled)
		return true
	}
	r.mu.Lock()
	before := r.asked[sig]
	r.asked[sig] = true
	r.mu.Unlock()
	if l.child.Signal(sig) == nil {
		return true
	}
	r.mu.Lock()
	r.asked[sig] = before
	r.mu.Unlock()
	return false
}

// awaitEnd waits a moment for the end of a process that was killed, or could not
// be signalled because it is just ending.
func (r *process) awaitEnd(ctx context.Context) {
	select {
	case <-r.done:
		return
	default:
	}
	host.Detach(ctx)
	clock := time.NewTimer(killWait)
	defer clock.Stop()
	select {
	case <-r.done:
	case <-clock.C:
	case <-ctx.Done():
	}
}

// parseSignal reads the name of a signal, with or without SIG, in any case.
func parseSignal(text string) (syscall.Signal, error) {
	name := strings.ToUpper(text)
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	if sig, ok := signals()[name]; ok {
		return sig, nil
	}
	return 0, protocol.Violation(protocol.FieldError{
		Path: "/signal", Message: fmt.Sprintf("is %.32q; should be one of: %s", text, strings.Join(slices.Sorted(maps.Keys(signals())), ", ")),
	})
}

// signalName gives the name of a signal, of which some are only ever received.
func signalName(sig syscall.Signal) string {
	for name, s := range signals() {
		if s == sig {
			return name
		}
	}
	return fmt.Sprintf("signal %d (%s)", int(sig), sig)
}
