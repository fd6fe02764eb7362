package host

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strings"

	"a2e/host/schema"
	"a2e/protocol"
)

// maxNamed is how many known names the text of a refusal lists; its detail has all of them.
const maxNamed = 20

// notOwner is an error of a plugin that does not own what a request names.
type notOwner struct {
	refusal *protocol.Error
	resp    any      // the answer in place of the error; nil = the error
	name    string   // that the plugin does not know; "" = the error is about no name
	known   []string // the names that it knows; nil = it does not say
}

func (e notOwner) Error() string { return e.listing().Error() }
func (e notOwner) Unwrap() error { return e.listing() }

// NotOwner returns the error by which a plugin says, before any side effect, that it does not own the thing that
// the request names. The next plugin of the capability is asked then. If none owns it, the answer is the err that
// says the most, the first of these.
func NotOwner(err *protocol.Error) error { return notOwner{refusal: err} }

// NotKnown is NotOwner for a name that this plugin does not know. known has the names that it knows. The answer
// lists the names that all plugins know, also as the detail "known", and says which of them are similar to name.
func NotKnown(err *protocol.Error, name string, known []string) error {
	return notOwner{refusal: err, name: name, known: known}
}

// IsNotOwner reports whether an error comes from NotOwner, NotKnown or NotOwnerBut.
func IsNotOwner(err error) bool {
	var refused notOwner
	return errors.As(err, &refused)
}

// NotOwnerBut is NotOwner for a request whose response itself says that it was refused. resp is a pointer to that
// response, which is the answer when no plugin owns the thing.
func NotOwnerBut(resp any) error {
	return notOwner{refusal: protocol.Errorf(protocol.CodeRuntimeError, "refused"), resp: resp}
}

// unwrapNotOwner turns the refusal of a single plugin into its answer. Other errors stay as they are.
func unwrapNotOwner(err error) (any, error) {
	var refused notOwner
	if errors.As(err, &refused) {
		return mergeRefusals([]notOwner{refused})
	}
	return nil, err
}

// rank orders refusals; the lowest rank says the most. A plugin that cannot be asked now may own the thing, and a
// plugin that does not serve such things at all says nothing about it.
func (e notOwner) rank() int {
	switch {
	case e.refusal.Code == protocol.CodeInvalidMessage: // an unknown type
		return 3
	case e.refusal.Code == protocol.CodeCapabilityMissing:
		return 2
	case e.resp == nil && e.refusal.Retryable:
		return 0
	}
	return 1
}

// mergeRefusals returns the refusal of the lowest rank, the first one if there are several. It lists the names that
// all plugins know.
func mergeRefusals(refusals []notOwner) (any, error) {
	slices.SortStableFunc(refusals, func(a, b notOwner) int { return cmp.Compare(a.rank(), b.rank()) })
	if resp := refusals[0].resp; resp != nil {
		return resp, nil
	}
	first := refusals[0]
	if first.rank() == 0 { // no name helps with a plugin that cannot be asked
		return nil, first.refusal
	}
	for _, other := range refusals[1:] {
		if other.known != nil {
			first.known = append(append([]string{}, first.known...), other.known...)
		}
	}
	return nil, first.listing()
}

// listing returns the error with the known names. It is made only when somebody reads it, because the search for
// similar names takes longer than most calls of the plugin that has the name.
func (e notOwner) listing() *protocol.Error {
	if e.known == nil {
		return e.refusal
	}
	known := append([]string{}, e.known...)
	slices.Sort(known)
	known = slices.Compact(known)
	told := *e.refusal
	told.Detail = maps.Clone(told.Detail)
	told.With("known", known)
	if len(known) == 0 {
		return &told
	}
	link := "; there are: "
	if hint := schema.DidYouMean(e.name, known); hint != "" && e.name != "" {
		told.Message += "; " + hint
		link = " There are: "
	}
	told.Message += link + strings.Join(known[:min(len(known), maxNamed)], ", ")
	return &told
}
