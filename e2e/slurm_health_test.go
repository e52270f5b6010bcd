//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"strings"
	"time"
)

// healthScript returns the health check program of docs/check.md, with this cluster's Slurm and the drivers
// of its nodes.
func (x *slurmTest) healthScript() string {
	x.t.Helper()
	doc, err := os.ReadFile("../docs/check.md")
	if err != nil {
		x.t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(doc), "```sh\n#!/bin/sh\n# /etc/slurm/health.sh\n")
	script, _, ended := strings.Cut(rest, "```")
	const call = "/usr/local/bin/gpumeter check --exit slurm -o line --manifest /etc/gpumeter/manifest.yaml"
	if !found || !ended || !strings.Contains(script, call) {
		x.t.Fatal("docs/check.md has no program for Slurm's health check")
	}
	script = strings.Replace(script, call, x.binary+` check --exit slurm -o line --only gpu. --root "$root" --nvidia-library "$library"`, 1)
	head := "#!/bin/sh\nPATH=/usr/sbin:/usr/bin:/sbin:/bin\nexport SLURM_CONF=" + x.dir + "/etc/slurm.conf\n"
	for node, name := range slurmNodes {
		head += fmt.Sprintf("[ \"$SLURMD_NODENAME\" = %s ] && library=%s root=%s\n", name, x.library[node], x.roots[node])
	}
	return x.script("health", head+script)
}

// nodeState returns the states of a node and its drain reason.
func (x *slurmTest) nodeState(node int) string {
	x.t.Helper()
	var words []string
	for line := range strings.Lines(x.run("scontrol", "show", "node", slurmNodes[node])) {
		line = strings.TrimSpace(line)
		if state, ok := strings.CutPrefix(line, "State="); ok {
			state, _, _ = strings.Cut(state, " ")
			words = append(words, state)
		}
		if reason, ok := strings.CutPrefix(line, "Reason="); ok {
			words = append(words, reason)
		}
	}
	return strings.Join(words, " ")
}

func (x *slurmTest) expectState(node int, ok func(string) bool) {
	x.t.Helper()
	eventually(x.t, "the state of "+slurmNodes[node], func() error {
		if state := x.nodeState(node); !ok(state) {
			return fmt.Errorf("it is %s", state)
		}
		return nil
	})
}

// Catches a sick GPU that does not drain its node with a reason, a repair that does not resume it, a node
// drained by an administrator that is resumed, and an effect on the other node.
func (x *slurmTest) health() {
	if slurmRoot != "" {
		x.t.Skip("the binary is not in the folder that Slurm runs in")
	}
	path := x.dir + "/etc/slurm.conf"
	conf, err := os.ReadFile(path)
	if err != nil {
		x.t.Fatal(err)
	}
	set := func(text string) {
		x.t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			x.t.Fatal(err)
		}
		x.run("scontrol", "reconfigure")
	}
	set(string(conf) + "HealthCheckProgram=" + x.healthScript() + "\nHealthCheckInterval=3\nHealthCheckNodeState=ANY\n")
	defer set(string(conf))
	drained := func(state string) bool { return strings.Contains(state, "DRAIN") }

	x.run("scontrol", "update", "nodename="+slurmNodes[1], "state=drain", "reason=fan")
	x.sick[0] = "field 2 230 1\n" // the driver requests a reset
	x.write()
	x.expectState(0, func(s string) bool {
		return drained(s) && strings.Contains(s, "gpumeter: ") && strings.Contains(s, "reset")
	})
	x.sick[0] = ""
	x.write()
	x.expectState(0, func(s string) bool { return !drained(s) })
	time.Sleep(7 * time.Second) // two more checks
	if s := x.nodeState(1); !drained(s) || !strings.Contains(s, "fan") {
		x.t.Errorf("the node drained by an administrator is %s", s)
	}
	x.run("scontrol", "update", "nodename="+slurmNodes[1], "state=resume")
	x.expectState(1, func(s string) bool { return !drained(s) })
}
