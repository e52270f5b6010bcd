package fleettest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// HLML builds the fake libhlml.so of the gaudi package in a directory and returns its path.
// It needs gcc.
func HLML(folder, script string) (string, error) {
	file, err := source("internal/device/gaudi/testdata/fakehlml/fakehlml.c")
	if err != nil {
		return "", err
	}
	library := filepath.Join(folder, "libhlml.so")
	if out, err := exec.Command("gcc", "-shared", "-fPIC", "-O1", "-pthread", "-o", library, file, "-ldl").CombinedOutput(); err != nil {
		return "", fmt.Errorf("cannot build the fake HLML library: %w\n%s", err, out)
	}
	return library, ScriptHLML(library, script)
}

// ScriptHLML replaces the script of a fake library atomically. It takes effect at the next
// call.
func ScriptHLML(library, script string) error {
	return replace(filepath.Dir(library), filepath.Join(filepath.Dir(library), "fake.conf"), []byte(script))
}

// Script returns a script in testdata.
func Script(name string) (string, error) {
	file, err := Files(name)
	if err != nil {
		return "", err
	}
	b, err := os.ReadFile(file)
	return string(b), err
}
