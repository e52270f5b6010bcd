//go:build linux

package agent

import (
	"errors"
	"io/fs"
	"regexp"
	"slices"
	"strings"
)

// configError is a configuration error with a readable text.
type configError struct {
	text string
	err  error
}

func (e *configError) Error() string { return e.text }

func (e *configError) Unwrap() error { return e.err }

// explained returns err with a readable text. The text of a configuration error names the full
// path of the invalid key, and little else.
func explained(err error) error {
	if err == nil || !strings.HasPrefix(err.Error(), "failed to get config: ") {
		return err
	}
	return &configError{explain(err), err}
}

func explain(err error) string {
	text := err.Error()
	if list := badKeys(err, ""); len(list) > 0 {
		slices.Sort(list) // the Collector iterates over maps
		return "the configuration has " + strings.Join(list, "; ")
	}
	if file, ok := errors.AsType[*fs.PathError](err); ok {
		return "cannot read the configuration: " + file.Error()
	}
	if _, problem, ok := strings.Cut(text, "not valid YAML: "); ok {
		return "the configuration is not valid YAML: " + strings.TrimPrefix(problem, "yaml: ")
	}
	if strings.Contains(text, "cannot be used as a Conf") {
		return "the configuration is not a map of keys"
	}
	return text
}

// decodeError is mapstructure's error for the value of the key Name.
type decodeError interface {
	error
	Name() string
	Unwrap() error
}

var reComponent = regexp.MustCompile(`^error reading configuration for "([^"]+)": `)

// badKeys returns a phrase for each decoding error in the tree of err, whose key is path.
func badKeys(err error, path string) (list []string) {
	if err == nil {
		return nil
	}
	if m := reComponent.FindStringSubmatch(err.Error()); m != nil {
		path = join(path, m[1])
	}
	switch e := err.(type) { //nolint:errorlint // walks the tree node by node
	case decodeError:
		path = join(path, keyPath(e.Name()))
		if list = badKeys(e.Unwrap(), path); len(list) == 0 {
			list = []string{badKey(path, e.Unwrap().Error())}
		}
	case interface{ Unwrap() []error }:
		for _, inner := range e.Unwrap() {
			list = append(list, badKeys(inner, path)...)
		}
	case interface{ Unwrap() error }:
		return badKeys(e.Unwrap(), path)
	}
	return list
}

func badKey(path, problem string) string {
	if before, list, ok := strings.Cut(problem, "(valid values: ["); ok { // in random map order
		values := strings.Fields(strings.TrimSuffix(list, "])"))
		slices.Sort(values)
		problem = before + "(valid values: [" + strings.Join(values, " ") + "])"
	}
	keys, ok := strings.CutPrefix(problem, "has invalid keys: ")
	if !ok {
		return "an invalid value at " + path + ": " + problem
	}
	paths := strings.Split(keys, ", ")
	for i := range paths {
		paths[i] = join(path, paths[i])
	}
	return "unknown keys: " + strings.Join(paths, ", ")
}

// reGoType matches the Go type that mapstructure uses as the name of an unnamed value.
var reGoType = regexp.MustCompile(`^[a-z]\w*\.\w*[A-Z]\w*$`)

// keyPath formats a key as the Collector's messages do. Metric names keep their dots.
func keyPath(key string) string {
	if reGoType.MatchString(key) {
		return ""
	}
	if metric, ok := strings.CutPrefix(key, "metrics."); ok {
		return join("metrics", metric)
	}
	return strings.NewReplacer(".", "::", "[", "::", "]", "").Replace(key)
}

func join(path, key string) string {
	if path == "" || key == "" {
		return path + key
	}
	return path + "::" + key
}
