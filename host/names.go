package host

// names is what a request that keeps its order is about; see Route.InOrderOf.
type names struct {
	all bool // everything
	one string
	set map[string]struct{} // in place of one
}

// followLocked notes which of the running calls c has to wait for: those that are about
// the same thing. They came before it, and wait for those before them in the same way.
// Mostly nothing else runs, and then this costs nothing.
func (h *Host) followLocked(c *call) {
	for _, r := range h.running {
		if r == c || r.dest.names == "" || r.dest.capability != c.dest.capability || !c.aboutLocked().meets(r.aboutLocked()) {
			continue
		}
		if r.passed == nil {
			r.passed = make(chan struct{})
		}
		c.before = append(c.before, r.passed)
	}
}

func (c *call) aboutLocked() *names {
	if c.names != nil {
		return c.names
	}
	n := &names{}
	c.names = n
	val, _ := c.line.Object().Get(c.dest.names)
	list, _ := val.Strings()
	switch one, _ := val.Str(); {
	case len(list) == 1:
		n.one = list[0]
	case len(list) > 1:
		n.set = make(map[string]struct{}, len(list))
		for _, name := range list {
			n.set[name] = struct{}{}
		}
	default:
		n.one, n.all = one, one == ""
	}
	return n
}

func (n *names) meets(other *names) bool {
	switch {
	case n.all || other.all:
		return true
	case n.set == nil && other.set == nil:
		return n.one == other.one
	case n.set == nil:
		return other.has(n.one)
	case other.set == nil:
		return n.has(other.one)
	}
	for name := range n.set {
		if other.has(name) {
			return true
		}
	}
	return false
}

func (n *names) has(name string) bool {
	_, ok := n.set[name]
	return ok
}
