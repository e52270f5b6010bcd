//go:build linux

package dlopen_test

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/gpumeter/gpumeter/internal/dlopen"
)

// Open checks the file before the dynamic loader maps it. A truncated library, as left by an
// interrupted driver installation, is an error instead of a crash with SIGBUS.
func ExampleCheckFile() {
	dir, err := os.MkdirTemp("", "lib")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "libnvidia-ml.so.1")
	if err := os.WriteFile(path, []byte("\x7fELF"), 0o600); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("usable:", dlopen.CheckFile(path) == nil)
	// Output: usable: false
}

// C functions write NUL-terminated strings into a buffer of the caller.
func ExampleString() {
	buf := make([]byte, 96)
	copy(buf, "NVIDIA H200")
	fmt.Printf("%q\n", dlopen.String(buf))
	// Output: "NVIDIA H200"
}
