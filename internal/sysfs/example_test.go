//go:build linux

package sysfs_test

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/gpumeter/gpumeter/internal/sysfs"
)

// A driver publishes one value per file. A file that does not exist means that the device
// does not have the attribute, which is not a failure.
func ExampleDir() {
	root, err := os.MkdirTemp("", "sys")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(root)
	for name, content := range map[string]string{"card2/vendor": "0x1002\n", "card10/vendor": "0x10de\n"} {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			fmt.Println(err)
			return
		}
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			fmt.Println(err)
			return
		}
	}

	for _, card := range sysfs.Dir(root).Glob("card*") {
		vendor, err := card.Uint("vendor")
		fmt.Printf("%s %#x %v\n", card.Base(), vendor, err)
		if _, err := card.Text("unique_id"); sysfs.Absent(err) {
			fmt.Println("no unique_id")
		}
	}
	// Output:
	// card2 0x1002 <nil>
	// no unique_id
	// card10 0x10de <nil>
	// no unique_id
}

func ExampleLinkGeneration() {
	fmt.Println(sysfs.LinkGeneration("16.0 GT/s PCIe"))
	fmt.Println(sysfs.LinkGeneration("Unknown")) // the link is down
	// Output:
	// 4
	// 0
}
