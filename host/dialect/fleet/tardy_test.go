package fleet_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"a2e/host"
	front "a2e/host/dialect/fleet"
	"a2e/host/hosttest"
	"a2e/protocol"
)

// tardy is a plugin that learns some time after its start what it serves.
type tardy struct {
	*kit
	wait  time.Duration
	knows atomic.Bool
}

func (p *tardy) Info() host.PluginInfo {
	info := host.PluginInfo{Name: "tardy"}
	if p.knows.Load() {
		info.Capability = protocol.CapMemory
	}
	return info
}

func (p *tardy) Start(context.Context, *host.Services) error {
	time.AfterFunc(p.wait, func() { p.knows.Store(true) })
	return nil
}

func (p *tardy) Ready(ctx context.Context) {
	for !p.knows.Load() && ctx.Err() == nil {
		time.Sleep(100 * time.Millisecond)
	}
}

// TestTardyPlugins: the first task waits for plugins that are not ready. What one serves
// that takes longer yet is there for later tasks.
func TestTardyPlugins(t *testing.T) {
	for _, c := range []struct {
		wait          time.Duration
		first, second string
	}{{7 * time.Second, "done", "done"}, {30 * time.Second, "blocked", "done"}} {
		synctest.Test(t, func(t *testing.T) {
			late := &tardy{kit: newKit(), wait: c.wait}
			p := hosttest.New(t, host.Options{Plugins: []host.Plugin{&pool{}, late}, Dialects: []host.Dialect{front.New(front.Options{Log: zerolog.Nop()})}})
			for _, task := range [][2]string{{"first", c.first}, {"second", c.second}} {
				p.SendRaw(needing(task[0], `{"required_capabilities":["memory"]}`, "") + "\n")
				if m := result(p, task[0]); m.Get("/status") != task[1] {
					t.Errorf("%s after %s: %s", task[0], c.wait, m.Line)
				}
				time.Sleep(30 * time.Second)
				if a := announces(p)[0]; !strings.Contains(a.Get("/capabilities/tools"), "lift") {
					t.Errorf("the announce came too early: %s", a.Line)
				}
			}
		})
	}
}
