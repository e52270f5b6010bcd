//go:build bench

package readers

import (
	"bytes"
	"encoding/binary"
	"path/filepath"
	"syscall"
)

// parseOpens parses inotify events. Opening a folder causes an event on the folder and one on its parent:
// only the first counts.
func parseOpens(b []byte, folders map[int32]string) []opened {
	var list []opened
	for len(b) >= syscall.SizeofInotifyEvent {
		w, mask, size := int32(binary.NativeEndian.Uint32(b)), binary.NativeEndian.Uint32(b[4:]), int(binary.NativeEndian.Uint32(b[12:]))
		name := string(bytes.TrimRight(b[syscall.SizeofInotifyEvent:][:size], "\x00"))
		b = b[syscall.SizeofInotifyEvent+size:]
		folder := mask&syscall.IN_ISDIR != 0
		if folder != (name == "") {
			continue
		}
		list = append(list, opened{filepath.Join(folders[w], name), folder})
	}
	return list
}
