package slurm

import (
	"io"
	"io/fs"
	"os"
	"strings"
	"unicode/utf8"
)

// Text returns s as one line of valid text, empty where Slurm says that there is nothing.
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

// IsNumber reports whether s can be the number of a job or a task.
func IsNumber(s string) bool {
	return s != "" && len(s) <= 10 && strings.Trim(s, "0123456789") == ""
}

// ReadFile reads a file, at most limit bytes of it. What is no file, a pipe that nobody
// writes to, is an error.
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

// IsWord reports whether s is short and printable: what becomes an attribute is.
func IsWord(s string) bool {
	return s != "" && len(s) <= 32 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789_") == ""
}
