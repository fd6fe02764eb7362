package learning

import (
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/store"
)

// What an edit can change.
const (
	targetWeight  = "weight"
	targetSetting = "setting"
)

// settingRule is a setting that there is. Only what some plugin follows is in the list.
type settingRule struct {
	kind, name string
	wants      string // in the words of a refusal
	read       func(jsontext.Value) (any, bool)
}

// settingRules are all of them: see the constants of package host for what they do.
func settingRules() []settingRule {
	return []settingRule{
		{host.KindTool, host.SettingTimeout, "a number of seconds from 0.1 to 3600", readBetween(0.1, 3600)},
		{host.KindTool, host.SettingDeferred, "true or false", readBool},
	}
}

func readBool(raw jsontext.Value) (any, bool) {
	var v bool
	err := json.Unmarshal(raw, &v)
	return v, err == nil && raw.Kind() != 'n'
}

func readBetween(low, high float64) func(jsontext.Value) (any, bool) {
	return func(raw jsontext.Value) (any, bool) {
		var v float64
		err := json.Unmarshal(raw, &v)
		return v, err == nil && raw.Kind() == '0' && low <= v && v <= high
	}
}

// settingRule of a target; the error says which there are.
func findSettingRule(t target) (*settingRule, error) {
	var names []string
	for _, r := range settingRules() {
		if r.kind == t.Kind && r.name == t.Name {
			return &r, nil
		}
		if r.kind == t.Kind {
			names = append(names, r.name)
		}
	}
	if names == nil {
		return nil, fmt.Errorf("a component of the kind %.64q has no settings; a %s has", t.Kind, host.KindTool)
	}
	return nil, fmt.Errorf("a %s has no setting %.64q; there are: %s", t.Kind, t.Name, strings.Join(names, ", "))
}

// readSettingValue gives a setting's value as host.ComponentSettings does. The error says
// what would be right.
func readSettingValue(t target, raw jsontext.Value) (any, error) {
	r, err := findSettingRule(t)
	if err != nil {
		return nil, err
	}
	v, ok := r.read(raw)
	if !ok {
		return nil, fmt.Errorf("%.64s is no value of the setting %s; it takes %s, or null for the %s's own", raw, r.name, r.wants, r.kind)
	}
	return v, nil
}

func checkSetting(t target, raw jsontext.Value) error {
	_, err := readSettingValue(t, raw)
	return err
}

// maxWeight bounds weights that are not computed here: those of proposals and imports; 1 is neutral.
const maxWeight = 1_000_000

// checkWeight refuses what is no weight.
func checkWeight(w float64) error {
	if !(w >= 0 && w <= maxWeight) {
		return fmt.Errorf("%g is no weight; it is a number from 0 to %d, 1 being neutral", w, maxWeight)
	}
	return nil
}

// maxComponent is the length of a component's name, in bytes.
const maxComponent = 512

func nameFits(what, name string) error {
	if name == "" || len(name) > maxComponent {
		return fmt.Errorf("the %s's name has %d bytes; 1 to %d are allowed", what, len(name), maxComponent)
	}
	return nil
}

// String names the target as reasons do.
func (t target) String() string {
	if t.Target == targetWeight {
		return fmt.Sprintf("weight of the %s %.128q", t.Kind, t.Component)
	}
	return fmt.Sprintf("setting %s of the %s %.128q", t.Name, t.Kind, t.Component)
}

// eachSetting goes over all settings.
func eachSetting(tx *store.Tx, do func(target, *setting) error) error {
	return tx.Each("SELECT kind, component, name, value, updated_at FROM learning_settings ORDER BY kind, component, name", nil, func(scan func(...any) error) error {
		t, s := target{Target: targetSetting}, &setting{}
		var value string
		if err := scan(&t.Kind, &t.Component, &t.Name, &value, &s.UpdatedAt); err != nil {
			return err
		}
		s.Value = jsontext.Value(value)
		return do(t, s)
	})
}

// readSettings gives the values of all settings. One that this build does not know, as a
// newer one has set it, is left out.
func readSettings(tx *store.Tx) (map[target]any, error) {
	all := make(map[target]any)
	err := eachSetting(tx, func(t target, s *setting) error {
		if v, err := readSettingValue(t, s.Value); err == nil {
			all[t] = v
		}
		return nil
	})
	return all, err
}

var _ host.ComponentSettings = (*Plugin)(nil)

// Setting implements host.ComponentSettings. What other hosts change is seen within a second.
func (p *Plugin) Setting(kind, component, name string) any {
	return p.currentWeights().settings[target{targetSetting, kind, component, name}]
}
