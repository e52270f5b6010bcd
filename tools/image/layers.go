package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// source is what an image is made from.
type source struct {
	arch, binary string
	debian       string // folder with files, and control with a file for each package
	license      string // ours
	page         string // folder with the libraries that the page is made from
	version      string
	created      time.Time
}

// tree is what a layer has, by path without the leading slash.
type tree map[string]entry

type entry struct {
	data []byte
	link string // target of a symbolic link
	mode int64
	uid  int
}

// base returns the layer with what the binary runs on.
func (s source) base() (v1.Layer, error) {
	t := tree{}
	triplet := platforms[s.arch]
	keep := []string{
		"etc/ld.so.conf.d/", "usr/lib/" + triplet + "/*.so*", "usr/lib/ld-linux*", "usr/lib64/", "usr/share/zoneinfo/", "usr/share/doc/*/copyright",
	}
	// Tools that debug programs, and tables of character sets.
	leave := []string{"usr/share/zoneinfo/right/", "usr/share/zoneinfo/posix/", "usr/lib/" + triplet + "/lib{memusage.so,pcprofile.so,c_malloc_debug.so.*}"}
	if err := t.add(filepath.Join(s.debian, "files"), keep, leave); err != nil {
		return nil, err
	}
	certificates, err := authorities(os.DirFS(filepath.Join(s.debian, "files")))
	if err != nil {
		return nil, err
	}
	control, err := filepath.Glob(filepath.Join(s.debian, "control/*"))
	if err != nil || len(control) == 0 {
		return nil, errors.Join(err, fmt.Errorf("no package in %s", s.debian))
	}
	for _, file := range control {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		t.file("var/lib/dpkg/status.d/"+filepath.Base(file), data) // where scanners look for packages
	}
	t.file("etc/ssl/certs/ca-certificates.crt", certificates)
	t.file("etc/passwd", fmt.Appendf(nil, "root:x:0:0:root:/:/sbin/nologin\ngpumeter:x:%d:%[1]d:gpumeter:/var/lib/gpumeter:/sbin/nologin\n", user))
	t.file("etc/group", fmt.Appendf(nil, "root:x:0:\ngpumeter:x:%d:\n", user))
	t.file("etc/nsswitch.conf", []byte("hosts: files dns\n"))
	t.file("etc/ld.so.conf", []byte("include /etc/ld.so.conf.d/*.conf\n"))
	t.file("etc/debian_version", []byte("13\n")) // NVIDIA's container runtime then puts the driver's library where Debian would
	t["lib"] = entry{link: "usr/lib"}
	if _, ok := t["usr/lib64"]; ok || s.arch == "amd64" {
		t["lib64"] = entry{link: "usr/lib64"}
	}
	for _, loader := range []string{"usr/lib64/ld-linux-x86-64.so.2", "usr/lib/ld-linux-aarch64.so.1"} {
		if _, ok := t[loader]; ok {
			return t.layer(s.created)
		}
	}
	return nil, errors.New("the packages have no loader of dynamic libraries")
}

// program returns the layer with gpumeter, the licenses and the bill of materials.
func (s source) program() (v1.Layer, []byte, error) {
	binary, err := os.ReadFile(s.binary)
	if err != nil {
		return nil, nil, err
	}
	own, err := os.ReadFile(s.license)
	if err != nil {
		return nil, nil, err
	}
	modules, err := linked(s.binary, s.page)
	if err != nil {
		return nil, nil, err
	}
	packages, err := installed(filepath.Join(s.debian, "control"))
	if err != nil {
		return nil, nil, err
	}
	bom, err := materials(s, modules, packages)
	if err != nil {
		return nil, nil, err
	}
	t := tree{"usr/bin/gpumeter": {data: binary, mode: 0o755}, "var/lib/gpumeter": {mode: int64(fs.ModeDir) | 0o700, uid: user}}
	t.file("usr/share/doc/gpumeter/LICENSE", own)
	t.file("usr/share/doc/gpumeter/THIRD-PARTY", notices(modules))
	t.file("usr/share/doc/gpumeter/sbom.cdx.json", bom)
	layer, err := t.layer(s.created)
	return layer, bom, err
}

func (t tree) file(name string, data []byte) { t[name] = entry{data: data, mode: 0o644} }

// add adds the files and links below root that match keep and not leave: patterns, or folders that end in a slash.
func (t tree) add(root string, keep, leave []string) error {
	return filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(root, file)
		if err != nil || !matches(name, keep) || matches(name, leave) {
			return err
		}
		if d.Type()&fs.ModeSymlink != 0 {
			target, err := os.Readlink(file)
			t[name] = entry{link: target}
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		data, err := os.ReadFile(file)
		t[name] = entry{data: data, mode: int64(info.Mode().Perm()) &^ 0o022}
		return err
	})
}

func matches(name string, patterns []string) bool {
	for _, p := range patterns {
		before, rest, _ := strings.Cut(p, "{")
		inner, after, braces := strings.Cut(rest, "}")
		for alternative := range strings.SplitSeq(inner, ",") {
			if braces {
				p = before + alternative + after
			}
			if ok, _ := path.Match(p, name); ok || strings.HasSuffix(p, "/") && strings.HasPrefix(name, p) {
				return true
			}
		}
	}
	return false
}

// layer packs the tree with the folders that it needs, in order and with one time.
func (t tree) layer(created time.Time) (v1.Layer, error) {
	all := tree{}
	for name, e := range t {
		all[name] = e
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			if _, ok := t[dir]; !ok {
				all[dir] = entry{mode: int64(fs.ModeDir) | 0o755}
			}
		}
	}
	names := make([]string, 0, len(all))
	for name := range all {
		names = append(names, name)
	}
	slices.Sort(names)
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range names {
		e := all[name]
		h := &tar.Header{Name: name, Mode: e.mode & 0o7777, Uid: e.uid, Gid: e.uid, ModTime: created, Size: int64(len(e.data)), Typeflag: tar.TypeReg, Format: tar.FormatPAX}
		switch {
		case e.link != "":
			h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, e.link, 0o777
		case fs.FileMode(e.mode)&fs.ModeDir != 0:
			h.Typeflag, h.Name = tar.TypeDir, name+"/"
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(e.data); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil }
	return tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer), tarball.WithCompressionLevel(9), tarball.WithCompressedCaching)
}

// authorities joins the certificates of Debian's package, as its script for an installation would.
func authorities(root fs.FS) ([]byte, error) {
	files, err := fs.Glob(root, "usr/share/ca-certificates/mozilla/*.crt")
	if err != nil {
		return nil, err
	}
	if len(files) < 100 {
		return nil, fmt.Errorf("%d certificates of authorities", len(files))
	}
	var b bytes.Buffer
	for _, file := range files {
		data, err := fs.ReadFile(root, file)
		if err != nil {
			return nil, err
		}
		b.Write(bytes.TrimRight(data, "\n"))
		b.WriteByte('\n')
	}
	return b.Bytes(), nil
}
