package learning

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"a2e/host"
	"a2e/host/state/store"
	"a2e/protocol"
)

// refinementStrategy is the strategy of a weight that a refinement set, and rollbackStrategy the strategy
// in the history of a weight that was rolled back.
const (
	refinementStrategy = "refinement"
	rollbackStrategy   = "rollback"
)

// The targets of edits.
const (
	targetWeight  = "weight"
	targetSetting = "setting"
	targetText    = "text"
)

// The settings of tools; host.Override says what they do.
const (
	settingTimeout  = "timeout" // seconds
	settingDeferred = "deferred"
)

// The bounds of settingTimeout.
const (
	minTimeout = 0.1
	maxTimeout = 3600.0
)

// examined is an edit that is compared with the store.
type examined struct {
	*edit
	record *Component     // nil = the edit was refused before
	now    jsontext.Value // the value of the target; null = never set
	before *setting       // the row of the target; nil = there is none
	number float64        // of a weight: its value, 1 if none is set
}

// examine compares a proposal with the store. reasons has one text for each refused edit, with everything
// that is wrong with it.
func examine(tx *store.Tx, pr *proposal) (edits []*examined, reasons []string, err error) {
	first := make(map[target]int)
	for i, e := range pr.Edits {
		x := &examined{edit: e}
		if e.wrong == nil {
			if err := x.look(tx); err != nil {
				return nil, nil, err
			}
			if at, twice := first[e.target]; twice && e.wrong == nil {
				e.refuse("edit %d changes the %s as well; a target may appear once", at, e.target)
			}
			first[e.target] = i + 1
		}
		if e.wrong != nil {
			reasons = append(reasons, fmt.Sprintf("edit %d: %s", i+1, strings.Join(e.wrong, "; ")))
		}
		edits = append(edits, x)
	}
	if len(edits) == 0 {
		reasons = append(reasons, "the proposal has no edits; `edits` should list what to change")
	}
	return edits, reasons, nil
}

// look finds the component and compares the edit's values with the stored ones.
func (x *examined) look(tx *store.Tx) error {
	if err := x.findComponent(tx); err != nil || x.record == nil {
		return err
	}
	if err := x.readNow(tx); err != nil {
		return err
	}
	if err := x.checkTo(); err != nil {
		x.refuse("%s", err)
		return nil
	}
	if x.From != nil && !x.is(x.From) {
		x.refuse("the %s is %s, not %s as `from` says; it was changed since, so plan again", x.target,
			protocol.Clip(x.now, maxShown), protocol.Clip(x.From, maxShown))
	} else if x.is(x.To) {
		x.refuse("the %s is %s already", x.target, protocol.Clip(x.now, maxShown))
	}
	return nil
}

// findComponent finds the component's record, and the kind if the edit has none.
func (x *examined) findComponent(tx *store.Tx) error {
	all, err := components(tx, x.Component)
	if err != nil {
		return err
	}
	var kinds []string
	for _, c := range all {
		kinds = append(kinds, c.Kind)
		if c.Kind == x.Kind || x.Kind == "" && len(all) == 1 {
			x.record, x.Kind = c, c.Kind
			return nil
		}
	}
	switch {
	case x.original != nil: // a component that was never called may still get a better text
		x.record = &Component{Kind: x.Kind, Name: x.Component}
	case len(all) == 0:
		x.refuse("nothing was recorded of a component %.128q; learn/stats/req lists those there are", x.Component)
	case x.Kind == "":
		x.refuse("there are several components %.128q; name one by `kind`: %s", x.Component, strings.Join(kinds, ", "))
	default:
		x.refuse("nothing was recorded of a %.64s %.128q, but of one of the kind %s", x.Kind, x.Component,
			strings.Join(kinds, ", "))
	}
	return nil
}

// readNow reads the current value of the target.
func (x *examined) readNow(tx *store.Tx) (err error) {
	x.before, err = x.read(tx)
	x.now, x.number = x.valueIn(x.before), x.before.weight()
	if v := x.textIn(x.before); x.original != nil && (v == nil || v.Original != *x.original) {
		x.now = protocol.AppendString(nil, *x.original) // the component's own text is in effect
	}
	return err
}

// change writes the row of a target, with its history.
func (t target) change(tx *store.Tx, row *setting, at int64, why string) error {
	err := t.write(tx, row)
	if err == nil && t.Target == targetWeight {
		err = addHistory(tx, at, t.Kind, t.Component, row.weight(), nil, why)
	}
	return err
}

// checkTo returns an error if the target cannot have the new value.
func (x *examined) checkTo() error {
	switch {
	case x.To.Kind() == 'n' && x.Target != targetSetting:
		return nil
	case x.To.Kind() == 'n':
		return x.knowsSetting()
	case x.Target == targetSetting:
		return x.set(new(host.Override), x.To)
	case x.Target == targetText && x.To.Kind() != '"':
		return fmt.Errorf("%.64s is not a text; it is a string, or null for the %s's own", x.To, x.Kind)
	case x.Target == targetText: // readTexts has checked it
		return nil
	}
	w, err := number(x.To)
	if err != nil {
		return err
	}
	return checkWeight(w)
}

