//go:build linux

package gaudi

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"

	"github.com/gpumeter/gpumeter/internal/device"
	"github.com/gpumeter/gpumeter/internal/dlopen"
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
// then the usual ones. The loader never searches by name: it would map a broken file that
// dlopen.Open rejects.
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

// library is an open libhlml. Functions are looked up by name at first use.
type library struct {
	*dlopen.Library
	symbols sync.Map // name -> *symbol
}

type symbol struct {
	name string
	fn   dlopen.Func
}

// get returns the function called name. Its fn is not OK if the library does not have it.
func (l *library) get(name string) *symbol {
	if s, ok := l.symbols.Load(name); ok {
		return s.(*symbol)
	}
	s, _ := l.symbols.LoadOrStore(name, &symbol{name, l.Lookup(name)})
	return s.(*symbol)
}

// missing returns the functions that were looked up and not found.
func (l *library) missing() []string {
	var names []string
	l.symbols.Range(func(_, v any) bool {
		if s := v.(*symbol); !s.fn.OK() {
			names = append(names, s.name)
		}
		return true
	})
	return names
}

// openLibrary opens the library that the options name, or the first usable one found. On a
// machine without one the error is device.ErrAbsent.
func openLibrary(o Options) (*library, error) {
	if o.Library != "" {
		return openFile(o.Library)
	}
	var errs []error
	for _, file := range candidates(o.root(), o.LibraryDirs) {
		lib, err := openFile(file)
		switch {
		case err == nil:
			return lib, nil
		case !errors.Is(err, fs.ErrNotExist):
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return nil, fmt.Errorf("no %s found: %w", soname, device.ErrAbsent)
}

func openFile(file string) (*library, error) {
	l, err := dlopen.Open(file)
	if err != nil {
		return nil, err
	}
	lib := &library{Library: l}
	if !lib.get("hlml_init").fn.OK() {
		return nil, errors.Join(fmt.Errorf("%s is not Habana's management library: it has no hlml_init", file), l.Close())
	}
	return lib, nil
}
