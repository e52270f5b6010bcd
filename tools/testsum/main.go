// Command testsum runs go test with the given arguments and prints a summary: which tests were
// skipped and why, which failed and why, and how many ran. It reads go test -json and exits with
// status 1 if a test failed. These may come first:
//
//	-each    also print a line when a test ends
//	-memory  keep temporary files in memory, if there is enough of it and TMPDIR is not set
package main

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

func main() {
	args := os.Args[1:]
	var each, memory bool
	for len(args) > 0 && (args[0] == "-each" || args[0] == "-memory") {
		each, memory = each || args[0] == "-each", memory || args[0] == "-memory"
		args = args[1:]
	}
	ok, err := goTest(each, memory, args)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testsum: cannot run go test:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

func goTest(each, memory bool, args []string) (ok bool, err error) {
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = os.Stderr
	if memory && os.Getenv("TMPDIR") == "" {
		if dir := inMemory(); dir != "" {
			defer os.RemoveAll(dir)
			cmd.Env = append(os.Environ(), "TMPDIR="+dir)
		}
	}
	// After a signal, which go test gets, too, the folder must be deleted.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return false, err
	}
	go func() {
		for s := range signals {
			_ = cmd.Process.Signal(s) // it may have ended
		}
	}()
	s := newSummary(os.Stdout, ".")
	s.each = each
	s.read(out)
	return s.finish(cmd.Wait() == nil), nil
}
