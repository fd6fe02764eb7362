package protocol

import (
	_ "embed" // the texts
	"reflect"
	"strings"
	"sync"
)

//go:embed messages.txt
var messagesText string

// Description explains a message type or a field in one sentence.
type Description struct {
	Text string
	Enum []string // the possible values of a field; nil = any
}

// descriptions reads messages.txt. The file has a line for each type, then the fields of each Go struct
// indented below its name, and below * the fields that mean the same in all structs.
var descriptions = sync.OnceValue(func() map[string]Description {
	all := make(map[string]Description)
	within := ""
	for line := range strings.Lines(messagesText) {
		name, text, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch field := strings.HasPrefix(line, "  "); {
		case field:
			name = within + "." + name
		case text == "":
			within = name
			continue
		}
		d := Description{Text: text}
		if short, list, is := strings.Cut(strings.TrimSuffix(name, "]"), " ["); is {
			name = short
			d.Enum = strings.Split(strings.Replace(list, `""`, "", 1), ", ")
		}
		all[name] = d
	}
	return all
})

// Describe returns the description of a message type, or the zero value for an unknown type.
func Describe(t Type) Description { return descriptions()[string(t)] }

// DescribeField returns the description of a field of a message's struct or of a struct inside it.
func DescribeField(of reflect.Type, name string) Description {
	structs := []reflect.Type{of}
	for f := range of.Fields() {
		if f.Anonymous {
			structs = append(structs, f.Type)
		}
	}
	for _, s := range structs {
		short, _, _ := strings.Cut(s.Name(), "[")
		if d, ok := descriptions()[short+"."+name]; ok {
			return d
		}
	}
	return descriptions()["*."+name]
}
