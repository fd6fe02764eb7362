package proc

import (
	"context"
	"fmt"

	"a2e/host"
	"a2e/protocol"
)

// write queues input for a process. It never waits for the process to read it.
func (p *Plugin) write(ctx context.Context, req *protocol.ProcWriteRequest, _ host.Emitter) (*protocol.ProcWriteResponse, error) {
	r, err := p.procs.find(host.SessionFrom(ctx), req.ProcID)
	if err != nil {
		return nil, err
	}
	if problems := checkSize(req.Metadata); problems != nil {
		return nil, protocol.Violation(problems...)
	}
	l, err := r.running()
	if err != nil {
		return nil, err
	}
	resp := &protocol.ProcWriteResponse{ProcID: r.id, PID: r.pid, Error: l.resize(req.Metadata)}
	if resp.Error == "" && (req.Data != "" || req.EOF) {
		resp.Error = l.write(req.Data, req.EOF)
	}
	resp.OK = resp.Error == ""
	return resp, nil
}

// resize gives the terminal another size, if one is asked for. It says in words
// why it does not.
func (l *live) resize(size protocol.ProcTerminal) string {
	if size.Cols == 0 && size.Rows == 0 {
		return ""
	}
	if l.tty == nil {
		return `the process has no terminal to resize; spawn it with metadata {"pty":true}`
	}
	if err := l.tty.resize(size); err != nil {
		return fmt.Sprintf("the terminal keeps its size: %v", err)
	}
	return ""
}

func (l *live) write(data string, eof bool) string {
	if l.input == nil {
		return `the process has no stdin: it was spawned with stdin_mode "null"`
	}
	return l.input.push(data, eof)
}
