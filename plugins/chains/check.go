package chains

// maxID is how long the id of a node may be, in bytes.
const maxID = 128

// check says what does not fit to the kind of the node.
func (s *spec) check(at int, bad *problems) {
	switch {
	case s.id == "":
		bad.at(at, "node_id", "is required")
	case len(s.id) > maxID:
		bad.at(at, "node_id", "is longer than %d bytes", maxID)
	case s.id == memberInput:
		bad.at(at, "node_id", "is %q, by which expressions call the initial input; choose another", memberInput)
	}
	switch s.kind {
	case KindTool, KindSkill, KindChain:
		if s.name == "" {
			bad.at(at, "name", "is required: the %s that the node calls", s.kind)
		}
	case KindProc:
	case KindBranch:
		if s.condition == "" {
			bad.at(at, "condition", "is required: by it the branch chooses true_node or false_node")
		}
		s.passesNothing(at, bad)
	case KindMap:
		if s.itemsPath == "" {
			bad.at(at, "items_path", "is required: an expression that gives the list")
		}
		if s.mapNode == "" {
			bad.at(at, "map_node", "is required: the id of the node that runs for each item")
		}
		s.passesNothing(at, bad)
	case "":
		bad.at(at, "kind", "is required: tool, skill, proc, branch, map or chain")
	default:
		bad.at(at, "kind", "is %.64q; should be tool, skill, proc, branch, map or chain", s.kind)
	}
	s.foreign(at, bad)
}

// passesNothing says that a node which only routes has an input for nobody.
func (s *spec) passesNothing(at int, bad *problems) {
	if s.input.Len() > 0 || s.inputMap.Len() > 0 {
		bad.at(at, "input", "a %s passes nothing on; give input and input_map to the nodes that it leads to", s.kind)
	}
}

// foreign says which fields belong to another kind.
func (s *spec) foreign(at int, bad *problems) {
	for _, f := range []struct {
		field, value string
		kind         Kind
	}{
		{"true_node", s.trueNode, KindBranch}, {"false_node", s.falseNode, KindBranch},
		{"items_path", s.itemsPath, KindMap}, {"map_node", s.mapNode, KindMap},
	} {
		if f.value != "" && s.kind != f.kind {
			bad.at(at, f.field, "only a node of kind %s has it", f.kind)
		}
	}
	if s.maxParallel > 0 && s.kind != KindMap {
		bad.at(at, "max_parallel", "only a node of kind map has it")
	}
}
