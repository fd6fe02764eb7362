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

// maxNamed is how many known names a refusal's text lists; detail has them all.
const maxNamed = 20

// notOwner is an error of a plugin that does not own what a request names.
type notOwner struct {
	refusal *protocol.Error
	resp    any      // answers in its place; nil where an error does
	name    string   // that the plugin does not know; "" = the error is of no name
	known   []string // the names that it knows; nil = it does not say
}

func (e notOwner) Error() string { return e.listing().Error() }
func (e notOwner) Unwrap() error { return e.listing() }

// NotOwner says, before any side effect, that this plugin does not own the thing
// that the request names: the next plugin of the capability is asked, and the
// first one's err is the answer when none owns it.
func NotOwner(err *protocol.Error) error { return notOwner{refusal: err} }

// NotKnown is NotOwner for a name that this plugin does not know, beside those that it
// does. The answer lists the names that all plugins know, also as the detail "known", and
// says which of them name may be a slip of.
func NotKnown(err *protocol.Error, name string, known []string) error {
	return notOwner{refusal: err, name: name, known: known}
}

// IsNotOwner reports whether an error says so.
func IsNotOwner(err error) bool {
	var refused notOwner
	return errors.As(err, &refused)
}

// NotOwnerBut is NotOwner for a request whose response itself says that it was
// refused: resp, a pointer to that response, is the answer when no plugin owns
// the thing.
func NotOwnerBut(resp any) error {
	return notOwner{refusal: protocol.Errorf(protocol.CodeRuntimeError, "refused"), resp: resp}
}

// unwrapNotOwner makes the refusal of a single plugin its answer.
func unwrapNotOwner(err error) (any, error) {
	var refused notOwner
	if errors.As(err, &refused) {
		return mergeRefusals([]notOwner{refused})
	}
	return nil, err
}

// rank orders refusals by how much they say: a plugin that cannot be asked now may own
// the thing, and one that does not serve such things at all says nothing of it.
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

// mergeRefusals returns the first refusal of those that say most, and in it the names that
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

// listing returns the error with the names that there are. It is made only when somebody reads it: to
// find the names that are alike takes longer than most calls of the plugin that has the name.
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
