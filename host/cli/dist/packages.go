package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"
)

const about = "An agent-to-environment host: one static binary that an agent spawns as a child process"

// Names of systems and processors in npm and pip.
var (
	npmOS   = map[string]string{"linux": "linux", "darwin": "darwin", "windows": "win32"}
	npmArch = map[string]string{"amd64": "x64", "arm64": "arm64"}
	pipTag  = map[string]string{
		"linux/amd64":  "manylinux_2_17_x86_64.manylinux2014_x86_64.musllinux_1_1_x86_64",
		"linux/arm64":  "manylinux_2_17_aarch64.manylinux2014_aarch64.musllinux_1_1_aarch64",
		"darwin/amd64": "macosx_12_0_x86_64", "darwin/arm64": "macosx_12_0_arm64",
		// the oldest macOS that Go builds for
		"windows/amd64": "win_amd64", "windows/arm64": "win_arm64",
	}
)

// npmVersion and pipVersion return the version in the form of npm (semver) and pip (PEP 440).
func (r *release) npmVersion() string {
	if r.number != "0.0.0" {
		return r.number
	}
	return "0.0.0-" + plain.ReplaceAllString("dev."+r.version, "-")
}

func (r *release) pipVersion() string {
	if r.number != "0.0.0" {
		return r.number
	}
	return "0.0.0.dev0+" + strings.ToLower(plain.ReplaceAllString(r.version, "."))
}

// npmName returns the name of the package with the binary for one system.
func npmName(p *program) string { return "a2e-" + npmOS[p.os] + "-" + npmArch[p.arch] }

type npmManifest struct {
	Name        string            `json:"name"`
	Version     string            `json:"version"`
	Description string            `json:"description"`
	License     string            `json:"license"`
	OS          []string          `json:"os,omitempty"`
	CPU         []string          `json:"cpu,omitempty"`
	Bin         map[string]string `json:"bin,omitempty"`
	Engines     map[string]string `json:"engines,omitempty"`
	Optional    map[string]string `json:"optionalDependencies,omitempty"`
	Files       []string          `json:"files"`
}

// npmPackage writes a package like `npm pack`.
func (r *release) npmPackage(m npmManifest, with ...file) error {
	m.Version, m.Description, m.License = r.npmVersion(), about, "MIT"
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	all := []file{{name: "package/package.json", data: append(text, '\n')}}
	for _, f := range with {
		f.name = "package/" + f.name
		all = append(all, f)
	}
	data, err := tarball(r.made, all)
	if err != nil {
		return err
	}
	return r.write(fmt.Sprintf("npm/%s-%s.tgz", m.Name, m.Version), data)
}

// npmPlatform writes the package with the binary for one system.
func (r *release) npmPlatform(p *program) error {
	m := npmManifest{
		Name: npmName(p), OS: []string{npmOS[p.os]}, CPU: []string{npmArch[p.arch]},
		Files: []string{"bin", "THIRD_PARTY_LICENSES"},
	}
	return r.npmPackage(m, append(r.legal(), file{"bin/" + p.name(), p.data, true})...)
}

// npmLauncher writes the package that people install; npm installs the package of their system with it.
func (r *release) npmLauncher() error {
	shim, err := files.ReadFile("files/a2e.js")
	if err != nil {
		return err
	}
	m := npmManifest{
		Name: "a2e", Bin: map[string]string{"a2e": "bin/a2e.js"}, Engines: map[string]string{"node": ">=18"},
		Optional: map[string]string{}, Files: []string{"bin"},
	}
	for _, p := range r.programs {
		m.Optional[npmName(p)] = r.npmVersion()
	}
	return r.npmPackage(m, append(r.legal()[:2:2], file{"bin/a2e.js", shim, true})...)
}

