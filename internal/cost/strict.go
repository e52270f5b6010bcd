package cost

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
)

// document is a parsed YAML file. It finds the lines of values for error messages.
type document struct{ root *yaml.Node }

// decodeYAML decodes a file that must have one document. It rejects unknown and duplicate keys:
// otherwise a misspelled key would silently drop a price.
func decodeYAML(text []byte, into any) (document, error) {
	if len(text) > maxFile {
		return document{}, fmt.Errorf("larger than %d MiB", maxFile>>20)
	}
	var root, second yaml.Node
	nodes := yaml.NewDecoder(bytes.NewReader(text))
	switch err := nodes.Decode(&root); {
	case errors.Is(err, io.EOF):
		return document{}, nil // an empty file
	case err != nil:
		return document{}, plainYAML(err)
	}
	switch err := nodes.Decode(&second); {
	case err == nil:
		return document{}, fmt.Errorf("line %d: a second document begins: the file must have one", second.Line)
	case !errors.Is(err, io.EOF):
		return document{}, plainYAML(err)
	}
	values := yaml.NewDecoder(bytes.NewReader(text)) // the decoder of a node cannot reject unknown keys
	values.KnownFields(true)
	if err := values.Decode(into); err != nil {
		return document{}, plainYAML(err)
	}
	return document{&root}, nil
}

// errEmpty is returned for a file of which nothing is left, as by an editor on a full disk or in the middle
// of a write: it would take all prices or quotas away. A comment says that there are none on purpose.
var errEmpty = errors.New("the file is empty: a file without rules has at least a comment")

func notEmpty(text []byte) error {
	if len(bytes.TrimSpace(text)) == 0 {
		return errEmpty
	}
	return nil
}

var (
	unknownKey = regexp.MustCompile(`field (\S+) not found in type [\w.]+`)
	wrongType  = regexp.MustCompile("cannot unmarshal !!(\\S+) (?:`([^`]*)` )?into ([^\\s;]+)")
)

// plainYAML returns the errors of the decoder on one line, without names of Go types.
func plainYAML(err error) error {
	text := strings.TrimPrefix(err.Error(), "yaml: ")
	if list := (*yaml.TypeError)(nil); errors.As(err, &list) {
		text = strings.Join(list.Errors, "; ")
	}
	text = unknownKey.ReplaceAllString(text, "unknown key $1")
	text = wrongType.ReplaceAllStringFunc(text, func(s string) string {
		m := wrongType.FindStringSubmatch(s)
		want := "a single value"
		switch {
		case strings.HasPrefix(m[3], "[]"):
			want = "a list"
		case strings.HasPrefix(m[3], "map["), strings.HasPrefix(m[3], "cost."), strings.HasPrefix(m[3], "struct"):
			want = "keys with values"
		}
		if m[2] != "" {
			return fmt.Sprintf("%.40q must be %s", m[2], want)
		}
		return "must be " + want
	})
	return errors.New(strings.ReplaceAll(text, "\n", " "))
}

// fieldError is an error about one key of an entry.
type fieldError struct {
	key string
	err error
}

func (e *fieldError) Error() string { return e.key + ": " + e.err.Error() }
func (e *fieldError) Unwrap() error { return e.err }

// of returns an error about one key of an entry, nil if err is nil.
func of(key string, err error) error {
	if err == nil {
		return nil
	}
	return &fieldError{key, err}
}

// at adds the line and the path to an error about an entry: keys and indexes from the top.
func (d document) at(err error, path ...any) error {
	text := pathText(path)
	for inner := err; ; { // the path continues in the error: match, then a label
		f := (*fieldError)(nil)
		if !errors.As(inner, &f) {
			break
		}
		path, inner = append(path, f.key), f.err
	}
	return fmt.Errorf("line %d: %s: %w", d.line(path), text, err)
}

// pathText returns a path as in prices[0].rates[1].
func pathText(path []any) string {
	var text strings.Builder
	for _, p := range path {
		if i, ok := p.(int); ok {
			fmt.Fprintf(&text, "[%d]", i)
			continue
		}
		if text.Len() > 0 {
			text.WriteByte('.')
		}
		fmt.Fprint(&text, p)
	}
	return text.String()
}

// line returns the line of the value at a path, or of the innermost value around it that exists.
func (d document) line(path []any) int {
	if n := d.find(path); n != nil {
		return n.Line
	}
	return 0
}

// find returns the value at a path, or the innermost value around it that exists.
func (d document) find(path []any) *yaml.Node {
	n := d.root
	if n == nil {
		return nil
	}
	if n.Kind == yaml.DocumentNode {
		n = n.Content[0]
	}
	for _, p := range path {
		for n.Kind == yaml.AliasNode {
			n = n.Alias
		}
		next := (*yaml.Node)(nil)
		switch p := p.(type) {
		case int:
			if n.Kind == yaml.SequenceNode && p < len(n.Content) {
				next = n.Content[p]
			}
		case string:
			for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
				if n.Content[i].Value == p {
					next = n.Content[i+1]
				}
			}
		}
		if next == nil {
			break
		}
		n = next
	}
	return n
}
