package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// plain finds what versions of packages do not have.
var plain = regexp.MustCompile(`[^0-9A-Za-z]+`)

// module is one that the binaries are made of.
type module struct {
	Path, Version string
	Sum           string   // as go.sum has it: of all its files
	Dir           string   // where it lies here
	licences      []string // their SPDX ids
	text          string
}

var licenceFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents|unlicense)`)

// modules returns what all programs are made of, in order, with their licences. One without any
// is an error: it may not be shipped.
func (r *release) modules() ([]*module, error) {
	byPath := map[string]*module{}
	list := []string{"list", "-m", "-json=Path,Version,Sum,Dir"}
	for _, p := range r.programs {
		for _, dep := range p.info.Deps {
			if byPath[dep.Path] == nil {
				byPath[dep.Path] = &module{}
				list = append(list, dep.Path)
			}
		}
	}
	text, err := output("go", list...)
	if err != nil {
		return nil, err
	}
	var all []*module
	for dec := json.NewDecoder(strings.NewReader(text)); dec.More(); {
		m := &module{}
		if err := dec.Decode(m); err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	goroot, err := output("go", "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	goVersion := r.programs[0].info.GoVersion
	all = append(all, &module{Path: "std", Version: strings.TrimPrefix(goVersion, "go"), Dir: goroot})
	slices.SortFunc(all, func(a, b *module) int { return strings.Compare(a.Path, b.Path) })
	for _, m := range all {
		if err := m.read(); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// read reads the licences of a module.
func (m *module) read() error {
	entries, err := os.ReadDir(m.Dir)
	if err != nil {
		return fmt.Errorf("%s: %w", m.Path, err)
	}
	for _, e := range entries {
		if e.IsDir() || !licenceFile.MatchString(e.Name()) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(m.Dir, e.Name()))
		if err != nil {
			return err
		}
		m.text += e.Name() + ":\n\n" + strings.TrimSpace(strings.ReplaceAll(string(text), "\r", "")) + "\n\n"
		if id := spdx(string(text)); id != "" && !slices.Contains(m.licences, id) {
			m.licences = append(m.licences, id)
		}
	}
	if len(m.licences) == 0 {
		return fmt.Errorf("%s %s has no licence that is known: it may not be shipped", m.Path, m.Version)
	}
	return nil
}

// spdx returns the id of a licence by what only it says; "" = none of those.
func spdx(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	for _, known := range []struct{ says, id string }{
		{"Mozilla Public License", "MPL-2.0"},
		{"Apache License Version 2.0", "Apache-2.0"},
		{"Permission is hereby granted, free of charge", "MIT"},
		{"Permission to use, copy, modify, and", "ISC"},
		{"free and unencumbered software released into the public domain", "Unlicense"},
		{"Neither the name", "BSD-3-Clause"},
		{"may be used to endorse", "BSD-3-Clause"},
		{"Redistribution and use in source and binary forms", "BSD-2-Clause"},
	} {
		if strings.Contains(text, known.says) {
			return known.id
		}
	}
	return ""
}

// gather reads what goes into all archives.
func (r *release) gather(modules []*module) error {
	if len(r.common) == 0 {
		return fmt.Errorf("the system of this machine must be among the platforms: its binary writes the man page")
	}
	var third strings.Builder
	third.WriteString("a2e contains the software below. Each stands under its own licence.\n\n")
	for _, m := range modules {
		fmt.Fprintf(&third, "%s\n%s %s (%s)\n\n%s", strings.Repeat("=", 80), m.Path, m.Version, strings.Join(m.licences, ", "), m.text)
	}
	vendored, err := vendoredLicences()
	if err != nil {
		return err
	}
	third.WriteString(vendored)
	r.common = append(r.common, file{name: "THIRD_PARTY_LICENSES", data: []byte(third.String())})
	for _, name := range []string{"LICENSE", "README.md"} {
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		r.common = append(r.common, file{name: name, data: data})
	}
	slices.SortFunc(r.common, func(a, b file) int { return strings.Compare(a.name, b.name) })
	for _, f := range r.common {
		if f.name == "a2e.schema.json" { // editors read it by itself
			return r.write(f.name, f.data)
		}
	}
	return nil
}

// vendoredLicences returns the licences that lie in this repository beside what they are of: the
// libraries of the web page.
func vendoredLicences() (string, error) {
	var text strings.Builder
	err := filepath.WalkDir("host", func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.Contains(entry.Name(), "LICENSE") {
			return err
		}
		data, err := os.ReadFile(path)
		fmt.Fprintf(&text, "%s\n%s\n\n%s\n\n", strings.Repeat("=", 80), filepath.ToSlash(path), strings.TrimSpace(string(data)))
		return err
	})
	return text.String(), err
}

// legal returns README.md, LICENSE and THIRD_PARTY_LICENSES, in this order.
func (r *release) legal() []file {
	var all []file
	for _, name := range []string{"README.md", "LICENSE", "THIRD_PARTY_LICENSES"} {
		i := slices.IndexFunc(r.common, func(f file) bool { return f.name == name })
		all = append(all, r.common[i])
	}
	return all
}
