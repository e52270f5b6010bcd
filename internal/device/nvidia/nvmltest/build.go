package nvmltest

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
)

var (
	buildLock sync.Mutex
	builds    = map[string][]byte{} // by the omitted symbols
	objects   [][]byte              // the compiled sources, for all libraries of this process
)

// build returns the fake library without the given symbols. Builds are kept in the user's cache
// directory, by the hash of their inputs: a dozen packages use them, each in a process of its own.
func build(without []string) ([]byte, error) {
	buildLock.Lock()
	defer buildLock.Unlock()
	name := strings.Join(without, " ")
	if library, ok := builds[name]; ok {
		return library, nil
	}
	files, key, err := ingredients(name)
	if err != nil {
		return nil, err
	}
	kept := ""
	if dir, err := os.UserCacheDir(); err == nil { // without a cache directory the library is built each time
		kept = filepath.Join(dir, "gpumeter", "fakenvml", key)
	}
	library, err := os.ReadFile(kept)
	if err != nil {
		if library, err = compile(files, without); err != nil {
			return nil, err
		}
		keep(kept, library)
	}
	builds[name] = library
	return library, nil
}

// compilation lists the flags for compiling and linking the sources.
var compilation = []string{"-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread"}

// ingredients returns the C files, and a hash of them, the compiler version and the flags.
func ingredients(without string) (files []string, key string, err error) {
	folder, err := sources()
	if err != nil {
		return nil, "", err
	}
	if files, err = filepath.Glob(filepath.Join(folder, "*.c")); err != nil {
		return nil, "", err
	}
	headers, err := filepath.Glob(filepath.Join(folder, "*.h"))
	if err != nil {
		return nil, "", err
	}
	version, err := exec.Command("gcc", "--version").Output()
	if err != nil {
		return nil, "", fmt.Errorf("cannot run gcc: %w", err)
	}
	hash := sha256.New()
	fmt.Fprintf(hash, "%s\n%s\n%q\n%q\n", version, runtime.GOARCH, compilation, without)
	for _, file := range append(headers, files...) {
		src, err := os.ReadFile(file)
		if err != nil {
			return nil, "", err
		}
		fmt.Fprintf(hash, "%s %d\n%s", filepath.Base(file), len(src), src)
	}
	return files, fmt.Sprintf("%x", hash.Sum(nil)), nil
}

// compile builds the library. The sources are compiled once for all libraries of a process.
func compile(files, without []string) ([]byte, error) {
	dir, err := os.MkdirTemp("", "fakenvml")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	gcc := func(in string, args ...string) error {
		cmd := exec.Command("gcc", append(compilation[:len(compilation):len(compilation)], args...)...)
		cmd.Dir = in
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("cannot build the fake NVML library: %w\n%s", err, out)
		}
		return nil
	}
	if objects == nil {
		made, err := os.MkdirTemp("", "fakenvml")
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(made)
		if err := gcc(made, append([]string{"-c"}, files...)...); err != nil {
			return nil, err
		}
		for _, file := range files {
			object, err := os.ReadFile(filepath.Join(made, strings.TrimSuffix(filepath.Base(file), ".c")+".o"))
			if err != nil {
				return nil, err
			}
			objects = append(objects, object)
		}
	}
	target := filepath.Join(dir, "libnvidia-ml.so.1")
	args := []string{"-shared", "-o", target}
	if len(without) > 0 {
		version := filepath.Join(dir, "version")
		text := "{ global: *; local: " + strings.Join(without, "; ") + "; };\n"
		if err := os.WriteFile(version, []byte(text), 0o644); err != nil {
			return nil, err
		}
		args = append(args, "-Wl,--version-script="+version)
	}
	for i, object := range objects {
		file := filepath.Join(dir, fmt.Sprint(i, ".o"))
		if err := os.WriteFile(file, object, 0o600); err != nil {
			return nil, err
		}
		args = append(args, file)
	}
	if err := gcc(dir, append(args, "-ldl", "-lm")...); err != nil {
		return nil, err
	}
	return os.ReadFile(target)
}

// keep stores a build in the cache, atomically because other processes may read it. A failure to write
// the cache only costs time.
func keep(path string, library []byte) {
	if path == "" || os.MkdirAll(filepath.Dir(path), 0o755) != nil {
		return
	}
	f, err := os.CreateTemp(filepath.Dir(path), "new")
	if err != nil {
		return
	}
	_, err = f.Write(library)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
}
