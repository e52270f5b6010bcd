package discover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"

	"github.com/gpumeter/gpumeter/internal/inference"
	"github.com/gpumeter/gpumeter/internal/promtext"
)

// verdict is what is known about a socket.
type verdict int

const (
	undecided verdict = iota // it is asked again
	none                     // no engine is behind it
	found
)

// answer is the outcome of asking a socket.
type answer struct {
	verdict
	scheme      string
	path        string
	format      inference.Format
	fingerprint uint64 // of the page: what it is about, whatever its values
	hungUp      bool   // undecided: it hung up without an answer
	err         error  // why it is undecided
}

// asker asks one socket. It changes nothing there.
type asker struct {
	inference.Target
	slots    inference.Slots // who parses a page has one
	tensorRT bool            // it is trtllm-serve: its /metrics must not be read, which empties it
	hint     string          // where its pod says that the page is, or empty
}

// askEither finds out whether an engine is behind the socket, and falls back to plain HTTP if the pod's scheme is wrong.
func (a *asker) askEither(ctx context.Context) answer {
	out := a.ask(ctx)
	if out.verdict != none || a.URL.Scheme == "http" || ctx.Err() != nil {
		return out
	}
	u := *a.URL
	u.Scheme = "http"
	plain := *a
	plain.URL = &u
	return plain.ask(ctx)
}

// ask finds out whether an engine is behind the socket.
func (a *asker) ask(ctx context.Context) (out answer) {
	defer func() {
		if p := recover(); p != nil { // a page that ends the parser is not read again
			out = answer{verdict: none, err: fmt.Errorf("the parser panicked: %v", p)}
		}
	}()
	if again, no := a.models(ctx); no {
		return again
	}
	const usual, safe = "/metrics", "/prometheus/metrics"
	paths := []string{usual, "/v1/metrics"} // NIM has the second
	if a.tensorRT {
		paths = []string{safe}
	}
	if a.hint != "" && !slices.Contains(paths, a.hint) && (!a.tensorRT || a.hint != usual) {
		paths = slices.Insert(paths, 0, a.hint)
	}
	var later *answer // what was undecided
	other := false    // another program has a page there
	for i := 0; i < len(paths); i++ {
		out, err := a.page(ctx, paths[i])
		if errors.Is(err, inference.ErrNotPage) && !a.tensorRT { // only trtllm-serve has that, and it hid well
			a.tensorRT, paths = true, append(paths[:i+1], safe)
		}
		switch {
		case out.verdict == found, err != nil && !isRefusal(err):
			return out
		case out.verdict == undecided:
			later = cmp.Or(later, &out)
		case err == nil:
			other = true
		}
	}
	switch {
	case later != nil:
		return *later
	case other, a.tensorRT:
		return answer{verdict: none}
	}
	return a.ollama(ctx)
}

// models asks for the models, which tells trtllm-serve from others. no is set if no other question may follow.
func (a *asker) models(ctx context.Context) (again answer, no bool) {
	b, err := a.Ask(ctx, "/v1/models")
	if err != nil {
		again = judge(err)
		return again, again.verdict == undecided || !isRefusal(err)
	}
	a.tensorRT = a.tensorRT || inference.IsTensorRT(b)
	return answer{}, false
}

// errPeople reports a page that is not for programs.
var errPeople = errors.New("the answer is not a metrics page")

// errEarly reports a page that may be an engine's.
var errEarly = errors.New("the page has no family of an engine yet")

// page asks for a metrics page.
func (a *asker) page(ctx context.Context, path string) (answer, error) {
	u := *a.URL
	u.Path = path
	b, err := (&inference.Target{URL: &u, Client: a.Client}).Page(ctx)
	if err != nil {
		return judge(err), err
	}
	out := answer{verdict: none}
	if stop := a.slots.Use(ctx, func() {
		text := promtext.Scan(b)
		if len(text.Samples) == 0 && text.Bad > 0 {
			out.err, err = errPeople, errPeople
			return
		}
		switch r := inference.Read(text, ""); {
		case len(r.Providers) > 0:
			out = answer{verdict: found, scheme: u.Scheme, path: path, fingerprint: fingerprint(text)}
		case r.Early: // some have no family before their first request
			out = answer{err: errEarly}
		}
	}); stop != nil {
		return answer{err: stop}, stop
	}
	return out, err
}

// ollama asks whether the socket is Ollama's, which has no metrics page.
func (a *asker) ollama(ctx context.Context) answer {
	b, err := a.Ask(ctx, "/")
	if err != nil {
		return judge(err)
	}
	if !strings.Contains(string(b[:min(len(b), 1024)]), "Ollama is running") {
		return answer{verdict: none}
	}
	const path = "/api/ps"
	if b, err = a.Ask(ctx, path); err != nil {
		return judge(err)
	}
	if _, err := inference.ReadOllama(b); err != nil {
		return answer{verdict: none}
	}
	return answer{verdict: found, scheme: a.URL.Scheme, path: path, format: inference.Ollama}
}

// isRefusal reports an answer that is no page, so that another path may have one.
func isRefusal(err error) bool {
	var status *inference.StatusError
	return errors.As(err, &status) || errors.Is(err, inference.ErrNotPage) || errors.Is(err, inference.ErrJSON) || errors.Is(err, errPeople)
}

// judge returns what an error says about the socket.
func judge(err error) answer {
	out := answer{verdict: none, err: err}
	var status *inference.StatusError
	var network *net.OpError
	var timeout net.Error
	var unreachable *unreachableError
	switch {
	case errors.Is(err, errGone), errors.Is(err, inference.ErrNotPage), errors.Is(err, inference.ErrTooLarge):
	case errors.As(err, &status):
		busy := status.Code == http.StatusTooManyRequests || status.Code == http.StatusRequestTimeout || status.Code >= 500
		if busy && status.Code != http.StatusNotImplemented {
			out.verdict = undecided
		}
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		out.verdict, out.hungUp = undecided, true
	case errors.As(err, &unreachable), errors.As(err, &timeout) && timeout.Timeout(), errors.Is(err, context.Canceled):
		out.verdict = undecided
	case errors.As(err, &network):
		out.verdict = undecided // refused: it does not listen yet, or no longer
	}
	return out
}

// fingerprint returns a number that is the same for pages about the same.
func fingerprint(text *promtext.Text) uint64 {
	names := make([]string, len(text.Samples))
	for i := range text.Samples {
		names[i] = text.Samples[i].Name
	}
	slices.Sort(names)
	h := fnv.New64a()
	for _, name := range slices.Compact(names) {
		_, _ = io.WriteString(h, name+"\n") // a hash does not fail
	}
	return h.Sum64()
}
