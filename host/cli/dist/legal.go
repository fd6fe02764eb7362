package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/template"
	"time"
)

// plain matches the characters that versions of packages cannot have.
var plain = regexp.MustCompile(`[^0-9A-Za-z]+`)

// module is a module that the binaries contain.
type module struct {
	Path, Version string
	Sum           string   // checksum of all its files, as in go.sum
	Dir           string   // its folder on this machine
	licences      []string // SPDX ids
	text          string
}

var licenceFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents|unlicense)`)

// modules returns the modules of all programs, sorted, with their licences. A module without a
// licence is an error, as it may not be shipped.
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

// spdx returns the id of a licence, found by words that only this licence has, or "" if it is unknown.
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

// gather reads the files that go into all archives.
func (r *release) gather(modules []*module) error {
	if len(r.common) == 0 {
		return fmt.Errorf("the system of this machine must be among the platforms: its binary writes the man page")
	}
	var third strings.Builder
	third.WriteString("a2e contains the software below. Each stands under its own licence.\n\n")
	for _, m := range modules {
		fmt.Fprintf(&third, "%s\n%s %s (%s)\n\n%s", strings.Repeat("=", 80), m.Path, m.Version,
			strings.Join(m.licences, ", "), m.text)
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
		if f.name == "a2e.schema.json" { // editors read it as a separate file
			return r.write(f.name, f.data)
		}
	}
	return nil
}

// vendoredLicences returns the licences of code that is copied into this repository: the libraries of the web page.
func vendoredLicences() (string, error) {
	var text strings.Builder
	err := filepath.WalkDir("host", func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.Contains(entry.Name(), "LICENSE") {
			return err
		}
		data, err := os.ReadFile(path)
		fmt.Fprintf(&text, "%s\n%s\n\n%s\n\n", strings.Repeat("=", 80), filepath.ToSlash(path),
			strings.TrimSpace(string(data)))
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

type object = map[string]any

// writeJSON writes a JSON file for other programs.
func (r *release) writeJSON(name string, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	return r.write(name, append(text, '\n'))
}

// purl returns the package URL of a Go module.
func purl(path, version string) string { return "pkg:golang/" + path + "@" + version }

// bill writes the bill of materials of the binaries, as CycloneDX.
func (r *release) bill(modules []*module) error {
	var parts []object
	for _, m := range modules {
		var licences []object
		for _, id := range m.licences {
			licences = append(licences, object{"license": object{"id": id}})
		}
		part := object{
			"type": "library", "bom-ref": purl(m.Path, m.Version), "name": m.Path, "version": m.Version,
			"purl": purl(m.Path, m.Version), "licenses": licences,
		}
		if m.Sum != "" {
			part["properties"] = []object{{"name": "go:sum", "value": m.Sum}}
		}
		parts = append(parts, part)
	}
	return r.writeJSON("a2e.cdx.json", object{
		"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
		"metadata": object{
			"timestamp": r.made.Format(time.RFC3339),
			"component": object{
				"type": "application", "bom-ref": purl("a2e", r.version), "name": "a2e", "version": r.version,
				"purl":     purl("a2e", r.version),
				"licenses": []object{{"license": object{"id": "MIT"}}},
			},
		},
		"components": parts,
	})
}

// provenance writes how the files were made, as an unsigned in-toto statement. The publisher signs it.
func (r *release) provenance(modules []*module) error {
	var subjects, from []object
	for _, name := range slices.Sorted(maps.Keys(r.made256)) {
		subjects = append(subjects, object{"name": name, "digest": object{"sha256": r.made256[name]}})
	}
	if r.commit != "" {
		from = append(from, object{"uri": "git:a2e", "digest": object{"gitCommit": r.commit}})
	}
	for _, m := range modules {
		one := object{"uri": purl(m.Path, m.Version)}
		if m.Sum != "" {
			one["annotations"] = object{"go:sum": m.Sum}
		}
		from = append(from, one)
	}
	var platforms []string
	for _, p := range r.programs {
		platforms = append(platforms, p.os+"/"+p.arch)
	}
	return r.writeJSON("provenance.intoto.json", object{
		"_type": "https://in-toto.io/Statement/v1", "subject": subjects,
		"predicateType": "https://slsa.dev/provenance/v1",
		"predicate": object{
			"buildDefinition": object{
				"buildType":          "a2e/host/cli/dist",
				"externalParameters": object{"version": r.version, "platforms": platforms},
				"internalParameters": object{
					"go": r.programs[0].info.GoVersion, "flags": r.flags(),
					"environment": []string{"CGO_ENABLED=0", "GOAMD64=v1", "GOARM64=v8.0"},
				},
				"resolvedDependencies": from,
			},
			"runDetails": object{"builder": object{"id": "make dist"}},
		},
	})
}

// formula writes the Homebrew formula, with the archives of macOS and Linux and their checksums.
func (r *release) formula() error {
	sums := map[string]string{}
	for _, p := range r.programs {
		sums[p.os+"_"+p.arch] = r.made256["a2e-"+r.version+"-"+p.os+"-"+p.arch+".tar.gz"]
	}
	for _, needed := range []string{"darwin_amd64", "darwin_arm64", "linux_amd64", "linux_arm64"} {
		if sums[needed] == "" {
			return nil // not all systems are released
		}
	}
	text, err := files.ReadFile("files/a2e.rb")
	if err != nil {
		return err
	}
	t, err := template.New("formula").Parse(string(text))
	if err != nil {
		return err
	}
	var out bytes.Buffer
	if err := t.Execute(&out, object{
		"Version": r.version, "Number": r.number, "URL": strings.TrimSuffix(r.url, "/"),
		"Sums": sums,
	}); err != nil {
		return err
	}
	return r.write("homebrew/a2e.rb", out.Bytes())
}

// container writes the folder from which an image is built.
func (r *release) container() error {
	for _, f := range r.legal()[1:] {
		if err := r.write("container/"+f.name, f.data); err != nil {
			return err
		}
	}
	for _, p := range r.programs {
		if p.os == "linux" {
			if err := r.write("container/"+p.arch+"/a2e", p.data); err != nil {
				return err
			}
		}
	}
	return r.copies("container", "Dockerfile")
}

// units writes the units with which systemd starts a host for each connection.
func (r *release) units() error { return r.copies("systemd", "a2e@.service", "a2e.socket") }

func (r *release) copies(folder string, names ...string) error {
	for _, name := range names {
		text, err := files.ReadFile("files/" + name)
		if err == nil {
			err = r.write(filepath.Join(folder, name), text)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
