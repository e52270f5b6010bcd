//go:build linux

package cli

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// commands returns every command by its name without gpumeter.
func commands(cmd *cobra.Command, prefix string) map[string]*cobra.Command {
	all := map[string]*cobra.Command{}
	for _, c := range cmd.Commands() {
		name := strings.TrimSpace(prefix + " " + c.Name())
		if c.Name() == "help" || c.Name() == "completion" || c.Hidden {
			continue
		}
		all[name] = c
		maps.Copy(all, commands(c, name))
	}
	return all
}

// defaultText returns the default of a flag as documented, the same for every user.
func defaultText(f *pflag.Flag) string {
	const state = "/var/lib/gpumeter%[1]s for root, else $XDG_STATE_HOME/gpumeter%[1]s or ~/.local/state/gpumeter%[1]s"
	switch f.DefValue {
	case "", "false", "[]", "0", "0s":
		return ""
	case defaultState():
		return fmt.Sprintf(state, "")
	case filepath.Join(defaultState(), "hub"):
		return fmt.Sprintf(state, "/hub")
	case defaultSocket():
		return "/run/gpumeter/agent.sock for root, else $XDG_RUNTIME_DIR/gpumeter-agent.sock"
	}
	return f.DefValue
}

// Catches a flag that is not documented, and a page that describes a flag as it was.
func TestFlagsDocument(t *testing.T) {
	type row struct{ flag, text string }
	users := map[row][]string{}
	for name, c := range commands(newRoot("test"), "") {
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Name == "help" || f.Hidden {
				return
			}
			kind, text := pflag.UnquoteUsage(f)
			r := row{flag: "--" + f.Name, text: text}
			if f.Shorthand != "" {
				r.flag = "-" + f.Shorthand + ", " + r.flag
			}
			if kind != "" {
				r.flag += " " + kind
			}
			if d := defaultText(f); d != "" && !strings.Contains(text, "(default") {
				r.text += " (default: " + d + ")"
			}
			users[r] = append(users[r], name)
		})
	}
	var rows []row
	for r, names := range users {
		slices.Sort(names)
		rows = append(rows, r)
	}
	key := func(r row) string {
		_, name, _ := strings.Cut(r.flag, "--")
		return name
	}
	slices.SortFunc(rows, func(a, b row) int { return cmp.Or(cmp.Compare(key(a), key(b)), slices.Compare(users[a], users[b])) })
	var b bytes.Buffer
	b.WriteString("[comment]: <> (Written by go test -update from the commands. Do not edit.)\n\n# Flags\n\nEvery flag of every command. [Command line](cli.md) explains how they go together.\n\n")
	b.WriteString("| flag | commands | what |\n|---|---|---|\n")
	for _, r := range rows {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", r.flag, strings.Join(users[r], ", "), strings.ReplaceAll(r.text, "|", "\\|"))
	}
	const path = "../../docs/flags.md"
	if flag.Lookup("update").Value.String() == "true" {
		if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if want, err := os.ReadFile(path); err != nil || !bytes.Equal(want, b.Bytes()) {
		t.Errorf("docs/flags.md is out of date, rewrite it with make generate (%v)", err)
	}
}

// foreign are flags of other programs in our documentation, by program.
var foreign = map[string]string{
	"all": "sinfo", "config-file": "epp", "config.file": "prometheus", "details": "scontrol", "duplicates": "sacct", "gpus-per-task": "sbatch", "local": "scontrol", "unix-socket": "curl",
	"model-server-metrics-port": "epp", "pool-name": "epp", "pool-namespace": "epp", "reset": "sdiag", "states": "sinfo", "tokenizer-metrics-allowed-custom-labels": "sglang",
	"verbose": "scontrol", "web.enable-otlp-receiver": "prometheus",
}

var (
	reFlag    = regexp.MustCompile(`(^|[\s\x60(\[|"'=,/])--([a-z][a-z0-9.-]*[a-z0-9])`)
	reCommand = regexp.MustCompile(`\bgpumeter ([a-z]+(?: jobs| check| rules)?)([^\x60|>;&,\n]*)`)
)

// Catches documentation of a flag that does not exist, or that another command has.
func TestDocumentedFlagsExist(t *testing.T) {
	all := commands(newRoot("test"), "")
	known := map[string]bool{"help": true, "version": true}
	for _, c := range all {
		c.Flags().VisitAll(func(f *pflag.Flag) { known[f.Name] = true })
	}
	for path, text := range documents(t) {
		if filepath.Base(path) == "CHANGELOG.md" {
			continue // flags of older versions
		}
		for n, line := range strings.Split(strings.ReplaceAll(text, "\\|", " "), "\n") {
			for _, m := range reFlag.FindAllStringSubmatch(line, -1) {
				if !known[m[2]] && foreign[m[2]] == "" {
					t.Errorf("%s:%d: no command has --%s; a flag of another program belongs into foreign", path, n+1, m[2])
				}
			}
			for _, m := range reCommand.FindAllStringSubmatch(line, -1) {
				c := all[m[1]]
				if c == nil {
					continue // prose
				}
				for _, f := range reFlag.FindAllStringSubmatch(m[2], -1) {
					if f[2] != "help" && c.Flags().Lookup(f[2]) == nil && foreign[f[2]] == "" {
						t.Errorf("%s:%d: gpumeter %s has no --%s", path, n+1, m[1], f[2])
					}
				}
			}
		}
	}
}

// documents returns our Markdown files by path.
func documents(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "node_modules" || d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") && d.Name() != "..") {
			return fs.SkipDir
		}
		if filepath.Ext(path) != ".md" {
			return nil
		}
		text, err := os.ReadFile(path)
		all[path] = string(text)
		return err
	})
	if err != nil || len(all) < 20 {
		t.Fatalf("%d documents (%v)", len(all), err)
	}
	return all
}

var (
	reLink    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	reHeading = regexp.MustCompile(`(?m)^#+ (.+)$`)
	reNoSlug  = regexp.MustCompile(`[^\pL\pN _-]`)
)

// Catches a link to a file, a picture or a heading that does not exist.
func TestDocumentedLinksExist(t *testing.T) {
	all := documents(t)
	headings := map[string]map[string]bool{}
	for path, text := range all {
		headings[path] = map[string]bool{}
		for _, m := range reHeading.FindAllStringSubmatch(text, -1) {
			slug := strings.ReplaceAll(reNoSlug.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")
			headings[path][slug] = true
		}
	}
	for path, text := range all {
		for _, m := range reLink.FindAllStringSubmatch(text, -1) {
			file, heading, _ := strings.Cut(m[1], "#")
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
				continue
			}
			target := path
			if file != "" {
				target = filepath.Join(filepath.Dir(path), file)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: a link to %s: %v", path, m[1], err)
			} else if heading != "" && headings[target] != nil && !headings[target][heading] {
				t.Errorf("%s: a link to %s, which has no such heading", path, m[1])
			}
		}
	}
}
