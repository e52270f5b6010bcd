//go:build linux

package gaudi

import (
	"path/filepath"

	"github.com/gpumeter/gpumeter/internal/device/vendorlib"
)

const soname = "libhlml.so"

// libraryDirs are the directories where Intel's packages and container images install
// libhlml.
var libraryDirs = []string{
	"/usr/lib/habanalabs",
	"/usr/lib64/habanalabs",
	"/usr/local/lib/habanalabs",
	"/usr/lib/x86_64-linux-gnu",
	"/usr/lib64",
	"/usr/lib",
}

// candidates returns the files to try below root, best first: the caller's directories,
// then the usual ones.
func candidates(root string, first []string) []string {
	var files []string
	for _, dir := range first {
		files = append(files, filepath.Join(dir, soname))
	}
	for _, dir := range libraryDirs {
		files = append(files, filepath.Join(root, dir, soname))
	}
	return files
}

// hlml describes libhlml.
var hlml = vendorlib.Kind{
	Name: "Habana's management library", File: soname, Init: "hlml_init",
	Codes: vendorlib.Codes{
		Lost: uint32(errLost), NotSupported: uint32(errNotSupported), Missing: uint32(errMissing),
		Error: func(code uint32) error { return ret(code) },
		Never: func(code uint32) bool { return ret(code).never() },
		Quiet: func(code uint32) bool { return ret(code).quiet() },
	},
}

// openLibrary opens the library that the options name, or the first usable one found. On a
// machine without one the error is device.ErrAbsent.
func openLibrary(o Options) (*vendorlib.Library, error) {
	return hlml.Open(o.Library, candidates(o.root(), o.LibraryDirs))
}
