// Command testsum runs go test with the given arguments and ends with what people and
// machines want to know: which tests were skipped and why, which failed and why, and how many ran.
// With -each as its first argument it also prints a line when a test ends.
package main

import (
	"fmt"
	"os"
	"os/exec"
)

func main() {
	args := os.Args[1:]
	each := len(args) > 0 && args[0] == "-each"
	if each {
		args = args[1:]
	}
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "testsum: cannot run go test:", err)
		os.Exit(1)
	}
	s := newSummary(os.Stdout, ".")
	s.each = each
	s.read(out)
	if !s.finish(cmd.Wait() == nil) {
		os.Exit(1)
	}
}
