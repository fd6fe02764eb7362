package main

import (
	"bytes"
	"encoding/json"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"text/template"
	"time"
)

type object = map[string]any

// writeJSON writes what other programs read.
func (r *release) writeJSON(name string, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	return r.write(name, append(text, '\n'))
}

// purl is the address of a Go module among packages of all languages.
func purl(path, version string) string { return "pkg:golang/" + path + "@" + version }

// bill writes what the binaries are made of, as CycloneDX.
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
				"type": "application", "bom-ref": purl("a2e", r.version), "name": "a2e", "version": r.version, "purl": purl("a2e", r.version),
				"licenses": []object{{"license": object{"id": "MIT"}}},
			},
		},
		"components": parts,
	})
}

// provenance writes how the files were made, as an unsigned in-toto statement: who publishes them
// signs it.
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
		"_type": "https://in-toto.io/Statement/v1", "subject": subjects, "predicateType": "https://slsa.dev/provenance/v1",
		"predicate": object{
			"buildDefinition": object{
				"buildType":          "a2e/host/dist",
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

// formula writes the Homebrew formula: the archives of macOS and Linux and their sums.
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
	if err := t.Execute(&out, object{"Version": r.version, "Number": r.number, "URL": strings.TrimSuffix(r.url, "/"), "Sums": sums}); err != nil {
		return err
	}
	return r.write("homebrew/a2e.rb", out.Bytes())
}

// container writes the folder that an image is built from.
func (r *release) container() error {
	for _, p := range r.programs {
		if p.os == "linux" {
			if err := r.write("container/"+p.arch+"/a2e", p.data); err != nil {
				return err
			}
		}
	}
	return r.copies("container", "Dockerfile")
}

// units writes what systemd starts a host for each connection with.
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