// number reads a JSON number.
func number(raw jsontext.Value) (v float64, err error) {
	if raw.Kind() != '0' || json.Unmarshal(raw, &v) != nil {
		return 0, fmt.Errorf("%.64s is not a weight; it is a number, 1 being neutral, or null for that", raw)
	}
	return v, nil
}

// is reports whether the target has this value. A weight that was never set is 1.
func (x *examined) is(raw jsontext.Value) bool {
	if x.Target == targetWeight && raw.Kind() == '0' {
		v, err := number(raw)
		return err == nil && math.Abs(v-x.number) <= 1e-9*max(1, x.number)
	}
	if raw.Kind() == 'n' {
		return x.before == nil
	}
	return bytes.Equal(canonical(raw), canonical(x.now))
}

// maxShown bounds a value that a reason shows, in bytes.
const maxShown = 200

// canonical returns the one spelling that all equal values have.
func canonical(raw jsontext.Value) jsontext.Value {
	raw = raw.Clone()
	_ = raw.Canonicalize() // text that is not JSON stays as it is
	return raw
}

// toNumber returns the weight that an edit asks for.
func (x *examined) toNumber() float64 {
	if x.To.Kind() == 'n' {
		return neutralWeight
	}
	v, _ := number(x.To) // checkTo has checked it
	return v
}

// after returns the row that the edit makes; nil = none.
func (x *examined) after(at int64) (*setting, error) {
	switch {
	case x.To.Kind() == 'n':
		return nil, nil
	case x.Target == targetWeight:
		return &setting{Weight: new(x.toNumber()), Strategy: refinementStrategy, UpdatedAt: at}, nil
	case x.Target == targetText:
		text, _ := protocol.Value(x.To).Str() // readTexts has checked it
		value, err := json.Marshal(&textValue{Original: *x.original, Text: text})
		return &setting{Value: value, UpdatedAt: at}, err
	}
	return &setting{Value: x.To, UpdatedAt: at}, nil
}

// knowsSetting returns an error if there is no such setting.
func (t target) knowsSetting() error {
	if t.Kind != host.KindTool {
		return fmt.Errorf("a component of the kind %.64q has no settings; a %s has", t.Kind, host.KindTool)
	}
	if t.Name != settingTimeout && t.Name != settingDeferred {
		return fmt.Errorf("a %s has no setting %.64q; there are: %s, %s", t.Kind, t.Name, settingTimeout,
			settingDeferred)
	}
	return nil
}

// set sets the value of a setting or text, as stored in learning_settings, in an override. The error says
// which values are allowed.
func (t target) set(o *host.Override, raw jsontext.Value) error {
	if t.Target == targetText {
		v := new(textValue)
		if err := json.Unmarshal(raw, v, json.RejectUnknownMembers(true)); err != nil {
			return fmt.Errorf("the value is not a text with its original: %w", err)
		}
		if err := t.checkText(v.Text); err != nil {
			return err
		}
		if o.Texts == nil {
			o.Texts = make(map[string]host.Text)
		}
		o.Texts[t.Name] = v.override()
		return nil
	}
	if err := t.knowsSetting(); err != nil {
		return err
	}
	wants := "true or false"
	if t.Name == settingTimeout {
		if v, err := number(raw); err == nil && minTimeout <= v && v <= maxTimeout {
			o.Timeout = time.Duration(v * float64(time.Second))
			return nil
		}
		wants = fmt.Sprintf("a number of seconds from %v to %v", minTimeout, maxTimeout)
	} else if kind := raw.Kind(); kind == 't' || kind == 'f' {
		o.Deferred = new(kind == 't')
		return nil
	}
	return fmt.Errorf("%.64s is not a value of the setting %s; it takes %s, or null for the %s's own", raw, t.Name,
		wants, t.Kind)
}

// maxWeight bounds weights from proposals, imports and custom_command; 1 is neutral.
const maxWeight = 1_000_000

// checkWeight returns an error for a number that is not a valid weight.
func checkWeight(w float64) error {
	if !(w >= 0 && w <= maxWeight) {
		return fmt.Errorf("%g is not a weight; it is a number from 0 to %d, 1 being neutral", w, maxWeight)
	}
	return nil
}

// maxComponent bounds the name of a component, in bytes.
const maxComponent = 512

// String returns the target as reasons show it.
func (t target) String() string {
	if t.Target == targetWeight {
		return fmt.Sprintf("weight of the %s %.128q", t.Kind, t.Component)
	}
	if t.Target == targetText {
		return fmt.Sprintf("%s of the %s %.128q", t.Name, t.Kind, t.Component)
	}
	return fmt.Sprintf("setting %s of the %s %.128q", t.Name, t.Kind, t.Component)
}
