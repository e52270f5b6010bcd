//go:build linux

package sampler

import (
	"fmt"
	"testing"
)

func TestPython(t *testing.T) {
	lib := library(t)
	w := start(t, "/root/.pyenv/versions/3.11.7/bin/python3.11", "testdata/work.py", lib)
	p := taken(t, Options{Takes: only(w.pid())}, func() { w.does("20000") })
	fmt.Printf("%+v\n%+v\n", p.Processes, p.Losses)
	for _, s := range p.Samples {
		fmt.Println(s.Samples, s.Calls, s.GPU, s.Wait)
		for _, f := range s.Frames {
			fmt.Println("   ", f)
		}
	}
}
