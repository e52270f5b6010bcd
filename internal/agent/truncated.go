//go:build linux

package agent

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// dropTruncated removes a truncated record from the end of the file of --otlp-file, which a
// killed agent leaves behind. The next record would be appended to it, and both be lost. A file
// that does not end like ours stays as it is.
func dropTruncated(path string) error {
	st, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && (!st.Mode().IsRegular() || st.Size() == 0) {
		return nil
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("cannot open the OTLP file: %w", err)
	}
	defer f.Close()
	buf := make([]byte, 1<<16)
	for end := st.Size(); end > 0; {
		begin := max(0, end-int64(len(buf)))
		part := buf[:end-begin]
		if _, err := f.ReadAt(part, begin); err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("cannot read the OTLP file: %w", err)
		}
		at := begin // of the last line
		if i := bytes.LastIndexByte(part, '\n'); i >= 0 {
			at = begin + int64(i) + 1
		} else if begin > 0 {
			end = begin
			continue
		}
		first := make([]byte, 1)
		if _, err := f.ReadAt(first, at); err != nil || first[0] != '{' { // at the end: the last line is whole
			return nil
		}
		if err := f.Truncate(at); err != nil {
			return fmt.Errorf("cannot remove a truncated record from the OTLP file: %w", err)
		}
		return nil
	}
	return nil
}
