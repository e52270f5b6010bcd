//go:build e2e

package e2e

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Jobs have passwords in their environment, of which the agent reads only a few variables. Catches any other
// variable in the agent's output, in its state, in its crash dump, or left in its memory, which a core file
// would contain.
func (x *slurmTest) secrets() {
	environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", x.batched.on[0].pid))
	if err != nil || !bytes.Contains(environment, []byte(secretName+"="+secret)) {
		x.t.Fatalf("the job has no secret (%v)", err)
	}
	clean := func(what string, text []byte) {
		x.t.Helper()
		if len(text) == 0 {
			x.t.Errorf("%s is empty", what)
		}
		for _, word := range []string{secret, secretName} {
			if bytes.Contains(text, []byte(word)) {
				x.t.Errorf("%s contains %s", what, word)
			}
		}
	}
	flags := []string{"--nvidia-library", x.library[0], "--root", x.roots[0], "--host-name", slurmNodes[0]}
	for _, args := range [][]string{{"devices", "--json"}, {"devices"}, {"doctor", "--json"}, {"agent", "--once", "-o", "prometheus"}} {
		out, err := tryCommand(x.t, ".", x.binary, append(args, flags...)...)
		if args[0] != "doctor" && err != nil {
			x.t.Errorf("%s: %v: %s", args[0], err, out)
		}
		if args[0] == "agent" && !strings.Contains(out, `slurm_job_id="`+x.batched.id+`"`) {
			x.t.Errorf("%s does not name job %s", strings.Join(args, " "), x.batched.id)
		}
		clean(strings.Join(args, " "), []byte(out))
	}
	for i, a := range x.agents {
		page, err := get(x.t, "http://"+a.page+"/metrics")
		if err != nil {
			x.t.Fatal(err)
		}
		clean("the page", []byte(page))
		x.checkMemory(i)
		x.signal(a.process, syscall.SIGQUIT)
		<-a.done
		said, err := os.ReadFile(a.log)
		if err != nil {
			x.t.Fatal(err)
		}
		if n := bytes.Count(said, []byte("\ngoroutine ")); n < 10 {
			x.t.Errorf("the agent's crash dump has %d goroutines", n)
		}
		clean("the log", said)
		otlp, err := os.ReadFile(a.file)
		if err != nil {
			x.t.Fatal(err)
		}
		clean("OTLP", otlp)
		if i == 0 && !bytes.Contains(otlp, []byte(x.batched.name)) {
			x.t.Errorf("OTLP does not name %q", x.batched.name)
		}
		files := 0
		err = filepath.WalkDir(a.state, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			text, err := os.ReadFile(path)
			if len(text) > 0 {
				files++
				clean(path, text)
			}
			return err
		})
		if err != nil || files == 0 {
			x.t.Errorf("%d files of state, %v", files, err)
		}
	}
}

// checkMemory fails the test if the agent of a node keeps the secret in memory after reading a new job. A
// secret seen only once was just being read.
func (x *slurmTest) checkMemory(node int) {
	x.t.Helper()
	pid := x.agents[node].cmd.Process.Pid
	x.running(x.red, x.submit(x.red, "look", "-w", slurmNodes[node]), "look", node)
	seen := 0
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); { // the agent reads once a second
		if x.inMemory(pid, secret) == 0 {
			seen = 0
		} else if seen++; seen == 2 {
			x.t.Errorf("the secret is in the memory of the agent of %s", slurmNodes[node])
			return
		}
	}
	if x.inMemory(pid, slurmCluster) == 0 {
		x.t.Error("the name of the cluster is not in memory either: does the search work?")
	}
}

// inMemory returns how often a text occurs in the writable memory of a process.
func (x *slurmTest) inMemory(pid int, text string) (n int) {
	x.t.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		x.t.Fatal(err)
	}
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		x.t.Fatal(err)
	}
	defer mem.Close()
	for line := range strings.Lines(string(maps)) {
		var from, to int64
		var mode string
		if _, err := fmt.Sscanf(line, "%x-%x %s", &from, &to, &mode); err != nil || !strings.HasPrefix(mode, "rw") {
			continue
		}
		if strings.Contains(line, "[v") { // kernel mappings
			continue
		}
		const step = 16 << 20
		for at := from; at < to; at += step {
			b := make([]byte, min(step+int64(len(text)), to-at))
			read, _ := mem.ReadAt(b, at) // unmapped pages are skipped
			n += bytes.Count(b[:read], []byte(text))
		}
	}
	return n
}