// wheel writes the Python package for one system. pip puts the binary itself into the folder of
// programs, so that no Python process runs between an agent and the host.
func (r *release) wheel(p *program) error {
	version := r.pipVersion()
	base, tags := "a2e-"+version, ""
	for tag := range strings.SplitSeq(pipTag[p.os+"/"+p.arch], ".") {
		tags += "Tag: py3-none-" + tag + "\n"
	}
	info := base + ".dist-info/"
	all := []file{
		{base + ".data/scripts/" + p.name(), p.data, true},
		{name: info + "METADATA", data: []byte("Metadata-Version: 2.4\nName: a2e\nVersion: " + version + "\nSummary: " +
			about +
			"\nLicense-Expression: MIT\nLicense-File: LICENSE\nLicense-File: THIRD_PARTY_LICENSES\nRequires-Python: " +
			">=3.8\n")},
		{name: info + "WHEEL", data: []byte("Wheel-Version: 1.0\nGenerator: a2e\nRoot-Is-Purelib: false\n" + tags)},
	}
	for _, f := range r.legal() {
		if f.name != "README.md" {
			f.name = info + "licenses/" + f.name
			all = append(all, f)
		}
	}
	var record strings.Builder
	for _, f := range all {
		digest := sha256.Sum256(f.data)
		fmt.Fprintf(&record, "%s,sha256=%s,%d\n", f.name, base64.RawURLEncoding.EncodeToString(digest[:]), len(f.data))
	}
	fmt.Fprintf(&record, "%sRECORD,,\n", info)
	data, err := zipped(r.made, append(all, file{name: info + "RECORD", data: []byte(record.String())}))
	if err != nil {
		return err
	}
	return r.write(fmt.Sprintf("python/%s-py3-none-%s.whl", base, pipTag[p.os+"/"+p.arch]), data)
}

// file is one file of an archive.
type file struct {
	name    string
	data    []byte
	program bool // it is executable
}

func (f file) mode() int64 {
	if f.program {
		return 0o755
	}
	return 0o644
}

// tarball packs files in order, without owners and with made as the only time, so that nothing
// depends on this machine.
func tarball(made time.Time, all []file) ([]byte, error) {
	var out bytes.Buffer
	packed := gzip.NewWriter(&out) // its best compression takes three times as long for 0.6 %
	w := tar.NewWriter(packed)
	for _, f := range all {
		head := &tar.Header{
			Typeflag: tar.TypeReg, Name: f.name, Size: int64(len(f.data)), Mode: f.mode(),
			ModTime: made, Format: tar.FormatUSTAR,
		}
		if err := w.WriteHeader(head); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, err
		}
	}
	err := errors.Join(w.Close(), packed.Close())
	return out.Bytes(), err
}

// zipped is tarball for a zip file, which is also the format of wheels.
func zipped(made time.Time, all []file) ([]byte, error) {
	var out bytes.Buffer
	w := zip.NewWriter(&out)
	for _, f := range all {
		head := &zip.FileHeader{Name: f.name, Method: zip.Deflate, Modified: made}
		head.SetMode(fs.FileMode(f.mode()))
		to, err := w.CreateHeader(head)
		if err != nil {
			return nil, err
		}
		if _, err := to.Write(f.data); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return out.Bytes(), err
}

// archive writes the archive for one system, with everything in one folder.
func (r *release) archive(p *program) error {
	folder := fmt.Sprintf("a2e-%s-%s-%s", r.version, p.os, p.arch)
	all := []file{{folder + "/" + p.name(), p.data, true}}
	for _, f := range r.common {
		all = append(all, file{folder + "/" + f.name, f.data, false})
	}
	pack, name := tarball, folder+".tar.gz"
	if p.os == "windows" {
		pack, name = zipped, folder+".zip"
	}
	data, err := pack(r.made, all)
	if err != nil {
		return err
	}
	return r.write(name, data)
}

// sums writes a file for sha256sum -c.
func (r *release) sums() error {
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(r.made256)) {
		fmt.Fprintf(&text, "%s  %s\n", r.made256[name], name)
	}
	return r.write("SHA256SUMS", []byte(text.String()))
}

func sum(data []byte) string {
	digest := sha256.Sum256(data)
	return hex.EncodeToString(digest[:])
}
