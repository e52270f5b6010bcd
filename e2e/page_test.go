//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/gpumeter/gpumeter/internal/await"
)

var updateImages = flag.Bool("update", false, "write the screenshots of docs/img")

// fleet is the hub's fleet response.
type fleet struct {
	Headline struct{ GPUs, Held, Idle, Sick int }
	Owners   []struct{ ID, Name string }
	GPUs     struct {
		UUID   []string
		Health []float64
	}
}

func fleetOf(t *testing.T, base string) fleet {
	t.Helper()
	body, err := get(t, base+"/api/page/fleet")
	if err != nil {
		t.Fatal(err)
	}
	var f fleet
	if err := json.Unmarshal([]byte(body), &f); err != nil {
		t.Fatal(err)
	}
	return f
}

// demoAddress matches the address of the demo's page.
var demoAddress = regexp.MustCompile(`Page +(http://\S+?)/?\s`)

// demoPage starts the demo and returns the address of its page.
func demoPage(t *testing.T) string {
	t.Helper()
	p := start(t, gpumeter(t), "demo", "--listen", "localhost:0")
	t.Cleanup(func() { // if killed, it would leave its data behind
		if code := p.stop(t); code != 0 {
			t.Errorf("the demo exited with %d", code)
		}
	})
	return p.find(t, demoAddress) // a day of history is written first
}

