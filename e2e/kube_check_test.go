//go:build e2e

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"
)

// condition is what is set on the node.
const conditionType = "GPUProblem"

// plugin runs the check as the Node Problem Detector runs a custom plugin: the exit code
// is 0 for all is well, 1 for a problem and anything else for not known, and the first
// line of its output is the message, of which 80 bytes are kept.
func (k *kubeTest) plugin() (status, message string) {
	k.t.Helper()
	cmd := exec.CommandContext(k.t.Context(), k.binary, "check", "--only", "gpu.", "-o", "npd", "--nvidia-library", k.gpus.host.Library, "--timeout", "10s")
	out, err := cmd.Output()
	var exit *exec.ExitError
	switch {
	case err == nil:
		status = "False"
	case errors.As(err, &exit) && exit.ExitCode() == 1:
		status = "True"
	case errors.As(err, &exit):
		status = "Unknown"
	default:
		k.t.Fatal(err)
	}
	if len(out) > 81 || strings.Count(string(out), "\n") > 1 { // with the end of its line
		k.t.Errorf("more than a plugin may say: %q", out)
	}
	return status, strings.TrimSpace(string(out))
}

// report does what the Node Problem Detector does with a condition.
func (k *kubeTest) report(status, message string) {
	k.t.Helper()
	now := time.Now().UTC().Format(time.RFC3339)
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []map[string]string{{
		"type": conditionType, "status": status, "reason": "GPUCheck", "message": message, "lastHeartbeatTime": now, "lastTransitionTime": now,
	}}}})
	if err != nil {
		k.t.Fatal(err)
	}
	if err := k.api.do("PATCH", "/api/v1/nodes/"+nodeName+"/status", "application/strategic-merge-patch+json", string(patch), nil); err != nil {
		k.t.Fatal(err)
	}
}

// condition returns what the API server says of the node.
func (k *kubeTest) condition() string {
	k.t.Helper()
	var node struct {
		Status struct {
			Conditions []struct{ Type, Status, Message string }
		}
	}
	if err := k.api.get("/api/v1/nodes/"+nodeName, &node); err != nil {
		k.t.Fatal(err)
	}
	for _, c := range node.Status.Conditions {
		if c.Type == conditionType {
			return c.Status + " " + c.Message
		}
	}
	return ""
}

// check lets a GPU fall sick and get well: the condition of the node follows, by the
// protocol of the Node Problem Detector. A program's own fault changes nothing.
func (k *kubeTest) check() {
	f := func(name, script, wantStatus, wantWord string) {
		k.t.Helper()
		k.gpus.more = script
		k.gpus.write(k.t)
		status, message := k.plugin()
		k.report(status, message)
		if status != wantStatus || !strings.Contains(message, wantWord) {
			k.t.Errorf("%s: %s, %q", name, status, message)
		}
		if diff := cmp.Diff(status+" "+message, k.condition()); diff != "" {
			k.t.Errorf("%s: condition (-want +got):\n%s", name, diff)
		}
	}
	f("well", "", "False", "")
	f("sick", fmt.Sprintf("field %d 230 1\n", secretGPU), "True", "reset")
	f("well again", "", "False", "")
	f("the driver hangs", "gpu * hang nvmlDeviceGetUUID\n", "True", "")
	f("it answers again", "", "False", "")
}
