package main

import (
	"bytes"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// run runs the real go test on a module of the given files.
func run(t *testing.T, files map[string]string, args ...string) (out string, ok bool) {
	t.Helper()
	dir := t.TempDir()
	files["go.mod"] = "module m\n\ngo 1.26\n"
	for name, src := range files {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(src), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOTOOLCHAIN=local", "GOFLAGS=")
	stdout, err := cmd.Output()
	var b bytes.Buffer
	s := newSummary(&b, dir)
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

// Each package fails in a way of its own. The end of the run has a line for each, whatever the package said before.
func TestFail(t *testing.T) {
	files := map[string]string{"a/a_test.go": passing}
	var want []string
	f := func(name, src, says string) {
		files[name+"/bad_test.go"] = head + src
		want = append(want, "FAIL "+name+says)
	}
	f("build", `func TestC(t *testing.T) { theReason() }`, ": build/bad_test.go:5:28: undefined: theReason")
	f("diff", `func TestC(t *testing.T) { t.Fatal("other values (-want +got):\n  {\n-   1,\n+   2,\n  }") }`, ".TestC: bad_test.go:5: other values (-want +got): -   1,")
	f("exit", "import \"os\"\n\nfunc TestMain(*testing.M) { println(`the reason`); os.Exit(3) }", ": the reason")
	f("goroutine", `func TestC(t *testing.T) { go panic("the reason"); select {} }`, ".TestC: panic: the reason")
	f("helper", `func check(t *testing.T) { t.Helper(); t.Error("the reason") }
func TestC(t *testing.T) { check(t) }`, ".TestC: bad_test.go:6: the reason")
	f("logabove", `func TestC(t *testing.T) {
	t.Log("of no interest")
	t.Errorf("%d is wrong", 3)
	t.Error("another")
}`, ".TestC: bad_test.go:7: 3 is wrong")
	f("logbelow", `func TestC(t *testing.T) { t.Fatal("no answer; the log:\nline 1\nline 2") }`, ".TestC: bad_test.go:5: no answer; the log: line 1")
	f("long", `import "strings"
func TestC(t *testing.T) { t.Error(strings.Repeat("x", 1000)) }`, ".TestC: bad_test.go:6: "+strings.Repeat("x", 385)+" ...")
	f("panics", `func TestC(t *testing.T) { panic("the reason") }`, ".TestC: panic: the reason [recovered, repanicked]")
	f("parent", `func TestC(t *testing.T) { t.Run("x", func(t *testing.T) {}); t.Error("the reason") }`, ".TestC: bad_test.go:5: the reason")
	f("silent", `func TestC(t *testing.T) { t.Fail() }`, ".TestC: no reason given")
	f("sub", `func TestC(t *testing.T) { t.Run("x", func(t *testing.T) { t.Error("the reason") }); t.Run("y", func(*testing.T) {}) }`,
		".TestC/x: bad_test.go:5: the reason")
	f("syntax", `func TestC(`, ": syntax/bad_test.go:5:12: expected ')', found 'EOF'")
	f("vet", "import \"fmt\"\n\nfunc TestC(t *testing.T) { _ = fmt.Sprintf(`%d`, `the reason`) }",
		": vet/bad_test.go:7:45: fmt.Sprintf format %d has arg `the reason` of wrong type string")

	out, ok := run(t, files, "./...")
	if ok {
		t.Error("no failure")
	}
	for name := range files {
		if says := path.Dir(name); says != "a" && says != "." && !strings.Contains(out, "FAIL\tm/"+says) {
			t.Errorf("the output lacks go's own report of m/%s:\n%s", says, out)
		}
	}
	_, end, _ := strings.Cut(out, "a.TestB/two a.TestC\n\n")
	reasons, counts, _ := strings.Cut(end, "\n\n")
	got := strings.Split(reasons, "\n")
	slices.Sort(got) // packages end in any order
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("other reasons (-want +got):\n%s\n%s", diff, out)
	}
	if want := "4 passed, 14 failed, 2 skipped\n"; counts != want {
		t.Errorf("ends with %q, want %q:\n%s", counts, want, out)
	}
}

func TestFailTimeout(t *testing.T) {
	out, _ := run(t, map[string]string{"bad/bad_test.go": head + `func TestC(t *testing.T) { <-t.Context().Done() }`}, "-timeout=100ms", "./...")
	out = regexp.MustCompile(`TestC \([\d.]+m?s\)`).ReplaceAllString(out, "TestC (0s)")
	if want := "\n\nFAIL bad: panic: test timed out after 100ms running tests: TestC (0s)\n\n0 passed, 1 failed, 0 skipped\n"; !strings.HasSuffix(out, want) {
		t.Errorf("ends otherwise than with %q:\n%s", want, out)
	}
}

func TestFailureRace(t *testing.T) {
	got := failure([]string{`==================
WARNING: DATA RACE
Read at 0x00c000012345 by goroutine 7:
  m/bad.TestC()
      /m/bad/bad_test.go:11 +0x44

Previous write at 0x00c000012345 by goroutine 8:
  m/bad.TestC.func1()
      /m/bad/bad_test.go:8 +0x33
==================
    testing.go:1617: race detected during execution of test
`}, "bad")
	if want := "data race: read at /m/bad/bad_test.go:11"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// A run of minutes shows that it goes on.
func TestEach(t *testing.T) {
	var b bytes.Buffer
	s := newSummary(&b, t.TempDir())
	s.each = true
	s.read(strings.NewReader(`{"Action":"run","Package":"m/a","Test":"TestA"}
{"Action":"pass","Package":"m/a","Test":"TestA/x","Elapsed":61.4}
{"Action":"pass","Package":"m/a","Test":"TestA","Elapsed":61.5}
`))
	if want := "    0s  pass\tm/a.TestA\t61.5s\n"; b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
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
