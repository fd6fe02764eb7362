package fleet

import "slices"

// Words are the protocol's own names of capabilities.
func Words() []string { return []string{"terminal", "file", "patch", "browser", "search", "memory"} }

// served returns what a word of the protocol means here: any one of the lists, all of it.
func served(word string) [][]string {
	switch word {
	case "terminal":
		return [][]string{{"run_command"}, {"proc"}}
	case "file":
		return [][]string{{"read_file", "write_file"}}
	case "patch":
		return [][]string{{"edit_file"}}
	case "browser":
		return [][]string{{"http_get"}}
	case "search":
		return [][]string{{"grep"}}
	}
	return nil // memory is what the capability is called too
}

// Serves reports whether whoever has tools and capabilities by these names has a required
// one: by that name, or by what it means as a word of the protocol.
func Serves(has func(name string) bool, required string) bool {
	lacks := func(name string) bool { return !has(name) }
	return has(required) || slices.ContainsFunc(served(required), func(all []string) bool { return !slices.ContainsFunc(all, lacks) })
}
