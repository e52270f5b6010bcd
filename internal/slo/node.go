package slo

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxFile bounds a file of objectives, in bytes.
const maxFile = 4 << 20

// value is a value of a YAML file with its path, for error messages.
type value struct {
	node *yaml.Node
	path string // such as objectives[0].ttft
}

// fail returns an error about the value with its line.
func (v value) fail(format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	if v.path == "" {
		return fmt.Errorf("line %d: %w", v.node.Line, err)
	}
	return fmt.Errorf("line %d: %s: %w", v.node.Line, v.path, err)
}

// open returns the value of a file that must have one document. ok is false if the file is empty.
func open(text []byte) (root value, ok bool, err error) {
	if len(text) > maxFile {
		return value{}, false, fmt.Errorf("larger than %d MiB", maxFile>>20)
	}
	var first, second yaml.Node
	documents := yaml.NewDecoder(bytes.NewReader(text))
	switch err := documents.Decode(&first); {
	case errors.Is(err, io.EOF):
		return value{}, false, nil
	case err != nil:
		return value{}, false, syntax(err)
	}
	switch err := documents.Decode(&second); {
	case err == nil:
		return value{}, false, fmt.Errorf("line %d: a second document begins: the file must have one", second.Line)
	case !errors.Is(err, io.EOF):
		return value{}, false, syntax(err)
	}
	root = value{node: first.Content[0]}.resolved()
	return root, root.node.Tag != "!!null", nil // a file with comments only
}

// syntax returns the error of the decoder on one line.
func syntax(err error) error {
	return errors.New(strings.ReplaceAll(strings.TrimPrefix(err.Error(), "yaml: "), "\n", " "))
}

// resolved follows aliases.
func (v value) resolved() value {
	for v.node.Kind == yaml.AliasNode {
		v.node = v.node.Alias
	}
	return v
}

// mapping calls read for each key of a mapping, in the order of the file. A key that is not known, or that is there
// twice, is an error: a misspelled key would otherwise drop an objective without a word.
func (v value) mapping(known []string, read func(key string, v value) error) error {
	if v.node.Kind != yaml.MappingNode {
		return v.fail("must be keys with values")
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(v.node.Content); i += 2 {
		name := v.node.Content[i]
		at := value{name, v.path}
		switch {
		case name.Kind != yaml.ScalarNode:
			return at.fail("a key must be a single word")
		case seen[name.Value]:
			return at.fail("the key %.40s is there twice", name.Value)
		case known != nil && !slices.Contains(known, name.Value):
			return at.fail("unknown key %.40s, want one of %s", name.Value, strings.Join(known, ", "))
		}
		seen[name.Value] = true
		path := name.Value
		if v.path != "" {
			path = v.path + "." + path
		}
		if err := read(name.Value, value{v.node.Content[i+1], path}.resolved()); err != nil {
			return err
		}
	}
	return nil
}

// list returns the values of a list.
func (v value) list() ([]value, error) {
	if v.node.Kind != yaml.SequenceNode {
		return nil, v.fail("must be a list")
	}
	out := make([]value, len(v.node.Content))
	for i, n := range v.node.Content {
		out[i] = value{n, fmt.Sprintf("%s[%d]", v.path, i)}.resolved()
	}
	return out, nil
}

// text returns a single value that is not empty.
func (v value) text() (string, error) {
	if v.node.Kind != yaml.ScalarNode {
		return "", v.fail("must be a single value")
	}
	if v.node.Tag == "!!null" || v.node.Value == "" {
		return "", v.fail("has no value")
	}
	return v.node.Value, nil
}
