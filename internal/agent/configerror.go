//go:build linux

package agent

import (
	"errors"
	"io/fs"
	"regexp"
	"slices"
	"strings"
)

// configError is an error in a configuration with a text for people.
type configError struct {
	text string
	err  error
}

func (e *configError) Error() string { return e.text }

func (e *configError) Unwrap() error { return e.err }

// explained returns err with a readable text. For an error in the configuration the text
// says where the bad key is, with its whole path, and little else.
func explained(err error) error {
	if err == nil || !strings.HasPrefix(err.Error(), "failed to get config: ") {
		return err
	}
	return &configError{explain(err), err}
}

func explain(err error) string {
	text := err.Error()
	if list := badKeys(err, ""); len(list) > 0 {
		slices.Sort(list) // the Collector goes through maps
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

// decodeError is mapstructure's: what is wrong below the key called Name.
type decodeError interface {
	error
	Name() string
	Unwrap() error
}

var reComponent = regexp.MustCompile(`^error reading configuration for "([^"]+)": `)

// badKeys returns a phrase for each decoding error below err, which is at path.
func badKeys(err error, path string) (list []string) {
	if err == nil {
		return nil
	}
	if m := reComponent.FindStringSubmatch(err.Error()); m != nil {
		path = join(path, m[1])
	}
	switch e := err.(type) { //nolint:errorlint // each error of the tree is looked at by itself
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
	if before, list, ok := strings.Cut(problem, "(valid values: ["); ok { // in the order of a map
		values := strings.Fields(strings.TrimSuffix(list, "])"))
		slices.Sort(values)
		problem = before + "(valid values: [" + strings.Join(values, " ") + "])"
	}
	keys, ok := strings.CutPrefix(problem, "has invalid keys: ")
	if !ok {
		return "a wrong value at " + path + ": " + problem
	}
	paths := strings.Split(keys, ", ")
	for i := range paths {
		paths[i] = join(path, paths[i])
	}
	return "unknown keys: " + strings.Join(paths, ", ")
}

// reGoType matches the name that mapstructure gives to what has none: its Go type.
var reGoType = regexp.MustCompile(`^[a-z]\w*\.\w*[A-Z]\w*$`)

// keyPath spells a key as the Collector's messages do. The names of metrics keep their
// dots.
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