// TestPage uses the demo in a real browser, like a first-time user.
func TestPage(t *testing.T) {
	t.Parallel()
	b := openBrowser(t)
	base := demoPage(t)
	f := fleetOf(t, base)
	if f.Headline.Idle == 0 || f.Headline.Sick == 0 {
		t.Fatalf("the demo has no idle hoarder or no sick GPU: %+v", f.Headline)
	}

	b.run(t, chromedp.EmulateViewport(1440, 900), chromedp.Navigate(base+"/"), chromedp.WaitVisible(".tile[data-gpu]"))
	var sentence string
	var tiles, named []string
	b.run(t, chromedp.Text("h1", &sentence),
		chromedp.Evaluate(`[...document.querySelectorAll(".tile[data-gpu]")].map(e => e.dataset.gpu).sort()`, &tiles),
		chromedp.Evaluate(`[...document.querySelectorAll(".tile[data-gpu]")].filter(e => e.getAttribute("aria-label")).map(e => e.dataset.gpu)`, &named))
	if uuids := slices.Sorted(slices.Values(f.GPUs.UUID)); !slices.Equal(tiles, uuids) || len(named) != len(uuids) {
		t.Errorf("%d tiles, %d with a name, for %d GPUs", len(tiles), len(named), len(uuids))
	}
	if want := fmt.Sprintf("of %d GPUs are held", f.Headline.GPUs); !strings.Contains(sentence, want) || !strings.Contains(sentence, "per day") || !strings.Contains(sentence, "kW") {
		t.Errorf("the page says %q", sentence)
	}

	t.Run("owners", func(t *testing.T) {
		var text string
		b.open(t, base+"/#/workloads", "tbody tr")
		b.run(t, chromedp.Text("tbody", &text))
		for _, o := range f.Owners {
			if !strings.Contains(text, o.Name) {
				t.Errorf("%s is not in the list of workloads", o.Name)
			}
		}
	})
	t.Run("idle hoarder in two clicks", func(t *testing.T) {
		var pill, holder string
		b.open(t, base+"/#/fleet", ".headline a.idle-text")
		b.run(t, chromedp.Click(".headline a.idle-text"), chromedp.WaitVisible("tbody td a[href^='#/gpu/']"),
			chromedp.Click("tbody td a[href^='#/gpu/']"), chromedp.WaitVisible(".holders a"),
			chromedp.Text("h1 .pill", &pill), chromedp.Text(".holders", &holder))
		if !strings.Contains(pill, "idle for") || holder == "" {
			t.Errorf("two clicks lead to a GPU that is %q, held by %q", pill, holder)
		}
	})
	t.Run("sick GPU in two clicks", func(t *testing.T) {
		var pill, wrong string
		b.open(t, base+"/#/fleet", ".headline a.sick-text")
		b.run(t, chromedp.Click(".headline a.sick-text"), chromedp.WaitVisible("tbody td a[href^='#/gpu/']"),
			chromedp.Click("tbody td a[href^='#/gpu/']"), chromedp.WaitVisible(".wrong li"),
			chromedp.Text("h1 .pill", &pill), chromedp.Text(".wrong", &wrong))
		if pill != "sick" && pill != "not responding" || wrong == "" {
			t.Errorf("two clicks lead to a GPU that is %q: %q", pill, wrong)
		}
	})
	t.Run("full cache in two clicks", func(t *testing.T) {
		var row, stats string
		b.open(t, base+"/#/fleet", ".tile[data-gpu]")
		b.run(t, chromedp.Click(`nav a[href="#/serving"]`), chromedp.WaitVisible("td .idle-text"),
			chromedp.Evaluate(`document.querySelector("td .idle-text").closest("tr").innerText`, &row),
			chromedp.Evaluate(`document.querySelector("td .idle-text").closest("tr").querySelector("a[href^='#/model/']").click()`, nil),
			chromedp.WaitVisible(".stats"), chromedp.Text(".stats", &stats))
		if !strings.Contains(row, "summarizer") || !strings.Contains(stats, "wait") || !strings.Contains(stats, "KV cache") {
			t.Errorf("what waits is %q, and its page says %q", row, stats)
		}
	})
	t.Run("why it waits in one click", func(t *testing.T) {
		var headline, row string
		b.open(t, base+"/#/fleet", ".tile[data-gpu]")
		b.run(t, chromedp.Click(`nav a[href="#/queue"]`), chromedp.WaitVisible("td .pill"),
			chromedp.Text("h1", &headline), chromedp.Text("tbody tr", &row))
		if !strings.Contains(headline, "wait for") || !strings.Contains(headline, "free") || !strings.Contains(row, "detector-train") {
			t.Errorf("the page says %q, and the longest wait is %q", headline, row)
		}
	})
	t.Run("keyboard", func(t *testing.T) { keyboard(t, b, base, f) })

	pages := map[string]string{ // with the element that appears when they are loaded
		"fleet":     ".tile[data-gpu]",
		"workloads": "tbody tr",
		"serving":   "tbody tr",
		"queue":     "td .pill",
		"health":    ".event",
		"cost":      ".parts",
	}
	for i, health := range f.GPUs.Health {
		if health <= 0 {
			pages["gpu/"+url.PathEscape(f.GPUs.UUID[i])] = ".facts"
			break
		}
	}
	pages["workload/"+url.PathEscape(f.Owners[0].ID)] = ".stats"
	pages["model/"+url.PathEscape("mistralai/Mistral-Large-Instruct-2411")] = ".stats"
	t.Run("narrow", func(t *testing.T) {
		b.run(t, chromedp.EmulateViewport(390, 844))
		for page, there := range pages {
			b.open(t, base+"/#/"+page, there)
			var width int
			b.run(t, chromedp.Evaluate(`document.documentElement.scrollWidth`, &width))
			if width > 390 {
				t.Errorf("%s is %d pixels wide on a phone with 390", page, width)
			}
		}
		b.run(t, chromedp.EmulateViewport(1440, 900))
	})
	for _, theme := range []string{"light", "dark"} {
		t.Run("accessible, "+theme, func(t *testing.T) {
			axe, err := os.ReadFile("../web/node_modules/axe-core/axe.min.js")
			if err != nil {
				skip(t, "axe-core", err)
			}
			b.theme(t, theme)
			for page, there := range pages {
				b.open(t, base+"/#/"+page, there)
				violations(t, b, page, string(axe))
			}
		})
	}
	if *updateImages {
		images(t, b, base, pages)
	}
	b.clean(t, base)
}

// keyboard uses the page without a mouse.
func keyboard(t *testing.T, b *browser, base string, f fleet) {
	t.Helper()
	var focused, hash string
	b.open(t, base+"/#/fleet", ".tile[data-gpu]")
	b.run(t, chromedp.Focus(`.tile[tabindex="0"]`), chromedp.KeyEvent("\u0304"), // arrow right, in chromedp's keys
		chromedp.Evaluate(`document.activeElement.dataset.gpu ?? ""`, &focused))
	if !slices.Contains(f.GPUs.UUID, focused) {
		t.Errorf("the arrow key moves the focus to %q", focused)
	}
	// Results come and go while the name is typed.
	b.run(t, chromedp.KeyEvent("/"), chromedp.WaitVisible("dialog input"), chromedp.SendKeys("dialog input", f.Owners[0].Name))
	eventually(t, "search", func() error {
		var hits string
		if b.run(t, chromedp.Evaluate(`document.querySelector("dialog ul")?.textContent ?? ""`, &hits)); !strings.Contains(hits, f.Owners[0].Name) {
			return fmt.Errorf("searching for %s finds %q", f.Owners[0].Name, hits)
		}
		return nil
	})
	eventually(t, "the result", func() error { // on a busy machine the list may be made anew just then
		var open bool
		if b.run(t, chromedp.Evaluate(`document.querySelector("dialog") !== null`, &open), chromedp.Location(&hash)); open {
			b.run(t, chromedp.KeyEvent("\r"))
			return errors.New("the dialog is still there")
		}
		return nil
	})
	if !strings.Contains(hash, "#/workload") {
		t.Errorf("searching for %s leads to %s", f.Owners[0].Name, hash)
	}
	// A busy machine may be too slow for a two-key shortcut.
	press := func(there string, keys ...string) {
		t.Helper()
		eventually(t, strings.Join(keys, " "), func() error {
			for _, k := range keys {
				b.run(t, chromedp.KeyEvent(k))
			}
			var found bool
			if b.run(t, chromedp.Evaluate(fmt.Sprintf(`document.querySelector(%q) !== null`, there), &found)); !found {
				return fmt.Errorf("there is no %s", there)
			}
			return nil
		})
	}
	press("dialog .help", "?")
	eventually(t, "closing the help", func() error { // a key that was pressed again may open it again
		var open bool
		if b.run(t, chromedp.Evaluate(`document.querySelector("dialog button")?.click(), document.querySelector("dialog") !== null`, &open)); open {
			return errors.New("it is still there")
		}
		return nil
	})
	press(`nav a[href="#/cost"][aria-current]`, "g", "c")
}

// violations reports what axe-core rates serious or worse.
func violations(t *testing.T, b *browser, page, axe string) {
	t.Helper()
	var found []struct {
		ID, Impact, Help string
		Nodes            []string
	}
	b.run(t, chromedp.Evaluate(axe+";0", nil), chromedp.Evaluate(
		`axe.run(document, {resultTypes: ["violations"]}).then(r => r.violations.map(v => ({id: v.id, impact: v.impact, help: v.help, nodes: v.nodes.slice(0, 3).map(n => n.html.slice(0, 300) + " " + n.failureSummary)})))`,
		&found, awaitPromise))
	for _, v := range found {
		if v.Impact == "serious" || v.Impact == "critical" {
			t.Errorf("%s: %s (%s): %s\n%s", page, v.ID, v.Impact, v.Help, strings.Join(v.Nodes, "\n"))
		}
	}
}

// images writes the screenshots of the documentation.
func images(t *testing.T, b *browser, base string, pages map[string]string) {
	t.Helper()
	if err := os.MkdirAll("../docs/img", 0o755); err != nil {
		t.Fatal(err)
	}
	for _, theme := range []string{"light", "dark"} {
		b.theme(t, theme)
		for page, there := range pages {
			b.run(t, chromedp.EmulateViewport(1280, 860))
			b.open(t, base+"/#/"+page, there)
			name, _, _ := strings.Cut(page, "/")
			var png []byte
			b.run(t, chromedp.Sleep(time.Second), chromedp.CaptureScreenshot(&png)) // charts load a little later
			if err := os.WriteFile(filepath.Join("../docs/img", name+"-"+theme+".png"), png, 0o644); err != nil {
				t.Fatal(err)
			}
			if len(png) > 250_000 {
				t.Errorf("%s-%s.png has %d bytes", name, theme, len(png))
			}
		}
	}
}

// Catches a page that does not show that the hub is down, does not recover when the hub restarts, or loses
// data.
func TestPageRestart(t *testing.T) {
	t.Parallel()
	b := openBrowser(t)
	b.forgive("net::ERR_CONNECTION_REFUSED") // expected while the hub is down
	binary := gpumeter(t)
	l, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	address, base := l.Addr().String(), "http://"+l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	run := func() *process {
		return start(t, binary, "hub", "--data-dir", dir, "--listen", address, "--listen-grpc", "")
	}
	hub := run()
	eventually(t, "the hub is ready", func() error { _, err := get(t, base+"/readyz"); return err })
	b.run(t, chromedp.Navigate(base+"/"), chromedp.WaitVisible(".empty")) // no GPU yet
	agent := start(t, binary, "agent", "--simulate", "mixed", "--interval", "1s", "--listen", "localhost:0", "--socket", "", "--state-dir", "", "--otlp-endpoint", base)
	b.run(t, chromedp.WaitVisible(".tile[data-gpu]"))
	before := fleetOf(t, base)
	var shown []string
	const all = `[...document.querySelectorAll(".tile[data-gpu]")].map(e => e.dataset.gpu).sort()`
	b.run(t, chromedp.Evaluate(all, &shown))
	agent.stop(t)
	hub.stop(t)
	b.run(t, chromedp.WaitVisible(".banner"))
	run()
	b.run(t, chromedp.WaitNotPresent(".banner"), chromedp.WaitVisible(".tile[data-gpu]"))
	var again []string
	b.run(t, chromedp.Evaluate(all, &again))
	if len(shown) == 0 || !slices.Equal(shown, again) || len(again) != len(before.GPUs.UUID) {
		t.Errorf("%d GPUs before the restart, %d after, of %d", len(shown), len(again), len(before.GPUs.UUID))
	}
	b.clean(t, base)
}

// browser is a Chromium for one test.
type browser struct {
	ctx context.Context //nolint:containedctx // chromedp keeps the browser in it
	watch
}

func openBrowser(t *testing.T) *browser {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		skip(t, "chromium", err)
	}
	if _, err := os.Stat("../internal/hub/ui/dist/index.html"); err != nil {
		skip(t, "npm", fmt.Errorf("make web has not built the page: %w", err))
	}
	dir, err := os.MkdirTemp("", "chromium")
	if err != nil {
		t.Fatal(err)
	}
	// Processes of the browser write into it for a moment after the first of them has ended.
	t.Cleanup(func() { await.NoError(t, func() error { return os.RemoveAll(dir) }) })
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.UserDataDir(dir), chromedp.WSURLReadTimeout(time.Hour))
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), options...) // the test's own ends before cleanup
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx, chromedp.WithErrorf(func(string, ...any) {})) // chromedp does not know events of newer browsers
	t.Cleanup(cancel)
	b := &browser{ctx: ctx}
	chromedp.ListenTarget(ctx, b.note)
	b.run(t, watchAll()...)
	b.theme(t, "light")
	return b
}

// run performs actions in the browser, in order.
func (b *browser) run(t *testing.T, actions ...chromedp.Action) {
	t.Helper()
	// The first one starts the browser, whose life is that of the context it is started with.
	if chromedp.FromContext(b.ctx).Browser == nil {
		if err := chromedp.Run(b.ctx); err != nil {
			t.Fatalf("cannot start the browser: %v", err)
		}
	}
	if err := chromedp.Run(b.ctx, actions...); err != nil {
		var body string
		_ = chromedp.Run(b.ctx, chromedp.Evaluate(`location.href + "\n" + document.body.innerText.slice(0, 2000)`, &body)) // for the message only
		t.Fatalf("in the browser: %v\n%s", err, body)
	}
}

// open navigates to an address and waits for an element.
func (b *browser) open(t *testing.T, address, there string) {
	t.Helper()
	b.run(t, chromedp.Navigate("about:blank"), chromedp.Navigate(address), chromedp.WaitVisible(there))
}

func (b *browser) theme(t *testing.T, theme string) {
	t.Helper()
	b.run(t, emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: theme}}))
}
