package kmsg_test

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/gpumeter/gpumeter/internal/kmsg"
)

// Each reads what the log holds now. Programs may write to the kernel log, too, so a reader
// that trusts the text must check Kernel.
func ExampleEach() {
	dir, err := os.MkdirTemp("", "kmsg")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "kmsg") // on a real machine /dev/kmsg
	log := "4,376,89061206,-;NVRM: Xid (PCI:0000:00:06): 31, pid=610, name=bad\n" +
		"12,377,89070000,-;NVRM: Xid (PCI:0000:00:06): 79, forged by a program\n"
	if err := os.WriteFile(path, []byte(log), 0o600); err != nil {
		fmt.Println(err)
		return
	}

	err = kmsg.Each(path, func(r kmsg.Record) {
		fmt.Println(r.Seq, r.Time, "kernel:", r.Kernel())
	})
	fmt.Println(err)
	// Output:
	// 376 1m29.061206s kernel: true
	// 377 1m29.07s kernel: false
	// <nil>
}
