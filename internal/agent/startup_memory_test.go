//go:build linux

package agent

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Catches memory that was written to and would be lost, and another file's.
func TestClean(t *testing.T) {
	const none, some = "Rss: 4 kB\nAnonymous:             0 kB\nSwap: 0 kB\n", "Anonymous:             4 kB\n"
	text := "00400000-01a4c000 r-xp 00000000 fe:00 1 /usr/bin/gpumeter\n" + none +
		"01a4c000-032ba000 r--p 0164c000 fe:00 1 /usr/bin/gpumeter\n" + none +
		"032ba000-032bb000 r--p 0164c000 fe:00 1 /usr/bin/gpumeter\n" + some + // relocated by the loader
		"032bb000-03360000 rw-p 02eba000 fe:00 1 /usr/bin/gpumeter\n" + none +
		"03360000-033f0000 rw-p 00000000 00:00 0\n" + none +
		"7f0000000000-7f0000001000 r-xp 00000000 fe:00 2 /usr/lib/libc.so.6\n" + none +
		"7f0000002000-7f0000003000 r--s 00000000 fe:00 1 /usr/bin/gpumeter\n" + none +
		"7f0000004000-7f0000005000 r-xp 00000000 fe:00 1 /usr/bin/gpumeter (deleted)\n" + none + "nonsense\n"
	want := []mapping{{0x400000, 0x1a4c000}, {0x1a4c000, 0x32ba000}}
	if diff := cmp.Diff(want, clean(text, "/usr/bin/gpumeter"), cmp.AllowUnexported(mapping{})); diff != "" {
		t.Error(diff)
	}
}
