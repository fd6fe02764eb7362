package tools

import (
	"context"
	"time"

	"a2e/host"
)

// settings gives what components were set to; it is nil where no plugin keeps that.
func settings(ctx context.Context) host.ComponentSettings {
	s, _ := host.Find[host.ComponentSettings](ctx)
	return s
}

// as gives the tool with what it was set to, for a list.
func (t *entry) as(s host.ComponentSettings) *entry {
	if s == nil {
		return t
	}
	deferred, ok := s.Setting(host.KindTool, t.Def.Name, host.SettingDeferred).(bool)
	if !ok || deferred == t.Def.DeferLoading {
		return t
	}
	set := *t
	set.Def.DeferLoading = deferred
	return &set
}

// limit is how long a call of the tool may take, 0 = as the request says. What it was
// set to is only asked for where a call waits on something outside the process, as
// others end long before any limit that can be set.
func (t *entry) limit(ctx context.Context) time.Duration {
	if t.quick {
		return t.Timeout
	}
	if s := settings(ctx); s != nil {
		if v, ok := s.Setting(host.KindTool, t.Def.Name, host.SettingTimeout).(float64); ok {
			return seconds(v)
		}
	}
	return t.Timeout
}
