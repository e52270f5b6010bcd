package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"path"
	"strings"
	"time"
)

// event is one line of go test -json (go doc test2json, and for builds go help buildjson).
type event struct {
	Action     string
	Package    string
	ImportPath string // of a build event
	Test       string
	Elapsed    float64
	Output     string

	FailedBuild string // of a package that failed because this one did not build
}

// summary counts tests that have no subtests: those with some only repeat them.
type summary struct {
	w            io.Writer
	module, root string // what is tested, and where it is
	each         bool   // a line for each test that ends
	start        time.Time
	running      map[string]*pkg
	builds       map[string][]string // what go build said, by package

	passed, failed, skipped int
	reasons                 []string            // of skips, in order
	skips                   map[string][]string // tests by reason
	failures                []string            // one line each
}

type pkg struct {
	tests  map[string]*test
	order  []string // of tests, by when they started
	output []line
}

type test struct {
	action     string // pass, fail or skip; empty: it has not ended
	parent     bool   // it has subtests
	failedPart bool   // one of them failed
	output     []string
}

type line struct{ test, text string }

// newSummary prints to w what go test says of the module at root.
func newSummary(w io.Writer, root string) *summary {
	return &summary{
		w: w, module: modulePath(root), root: root, start: time.Now(),
		running: map[string]*pkg{}, builds: map[string][]string{}, skips: map[string][]string{},
	}
}

// read takes in the output of go test -json until its end, and prints a line for each
// package that passes and the output of each that does not.
func (s *summary) read(r io.Reader) {
	in := bufio.NewReader(r)
	for {
		text, err := in.ReadString('\n')
		if text != "" {
			s.line(text)
		}
		if err != nil {
			return
		}
	}
}

func (s *summary) line(text string) {
	var e event
	if json.Unmarshal([]byte(text), &e) != nil || e.Action == "" {
		fmt.Fprint(s.w, text) // not an event: better shown than lost
		return
	}
	if e.Action == "build-output" {
		fmt.Fprint(s.w, e.Output)
		s.builds[e.ImportPath] = append(s.builds[e.ImportPath], e.Output)
		return
	}
	if e.Package == "" {
		return
	}
	p := s.running[e.Package]
	if p == nil {
		p = &pkg{tests: map[string]*test{}}
		s.running[e.Package] = p
	}
	if e.Test != "" {
		p.add(e)
		s.progress(e)
		return
	}
	switch e.Action {
	case "output":
		p.output = append(p.output, line{text: e.Output})
	case "pass", "fail", "skip":
		s.end(e, p)
		delete(s.running, e.Package)
	}
}

func (p *pkg) add(e event) {
	t := p.tests[e.Test]
	if t == nil {
		t = &test{}
		p.tests[e.Test] = t
		p.order = append(p.order, e.Test)
	}
	switch e.Action {
	case "output":
		t.output = append(t.output, e.Output)
		p.output = append(p.output, line{e.Test, e.Output})
	case "pass", "fail", "skip":
		t.action = e.Action
		for name := e.Test; ; {
			i := strings.LastIndexByte(name, '/')
			if i < 0 {
				break
			}
			name = name[:i]
			if above := p.tests[name]; above != nil {
				above.parent = true
				above.failedPart = above.failedPart || t.action == "fail"
			}
		}
	}
}

// progress prints a line for a test that ended, with the time since the start, for runs whose tests take minutes.
func (s *summary) progress(e event) {
	if !s.each || strings.Contains(e.Test, "/") {
		return
	}
	switch e.Action {
	case "pass", "fail", "skip":
		fmt.Fprintf(s.w, "%6s  %s\t%s.%s\t%.1fs\n", time.Since(s.start).Round(time.Second), e.Action, s.short(e.Package), e.Test, e.Elapsed)
	}
}

// end counts the tests of a package that ended, and reports it.
func (s *summary) end(e event, p *pkg) {
	passed, failed, skipped := 0, 0, 0
	for _, name := range p.order {
		t := p.tests[name]
		switch {
		case t.action == "fail" && !t.failedPart:
			failed++
			why := failure(t.output, folder(s.module, s.root, e.Package))
			if why == "" {
				why = died(p.output)
			}
			s.fail(e.Package, name, why)
		case t.action == "pass" && !t.parent:
			passed++
		case t.action == "skip" && !t.parent:
			skipped++
			why := reason(t.output)
			if s.skips[why] == nil {
				s.reasons = append(s.reasons, why)
			}
			s.skips[why] = append(s.skips[why], path.Base(e.Package)+"."+name)
		}
	}
	if e.Action == "fail" {
		if failed == 0 { // it did not build, or died between two tests
			failed = 1
			s.fail(e.Package, p.culprit(), s.packageFailure(e, p))
		}
		p.print(s.w)
	} else if len(p.order) > 0 {
		fmt.Fprintf(s.w, "ok\t%s\t%.1fs\t%s\n", e.Package, e.Elapsed, counts(passed, failed, skipped))
	}
	s.passed += passed
	s.failed += failed
	s.skipped += skipped
}

// print shows all that go test said, but for what tests that passed said. It ends with go's own line of failure.
func (p *pkg) print(w io.Writer) {
	for _, l := range p.output {
		if t := p.tests[l.test]; t == nil || t.action != "pass" {
			fmt.Fprint(w, l.text)
		}
	}
}

// culprit returns the test during which a package died, empty if nothing says which. A timeout
// names the tests that were running, and any of them may be the reason.
func (p *pkg) culprit() string {
	for _, name := range p.order {
		t := p.tests[name]
		if why := failure(t.output, ""); t.action == "" && why != "" && !strings.HasPrefix(why, timeout) {
			return name
		}
	}
	return ""
}

// packageFailure returns why a package failed that has no failed test.
func (s *summary) packageFailure(e event, p *pkg) string {
	for _, text := range s.builds[e.FailedBuild] {
		if text = strings.TrimSpace(text); e.FailedBuild != "" && text != "" && !strings.HasPrefix(text, "#") {
			return shorten(text)
		}
	}
	var output []string
	for _, l := range p.output {
		output = append(output, l.text)
	}
	if why := failure(output, folder(s.module, s.root, e.Package)); why != "" {
		return why
	}
	return died(p.output)
}

// reason returns what a test said before it was skipped.
func reason(output []string) string {
	var words []string
	for _, text := range output {
		text = strings.TrimSpace(text)
		if text == "" || strings.HasPrefix(text, "=== ") || strings.HasPrefix(text, "--- ") {
			continue
		}
		words = append(words, place.ReplaceAllString(text, ""))
	}
	if len(words) == 0 {
		return "no reason given"
	}
	return strings.Join(words, " ")
}

func counts(passed, failed, skipped int) string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped", passed, failed, skipped)
}

// finish prints the skipped tests, why tests failed, and the counts, and reports whether all is
// well. ok is whether go test thinks so.
func (s *summary) finish(ok bool) bool {
	if !ok && s.failed == 0 {
		s.failed = 1
		s.failures = append(s.failures, "FAIL go test: it failed before any package, for the reason it gives above")
	}
	for _, why := range s.reasons {
		fmt.Fprintf(s.w, "\nSkipped, %s:\n  %s\n", why, strings.Join(s.skips[why], " "))
	}
	if len(s.failures) > 0 {
		fmt.Fprintln(s.w, "\n"+strings.Join(s.failures, "\n"))
	}
	fmt.Fprintln(s.w, "\n"+counts(s.passed, s.failed, s.skipped))
	return s.failed == 0
}
