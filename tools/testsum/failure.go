package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

var (
	place  = regexp.MustCompile(`^\S+\.go:\d+: `)
	said   = regexp.MustCompile(`^ {4}(\S+\.go):(\d+): (.*)$`) // by t.Log, t.Error and t.Fatal
	logged = regexp.MustCompile(`\.Logf?\(`)
	frame  = regexp.MustCompile(`^      (\S+\.go:\d+)`) // of the race detector
)

const timeout = "panic: test timed out"

// failure returns why a test or a package failed, in one line. output is what it printed and
// dir is where its sources are.
//
// A test that dies says so itself, and that goes first. What t.Log prints looks like what t.Error
// prints: only the source line tells them apart.
func failure(output []string, dir string) string {
	lines := strings.Split(strings.Join(output, ""), "\n")
	for i, text := range lines {
		text = strings.TrimSpace(text)
		switch {
		case strings.HasPrefix(text, timeout):
			return shorten(strings.Join(append([]string{text}, running(lines[i+1:])...), " "))
		case strings.HasPrefix(text, "panic: "), strings.HasPrefix(text, "fatal error: "):
			return shorten(text)
		case text == "WARNING: DATA RACE":
			return shorten(race(lines[i+1:]))
		}
	}
	for i, text := range lines {
		m := said.FindStringSubmatch(text)
		if m == nil || isLog(filepath.Join(dir, m[1]), m[2]) {
			continue
		}
		if m[3] == "" || strings.HasSuffix(m[3], ":") {
			m[3] = strings.TrimSpace(m[3] + " " + detail(lines[i+1:]))
		}
		return shorten(m[1] + ":" + m[2] + ": " + m[3])
	}
	return ""
}

// died returns why a package failed that has no failed test: the first line of its own, and how it exited.
func died(output []line) string {
	var first, exit string
	for _, l := range output {
		text := strings.TrimSpace(l.text)
		switch {
		case l.test != "" || text == "" || text == "PASS" || text == "FAIL" || strings.HasPrefix(text, "FAIL\t"):
		case strings.HasPrefix(text, "exit status ") || strings.HasPrefix(text, "signal: "):
			exit = text
		case first == "":
			first = text
		}
	}
	if first != "" && exit != "" {
		return shorten(exit + ": " + first)
	}
	return shorten(first + exit)
}

// running returns the tests that a timeout names.
func running(lines []string) []string {
	var tests []string
	for _, text := range lines {
		text = strings.TrimSpace(text)
		if text == "" {
			break
		}
		tests = append(tests, text)
	}
	return tests
}

// race returns which access the race detector complains of, and where in our code it is.
func race(lines []string) string {
	why := "data race"
	for i, text := range lines {
		if i == 0 {
			what, _, _ := strings.Cut(text, " at ")
			why += ": " + strings.ToLower(what)
		}
		if m := frame.FindStringSubmatch(text); m != nil {
			return why + " at " + m[1]
		}
	}
	return why
}

// isLog reports whether the line of the file calls t.Log. A file that cannot be read says no.
func isLog(file, number string) bool {
	src, err := os.ReadFile(file)
	n, numberErr := strconv.Atoi(number)
	if err != nil || numberErr != nil {
		return false
	}
	lines := strings.Split(string(src), "\n")
	return n >= 1 && n <= len(lines) && logged.MatchString(lines[n-1])
}

// detail returns what follows a line that ends in a colon: the first difference of a diff, else the next line.
func detail(lines []string) string {
	next := ""
	for _, text := range lines {
		if said.MatchString(text) || !strings.HasPrefix(text, "     ") {
			break // the next message, or the end of the test
		}
		text = strings.TrimSpace(text)
		if strings.HasPrefix(text, "-") || strings.HasPrefix(text, "+") {
			return text
		}
		if next == "" {
			next = text
		}
	}
	return next
}

// shorten keeps a line readable: a line of a log can be long.
func shorten(text string) string {
	const most = 400
	if len(text) > most {
		return strings.ToValidUTF8(text[:most], "") + " ..."
	}
	return text
}

// folder returns where the sources of a package are, given the module's path and its folder.
func folder(module, root, pkg string) string {
	return filepath.Join(root, strings.TrimPrefix(strings.TrimPrefix(pkg, module), "/"))
}

// modulePath returns the module that is at root, empty if there is none.
func modulePath(root string) string {
	src, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		return ""
	}
	for text := range strings.Lines(string(src)) {
		if name, ok := strings.CutPrefix(text, "module "); ok {
			return strings.TrimSpace(name)
		}
	}
	return ""
}

// failed remembers one failure for the end of the run.
func (s *summary) fail(pkg, test, why string) {
	name := s.short(pkg)
	if test != "" {
		name += "." + test
	}
	if why == "" {
		why = "no reason given"
	}
	s.failures = append(s.failures, fmt.Sprintf("FAIL %s: %s", name, why))
}

// short returns a package's path below the module, which is how people name it.
func (s *summary) short(pkg string) string {
	if short, ok := strings.CutPrefix(pkg, s.module+"/"); ok && s.module != "" {
		return short
	}
	return pkg
}
