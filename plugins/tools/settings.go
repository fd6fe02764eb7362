package tools

import (
	"time"

	"a2e/host"
)

// as gives the tool with what it was set to, for a list.
func (t *entry) as(s *host.Services) *entry {
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
func (t *entry) limit(s *host.Services) time.Duration {
	if t.quick {
		return t.Timeout
	}
	if v, ok := s.Setting(host.KindTool, t.Def.Name, host.SettingTimeout).(float64); ok {
		return seconds(v)
	}
	return t.Timeout
}
