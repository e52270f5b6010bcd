//go:build e2e

package e2e

import (
	"strings"
	"sync"
	"testing"

	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// watch records console errors and request URLs of a browser.
type watch struct {
	mu       sync.Mutex
	errors   []string
	requests map[string]bool
	pardoned string
}

func watchAll() []chromedp.Action {
	return []chromedp.Action{runtime.Enable(), cdplog.Enable(), network.Enable()}
}

// forgive names an expected error.
func (w *watch) forgive(text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pardoned = text
}

func (w *watch) note(event any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		w.errors = append(w.errors, "exception: "+e.ExceptionDetails.Error())
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.APITypeError || e.Type == runtime.APITypeWarning {
			text := string(e.Type)
			for _, a := range e.Args {
				text += " " + string(a.Value)
			}
			w.errors = append(w.errors, text)
		}
	case *cdplog.EventEntryAdded:
		if e.Entry.Level == cdplog.LevelError && (w.pardoned == "" || !strings.Contains(e.Entry.Text, w.pardoned)) {
			w.errors = append(w.errors, e.Entry.Text+" "+e.Entry.URL)
		}
	case *network.EventRequestWillBeSent:
		if w.requests == nil {
			w.requests = map[string]bool{}
		}
		w.requests[e.Request.URL] = true
	}
}

// clean reports console errors, and requests to any other server than the hub.
func (w *watch) clean(t *testing.T, base string) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.errors {
		t.Errorf("console error: %s", e)
	}
	for url := range w.requests {
		if !strings.HasPrefix(url, base+"/") && !strings.HasPrefix(url, "about:") && !strings.HasPrefix(url, "data:") {
			t.Errorf("the page requests %s", url)
		}
	}
	if len(w.requests) == 0 {
		t.Error("no request was seen")
	}
}

// awaitPromise waits for the promise of a script.
func awaitPromise(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }
