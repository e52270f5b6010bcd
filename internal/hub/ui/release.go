//go:build release

package ui

import _ "embed"

// released makes the compiler refuse a release without the dashboard: the file that it names
// is there only after make web. make release sets the tag.
//
//go:embed dist/index.html
var released string
