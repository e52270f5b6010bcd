package slurm

import (
	"io"
	"io/fs"
	"os"
	"strings"
	"unicode/utf8"
)

// Text returns s as one line of valid UTF-8, or the empty string for Slurm's words for
// nothing, (null) and N/A.
func Text(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, string(utf8.RuneError)))
	s = strings.TrimSpace(s)
	if s == "(null)" || s == "N/A" {
		return ""
	}
	return s
}

// IsNumber reports whether s can be a job or task number.
func IsNumber(s string) bool {
	return s != "" && len(s) <= 10 && strings.Trim(s, "0123456789") == ""
}

// ReadFile reads at most limit bytes of a regular file. Any other kind of file is an
// error: opening a pipe without a writer would block.
func ReadFile(path string, limit int64) ([]byte, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "read", Path: path, Err: fs.ErrInvalid}
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, limit))
}

// IsWord reports whether s is short and printable enough to become an attribute value.
func IsWord(s string) bool {
	return s != "" && len(s) <= 32 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789_") == ""
}
