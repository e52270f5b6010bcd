package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

var when = time.Unix(1794657600, 0).UTC()

// debian writes what the base layer is made from.
func debian(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, data := range map[string]string{
		"files/usr/lib64/ld-linux-x86-64.so.2": "loader", "files/usr/lib/x86_64-linux-gnu/libc.so.6": "libc", "files/usr/lib/x86_64-linux-gnu/libmemusage.so": "",
		"files/usr/lib/x86_64-linux-gnu/gconv/EUC-JP.so": "", "files/usr/share/zoneinfo/Europe/Berlin": "zone", "files/usr/share/zoneinfo/right/Europe/Berlin": "",
		"files/usr/share/doc/libc6/copyright": "terms", "files/usr/bin/ldd": "", "control/libc6": "Package: libc6\nVersion: 2.41-12\nArchitecture: amd64\n",
	} {
		put(t, filepath.Join(dir, name), data)
	}
	for i := range 100 {
		put(t, filepath.Join(dir, "files/usr/share/ca-certificates/mozilla", string(rune('a'+i%26))+strings.Repeat("x", i)+".crt"), "certificate\n")
	}
	return dir
}

func put(t *testing.T, file, data string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(data), 0o644); err != nil {
		t.Fatal(err)
	}
}

// The order of a map or the time of a file must not be in a layer: the same commit would give other bytes.
func TestLayerIsReproducible(t *testing.T) {
	var digests []string
	for range 3 {
		s := source{arch: "amd64", debian: debian(t), created: when}
		layer, err := s.base()
		if err != nil {
			t.Fatal(err)
		}
		digest, err := layer.Digest()
		if err != nil {
			t.Fatal(err)
		}
		digests = append(digests, digest.String())
	}
	if digests = slices.Compact(digests); len(digests) != 1 {
		t.Errorf("three layers of the same files: %v", digests)
	}
}

// An image with programs, or without the loader that gpumeter names, must not be made.
func TestBase(t *testing.T) {
	tr := tree{}
	keep := []string{"usr/lib/x86_64-linux-gnu/*.so*", "usr/lib64/", "usr/share/zoneinfo/", "usr/share/doc/*/copyright"}
	leave := []string{"usr/share/zoneinfo/right/", "usr/lib/x86_64-linux-gnu/lib{memusage,pcprofile}.so"}
	if err := tr.add(filepath.Join(debian(t), "files"), keep, leave); err != nil {
		t.Fatal(err)
	}
	var got []string
	for name := range tr {
		got = append(got, name)
	}
	slices.Sort(got)
	want := []string{"usr/lib/x86_64-linux-gnu/libc.so.6", "usr/lib64/ld-linux-x86-64.so.2", "usr/share/doc/libc6/copyright", "usr/share/zoneinfo/Europe/Berlin"}
	if !slices.Equal(got, want) {
		t.Errorf("the layer has %q, want %q", got, want)
	}
	dir := debian(t)
	if err := os.Remove(filepath.Join(dir, "files/usr/lib64/ld-linux-x86-64.so.2")); err != nil {
		t.Fatal(err)
	}
	s := source{arch: "amd64", debian: dir, created: when}
	if _, err := s.base(); err == nil || !strings.Contains(err.Error(), "loader") {
		t.Errorf("without a loader: %v", err)
	}
}

// A dependency whose license we may not pass on, or which has none, must not be distributed.
func TestLicenses(t *testing.T) {
	for name, c := range map[string]struct{ file, text, want string }{
		"none":    {"README", "all rights reserved", "no license is known"},
		"unknown": {"LICENSE", "You may look at it.", "no license is known"},
		"copyleft": {"COPYING", `GNU AFFERO GENERAL PUBLIC LICENSE
Version 3, 19 November 2007
This program is free software: you can redistribute it and/or modify it under the terms of the GNU Affero General Public License as published by the Free Software Foundation, either version 3 of the License, or (at your option) any later version.`, "is not allowed"},
		"ISC": {"LICENSE.md", `ISC License

Permission to use, copy, modify, and/or distribute this software for any purpose with or without fee is hereby granted, provided that the above copyright notice and this permission notice appear in all copies.

THE SOFTWARE IS PROVIDED "AS IS" AND THE AUTHOR DISCLAIMS ALL WARRANTIES WITH REGARD TO THIS SOFTWARE INCLUDING ALL IMPLIED WARRANTIES OF MERCHANTABILITY AND FITNESS. IN NO EVENT SHALL THE AUTHOR BE LIABLE FOR ANY SPECIAL, DIRECT, INDIRECT, OR CONSEQUENTIAL DAMAGES OR ANY DAMAGES WHATSOEVER RESULTING FROM LOSS OF USE, DATA OR PROFITS, WHETHER IN AN ACTION OF CONTRACT, NEGLIGENCE OR OTHER TORTIOUS ACTION, ARISING OUT OF OR IN CONNECTION WITH THE USE OR PERFORMANCE OF THIS SOFTWARE.`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			put(t, filepath.Join(dir, c.file), c.text)
			var got component
			err := got.read(dir)
			if (c.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q; licenses %v", err, c.want, got.licenses)
			}
		})
	}
}

func TestNoticesHaveEachTextOnce(t *testing.T) {
	got := string(notices([]component{
		{name: "a", version: "1", texts: []text{{"LICENSE", "terms"}}}, {name: "b", version: "2", texts: []text{{"LICENSE", "terms"}, {"NOTICE", "thanks"}}},
	}))
	for part, want := range map[string]int{"\nterms\n": 1, "\nthanks\n": 1, "a 1: LICENSE\nb 2: LICENSE\n": 1} {
		if n := strings.Count(got, part); n != want {
			t.Errorf("%q is there %d times, want %d:\n%s", part, n, want, got)
		}
	}
}
