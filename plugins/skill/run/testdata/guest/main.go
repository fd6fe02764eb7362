// Command guest is the skill that the tests build for WASI: it does what its arguments
// say. It takes few packages, as compiling it is most of what the tests do.
package main

import (
	"errors"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
)

// order is what the arguments say.
type order struct {
	do, path, to string
	n            int
}

func main() {
	data, err := io.ReadAll(os.Stdin)
	if _, all, ok := strings.Cut(string(data), `"all":[`); ok && err == nil {
		os.Stdout.WriteString(`{"result":` + list(each(all)) + `,"summary":"did all"}` + "\n")
		return
	}
	o := read(data)
	result := "null"
	if err == nil {
		result, err = act(o)
	}
	if err != nil {
		os.Stderr.WriteString("guest: " + err.Error() + "\n")
		os.Exit(3)
	}
	os.Stdout.WriteString(`{"result":` + result + `,"summary":"did ` + o.do + `"}` + "\n")
}

// read reads one order.
func read(data []byte) order {
	o := order{field(data, "do"), field(data, "path"), field(data, "to"), 0}
	o.n, _ = strconv.Atoi(field(data, "n"))
	return o
}

// each does a list of orders, and tells how each of them went.
func each(all string) (went []string) {
	for _, one := range strings.Split(all, "},{") {
		result, err := act(read([]byte(one + "}")))
		if err != nil {
			result = "error: " + err.Error()
		}
		went = append(went, result)
	}
	return went
}

// field finds a member of a JSON object whose texts have no escapes.
func field(data []byte, name string) string {
	_, after, _ := strings.Cut(string(data), `"`+name+`":`)
	if inner, ok := strings.CutPrefix(after, `"`); ok {
		text, _, _ := strings.Cut(inner, `"`)
		return text
	}
	return after[:max(strings.IndexAny(after, ",}"), 0)]
}

// list writes texts as JSON.
func list(texts []string) string {
	var quoted []string
	for _, t := range texts {
		quoted = append(quoted, strconv.Quote(t))
	}
	return "[" + strings.Join(quoted, ",") + "]"
}

func act(o order) (string, error) {
	switch o.do {
	case "echo":
		os.Stdout.WriteString(`{"kind":"progress","data":{"pct":10,"message":"begun"}}` + "\n")
		os.Stderr.WriteString("to stderr\n")
		wd, _ := os.Getwd()
		return `{"args":` + list(os.Args) + `,"cwd":` + strconv.Quote(wd) + `,"n":` + strconv.Itoa(o.n) + `}`, nil
	case "env":
		env := os.Environ()
		slices.Sort(env)
		return list(env), nil
	case "exit":
		os.Exit(o.n)
	case "panic":
		panic("the guest panics")
	case "grow":
		var all [][]byte
		for range o.n {
			b := make([]byte, 1<<20)
			for i := range b {
				b[i] = 1
			}
			all = append(all, b)
		}
		return strconv.Itoa(len(all)), nil
	case "recurse":
		return strconv.Itoa(deep(o.n)), nil
	case "loop":
		for i := 0; ; i++ {
			o.n += i
		}
	case "sleep":
		select {}
	}
	return files(o)
}

func deep(n int) int {
	if n == 0 {
		return 0
	}
	var pad [64]int
	pad[n%64] = n
	return deep(n-1) + pad[n%64]
}

func files(o order) (string, error) {
	switch o.do {
	case "read":
		data, err := os.ReadFile(o.path)
		return strconv.Quote(string(data)), err
	case "write":
		return "null", os.WriteFile(o.path, []byte(strings.Repeat("w", max(o.n, 1))), 0o644)
	case "append":
		f, err := os.OpenFile(o.path, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o644)
		if err != nil {
			return "", err
		}
		_, err = f.WriteString("+more")
		return "null", errors.Join(err, f.Close())
	case "list":
		entries, err := os.ReadDir(o.path)
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return list(names), err
	case "link":
		return "null", os.Symlink(o.to, o.path)
	case "hardlink":
		return "null", os.Link(o.to, o.path)
	case "rename":
		return "null", os.Rename(o.path, o.to)
	case "remove":
		return "null", os.Remove(o.path)
	case "truncate":
		return "null", os.Truncate(o.path, int64(o.n))
	case "fill":
		return fill(o)
	case "tree":
		return tree(o.path)
	}
	return "", errors.New("what is " + o.do + "?")
}

// tree makes folders, moves a file in them, and removes all.
func tree(top string) (string, error) {
	dir := top + "/a/b"
	err := os.MkdirAll(dir, 0o755)
	if err == nil {
		err = os.WriteFile(dir+"/c", []byte("deep"), 0o644)
	}
	if err == nil {
		err = os.Rename(dir+"/c", dir+"/d")
	}
	data, readErr := os.ReadFile(dir + "/d")
	return strconv.Quote(string(data)), errors.Join(err, readErr, os.RemoveAll(top+"/a"))
}

// fill writes files of 16 MiB until it may not.
func fill(o order) (string, error) {
	block := make([]byte, 1<<20)
	for i := 0; ; i++ {
		f, err := os.Create(o.path + "/fill" + strconv.Itoa(i%4))
		if err != nil {
			return "", err
		}
		for range 16 {
			if _, err := f.Write(block); err != nil {
				return "", err
			}
		}
		if err := f.Close(); err != nil {
			return "", err
		}
	}
}
