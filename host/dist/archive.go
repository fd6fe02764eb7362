package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"
)

// file is one file of an archive.
type file struct {
	name    string
	data    []byte
	program bool // it can be run
}

func (f file) mode() int64 {
	if f.program {
		return 0o755
	}
	return 0o644
}

// tarball packs files in order: no owner, no time but made, nothing of this machine.
func tarball(made time.Time, all []file) ([]byte, error) {
	var out bytes.Buffer
	packed := gzip.NewWriter(&out) // its best compression takes three times as long for 0.6 %
	w := tar.NewWriter(packed)
	for _, f := range all {
		head := &tar.Header{Typeflag: tar.TypeReg, Name: f.name, Size: int64(len(f.data)), Mode: f.mode(), ModTime: made, Format: tar.FormatUSTAR}
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

// zipped is tarball as a zip file, which wheels are as well.
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

// archive writes what people download for one system: all in one folder.
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

// sums writes what sha256sum -c reads.
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
