package proc

import (
	"context"
	"time"

	"a2e/host"
	"a2e/protocol"
)

// status tells how one process does, or all of the session.
func (p *Plugin) status(ctx context.Context, req *protocol.ProcStatusRequest, _ host.Emitter) (*protocol.ProcStatusResponse, error) {
	sess := host.SessionFrom(ctx)
	if req.ProcID != "" {
		r, err := p.procs.find(sess, req.ProcID)
		if err != nil {
			return &protocol.ProcStatusResponse{
				ProcID: req.ProcID, Status: protocol.ProcNotFound, Error: "this session has no such process, or it ended long ago",
			}, nil
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		return &protocol.ProcStatusResponse{ProcID: r.id, Status: r.state, Error: r.failure}, nil
	}
	resp := &protocol.ProcStatusResponse{Status: protocol.ProcCompleted, Procs: []protocol.ProcInfo{}}
	for _, r := range p.procs.list(sess) {
		info := r.info()
		if info.State == protocol.ProcRunning {
			resp.Status = protocol.ProcRunning
		}
		resp.Procs = append(resp.Procs, info)
	}
	return resp, nil
}

// MergeStatus adds what a second plugin answers to what the first one did: a
// process is known to one of them. Every plugin that answers proc/status/req gives it
// to host.List.
func MergeStatus(dst, src *protocol.ProcStatusResponse) {
	switch {
	case dst.ProcID != "":
		if dst.Status == protocol.ProcNotFound {
			*dst = *src
		}
		return
	case src.Status == protocol.ProcRunning:
		dst.Status = protocol.ProcRunning
	}
	dst.Procs = append(dst.Procs, src.Procs...)
}

// info is a line of the list of processes.
func (r *process) info() protocol.ProcInfo {
	r.mu.Lock()
	defer r.mu.Unlock()
	info := protocol.ProcInfo{ProcID: r.id, Cmd: r.cmd, State: r.state, PID: r.pid, StartedAt: unixSeconds(r.started)}
	if r.state != protocol.ProcRunning {
		info.ExitCode = new(r.code)
	}
	return info
}

// unixSeconds is a time as messages carry it.
func unixSeconds(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }
