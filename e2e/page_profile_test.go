//go:build e2e

package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
)

// TestPageProfile opens a profile in a real browser: the graph, the keys, another value, a file that is none.
func TestPageProfile(t *testing.T) {
	t.Parallel()
	b := openBrowser(t)
	p := start(t, gpumeter(t), "hub", "--data-dir", t.TempDir(), "--listen", "localhost:0", "--listen-grpc", "")
	base := p.find(t, hubAddress)
	frame := func(kind, function string, line int) map[string]any {
		return map[string]any{"kind": kind, "function": function, "file": "/app/train.py", "line": line}
	}
	profile, err := json.Marshal(map[string]any{
		"start": "2026-01-02T03:04:05Z", "seconds": 30, "rate": 99, "host": "node-1", "estimated": true, "comments": []string{"gpu is an estimate"},
		"processes": []any{map[string]any{"pid": 7, "name": "python3", "python": "3.11", "launches": 40}},
		"frames":    []any{frame("python", "train", 1), frame("python", "Model.forward", 2), frame("python", "Model.backward", 3), frame("kernel", "gemm", 0), frame("wait", "cuCtxSynchronize", 0)},
		"stacks": []any{
			map[string]any{"pid": 7, "frames": []int{0, 1, 3}, "launches": 30, "gpu": 1},
			map[string]any{"pid": 7, "frames": []int{0, 2, 3}, "launches": 10, "gpu": 3},
			map[string]any{"pid": 7, "frames": []int{0, 4}, "wait": 2},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	good, bad := filepath.Join(t.TempDir(), "train.json"), filepath.Join(t.TempDir(), "bad.json")
	for path, content := range map[string]string{good: string(profile), bad: `{"frames":[],"stacks":[{"frames":[1]}],"processes":[]}`} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const input, flame = `input[type=file]`, `.flame button`
	b.open(t, base+"/#/profile", input)
	var problem, first, focused string
	b.run(t, chromedp.SetUploadFiles(input, []string{bad}), chromedp.WaitVisible(`[role=alert]`), chromedp.Text(`[role=alert]`, &problem))
	if !strings.Contains(problem, "frames that it does not list") {
		t.Errorf("of a bad file the page says %q", problem)
	}
	labels := func() (all []string) {
		b.run(t, chromedp.Evaluate(`[...document.querySelectorAll(".flame button")].map(e => e.getAttribute("aria-label"))`, &all))
		return all
	}
	b.run(t, chromedp.SetUploadFiles(input, []string{good}), chromedp.WaitVisible(flame))
	if all := labels(); len(all) != 7 || !strings.Contains(all[3], "Model.backward (train.py:3): 3\u202fs, 75\u202f%") {
		t.Errorf("by time on the device the graph has %q", all)
	}
	b.run(t, chromedp.Text(`tbody tr td`, &first))
	if !strings.Contains(first, "Model.backward") {
		t.Errorf("the first function is %q", first)
	}
	axe, err := os.ReadFile("../web/node_modules/axe-core/axe.min.js")
	if err != nil {
		skip(t, "axe-core", err)
	}
	for _, theme := range []string{"light", "dark"} {
		b.theme(t, theme)
		violations(t, b, "profile in "+theme, string(axe))
	}
	b.run(t, chromedp.Focus(`.flame button[tabindex="0"]`))
	for _, key := range []string{"ArrowDown", "ArrowDown", "ArrowDown", "ArrowRight"} {
		b.run(t, chromedp.Evaluate(`document.activeElement.dispatchEvent(new KeyboardEvent("keydown", {key: "`+key+`", bubbles: true})), new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))`, nil, awaitPromise))
	}
	b.run(t, chromedp.Evaluate(`document.activeElement.getAttribute("aria-label")`, &focused))
	if !strings.HasPrefix(focused, "Model.forward") {
		t.Errorf("the keys lead to %q", focused)
	}
	b.open(t, base+"/#/profile?value=launches", input)
	b.run(t, chromedp.SetUploadFiles(input, []string{good}), chromedp.WaitVisible(flame))
	if all := labels(); len(all) != 7 || !strings.Contains(all[3], "Model.forward (train.py:2): 30, 75\u202f%") {
		t.Errorf("by launches the graph has %q", all)
	}
	b.clean(t, base)
}
