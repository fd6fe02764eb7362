package protocol

import "strconv"

// elements walks over the elements of a checked array; val is one. Objects among them are
// put into the table of s.
func elements(s *scanner, val Value, do func(from, to, members int)) bool {
	if val.Kind() != '[' {
		return false
	}
	s.reset(val)
	s.i++
	for s.space(); !s.take(']'); s.space() {
		from, members := s.i, len(s.members)
		if s.value(true) != nil {
			return false
		}
		do(from, s.i, members)
		s.space()
		s.take(',')
		s.space()
	}
	return true
}

// Strings returns the texts of an array of strings; ok reports whether the value is one. They
// share one piece of memory.
func (v Value) Strings() (texts []string, ok bool) {
	texts, problems := stringsOf("", v)
	return texts, problems == nil
}

// stringsOf reads an array of strings. The problems name what is none below path.
func stringsOf(path string, v Value) (texts []string, problems []FieldError) {
	text := string(v)
	var s scanner
	isArray := elements(&s, v, func(from, to, _ int) {
		switch el := v[from:to]; {
		case el.Kind() != '"':
			problems = append(problems, wrongElement(path, len(texts), el, "string"))
		case plain(el[1:len(el)-1]) == len(el)-2:
			texts = append(texts, text[from+1:to-1])
			return
		default:
			texts = append(texts, string(unquote(el)))
			return
		}
		texts = append(texts, "")
	})
	if !isArray {
		problems = []FieldError{{Path: path, Message: "is a JSON " + kindName(v.Kind()) + "; should be array"}}
	}
	return texts, problems
}

// objectsOf reads an array of objects, which point into the line like all of them.
func objectsOf(path string, v Value) (objects []Object, problems []FieldError) {
	var s scanner
	isArray := elements(&s, v, func(from, to, members int) {
		if el := v[from:to]; el.Kind() != '{' {
			problems = append(problems, wrongElement(path, len(objects), el, "object"))
		}
		end := len(s.members)
		objects = append(objects, Object{text: v, at: span{uint32(from), uint32(to)}, members: s.members[members:end:end]})
	})
	if !isArray {
		problems = []FieldError{{Path: path, Message: "is a JSON " + kindName(v.Kind()) + "; should be array"}}
	}
	return objects, problems
}

func wrongElement(path string, i int, el Value, want string) FieldError {
	return FieldError{Path: path + "/" + strconv.Itoa(i), Message: "is a JSON " + kindName(el.Kind()) + "; should be " + want}
}
