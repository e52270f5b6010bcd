package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// run runs the real go test on a module of the given files.
func run(t *testing.T, files map[string]string, args ...string) (out string, ok bool) {
	t.Helper()
	dir := t.TempDir()
	files["go.mod"] = "module m\n\ngo 1.26\n"
	for name, src := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(src), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOTOOLCHAIN=local", "GOFLAGS=")
	stdout, err := cmd.Output()
	var b bytes.Buffer
	s := newSummary(&b)
	s.read(bytes.NewReader(stdout))
	ok = s.finish(err == nil)
	return b.String(), ok
}

const head = "package p\n\nimport \"testing\"\n\n"

var passing = head + `
func TestA(t *testing.T) {}
func TestB(t *testing.T) {
	t.Log("of no interest")
	t.Run("one", func(t *testing.T) {})
	t.Run("two", func(t *testing.T) { t.Skip("no moon") })
}
func TestC(t *testing.T) { t.Skip("no moon") }
`

func last(out string) string {
	lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
	return lines[len(lines)-1]
}

func TestPass(t *testing.T) {
	out, ok := run(t, map[string]string{"a/a_test.go": passing, "b/b.go": "package b\n"}, "./...")
	out = regexp.MustCompile(`[\d.]+s`).ReplaceAllString(out, "T")
	want := "ok\tm/a\tT\t" + `2 passed, 0 failed, 2 skipped

Skipped, no moon:
  a.TestB/two a.TestC

2 passed, 0 failed, 2 skipped
`
	if out != want || !ok {
		t.Errorf("ok = %v, output:\n%s\nwant:\n%s", ok, out, want)
	}
}

func TestFail(t *testing.T) {
	f := func(name, src, says, counts string) {
		t.Helper()
		out, ok := run(t, map[string]string{"a/a_test.go": passing, "bad/bad_test.go": src}, "./...")
		if ok {
			t.Errorf("%s: no failure", name)
		}
		for _, want := range []string{says, "FAIL\tm/bad", "ok\tm/a"} {
			if !strings.Contains(out, want) {
				t.Errorf("%s: the output lacks %q:\n%s", name, want, out)
			}
		}
		if last(out) != counts {
			t.Errorf("%s: ends with %q, want %q", name, last(out), counts)
		}
	}
	f("failure", head+`func TestC(t *testing.T) { t.Run("x", func(t *testing.T) { t.Error("the reason") }); t.Run("y", func(*testing.T) {}) }`,
		"the reason", "3 passed, 1 failed, 2 skipped")
	f("parent", head+`func TestC(t *testing.T) { t.Run("x", func(t *testing.T) {}); t.Error("the reason") }`,
		"the reason", "3 passed, 1 failed, 2 skipped")
	f("panic", head+`func TestC(t *testing.T) { panic("the reason") }`, "the reason", "2 passed, 1 failed, 2 skipped")
	f("exit", head+"import \"os\"\n\nfunc TestMain(*testing.M) { println(`the reason`); os.Exit(3) }", "the reason", "2 passed, 1 failed, 2 skipped")
	f("build", head+`func TestC(t *testing.T) { theReason() }`, "undefined: theReason", "2 passed, 1 failed, 2 skipped")
	f("syntax", head+`func TestC(`, "expected", "2 passed, 1 failed, 2 skipped")
	f("vet", head+"import \"fmt\"\n\nfunc TestC(t *testing.T) { _ = fmt.Sprintf(`%d`, `the reason`) }", "the reason", "2 passed, 1 failed, 2 skipped")
}

func TestNothing(t *testing.T) {
	if out, ok := run(t, map[string]string{"a/a_test.go": passing}, "./nosuch"); ok || last(out) != "0 passed, 1 failed, 0 skipped" {
		t.Errorf("a package that does not exist: ok = %v:\n%s", ok, out)
	}
}

func TestReason(t *testing.T) {
	f := func(want string, output ...string) {
		t.Helper()
		if got := reason(output); got != want {
			t.Errorf("reason(%q) = %q, want %q", output, got, want)
		}
	}
	f("promtool is not installed", "=== RUN   TestX\n", "    page_test.go:74: promtool is not installed\n", "--- SKIP: TestX (0.00s)\n")
	f("first second", "    a_test.go:1: first\n", "        second\n")
	f("no reason given", "=== RUN   TestX\n", "--- SKIP: TestX (0.00s)\n")
}
