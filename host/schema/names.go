package schema

import (
	"fmt"
	"strings"
)

// LongestName is the length of the longest name of a tool that models' APIs take.
const LongestName = 64

// Names are names of tools that models' APIs take, and the way back: letters, digits, _ and -, at
// most LongestName of them, each name once. A tool whose name is one of these keeps it.
type Names struct{ there, here map[string]string }

// NewNames returns the names of some tools.
func NewNames(tools []string) Names {
	n := Names{make(map[string]string, len(tools)), make(map[string]string, len(tools))}
	for _, tool := range tools {
		if tool != "" && FittingName(tool) == tool {
			n.there[tool], n.here[tool] = tool, tool
		}
	}
	for _, tool := range tools {
		if _, named := n.there[tool]; named {
			continue
		}
		name := FittingName(tool)
		for i := 2; ; i++ {
			if _, taken := n.here[name]; name != "" && !taken {
				break
			}
			name = fmt.Sprintf("%.*s_%d", LongestName-len("_9999"), FittingName(tool), i)
		}
		n.there[tool], n.here[name] = name, tool
	}
	return n
}

// FittingName returns a name with what no API takes replaced, and its end cut off.
func FittingName(name string) string {
	name = strings.Map(func(r rune) rune {
		if isNameRune(r) {
			return r
		}
		return '_'
	}, name)
	return name[:min(len(name), LongestName)]
}

func isNameRune(r rune) bool {
	return r == '_' || r == '-' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
}

// There returns the name that a tool has there; one that is none of them has what fits.
func (n Names) There(tool string) string {
	if name, ok := n.there[tool]; ok {
		return name
	}
	return FittingName(tool)
}

// Here returns the tool that a name there stands for, or the name itself.
func (n Names) Here(name string) string {
	if tool, ok := n.here[name]; ok {
		return tool
	}
	return name
}
