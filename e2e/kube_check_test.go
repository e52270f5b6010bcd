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

// conditionType is the type of the node condition.
const conditionType = "GPUProblem"

// plugin runs the check as the Node Problem Detector runs a custom plugin: exit code 0 means OK, 1 a
// problem and anything else unknown; the first line of output is the message, truncated to 80 bytes.
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
	if len(out) > 81 || strings.Count(string(out), "\n") > 1 { // including the newline
		k.t.Errorf("the output exceeds the limit of a plugin: %q", out)
	}
	return status, strings.TrimSpace(string(out))
}

// report sets the condition as the Node Problem Detector does.
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

// condition returns the condition of the node according to the API server.
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

// Catches a node condition that does not follow a GPU that fails and recovers, by the protocol of the Node
// Problem Detector, or that a program's own fault changes.
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
	f("the driver answers again", "", "False", "")
}
