// Package starter has the files that `a2e init plugin` writes: for each language a helper without dependencies, and
// an example of a tool.
package starter

import "embed"

//go:embed a2e_plugin.* example.*
var files embed.FS

// File is one file to write. Keep = an existing file is not replaced, since it may hold the user's work.
type File struct {
	Name string
	Text []byte
	Keep bool
}

// Python returns the files of a plugin with this name.
func Python(name string) ([]File, error) {
	return read(File{Name: name + ".py", Keep: true}, "example.py", "a2e_plugin.py")
}

// TypeScript returns the files of a plugin with this name. The example is valid JavaScript, too: ext is
// ".ts" or, for a Node.js that does not run TypeScript, ".mjs".
func TypeScript(name, ext string) ([]File, error) {
	return read(File{Name: name + ext, Keep: true}, "example.ts", "a2e_plugin.mjs", "a2e_plugin.d.mts")
}

func read(example File, from string, helpers ...string) ([]File, error) {
	var err error
	if example.Text, err = files.ReadFile(from); err != nil {
		return nil, err
	}
	all := []File{example}
	for _, name := range helpers {
		text, err := files.ReadFile(name)
		if err != nil {
			return nil, err
		}
		all = append(all, File{Name: name, Text: text})
	}
	return all, nil
}
