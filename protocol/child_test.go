package protocol

import (
	"testing"

	"a2e/host/hosttest/must"
)

func TestChild(t *testing.T) {
	obj, err := ParseObject([]byte(` {"a":{"b":{"c":{"d":1}},"e":2},"n":1,"empty":{},"deep":{"x":{"y":{"z":{}}}}} `))
	must.OK(t, err)
	for _, path := range [][]string{{"a"}, {"a", "b"}, {"a", "b", "c"}, {"empty"}, {"deep", "x", "y", "z"}} {
		child, want := obj, obj
		for _, key := range path {
			raw, _ := want.Get(key)
			if want, err = ParseObject(raw); err != nil {
				t.Fatal(err)
			}
			var ok bool
			if child, ok = child.Child(key); !ok || string(child.Raw()) != string(raw) || child.Len() != want.Len() {
				t.Errorf("%v: %s, %t; should be %s", path, child.Raw(), ok, raw)
			}
		}
	}
	for _, key := range []string{"n", "nothing"} {
		if child, ok := obj.Child(key); ok {
			t.Errorf("%s is an object: %s", key, child.Raw())
		}
	}
}
