package kubeapi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

const (
	// listTimeout bounds one page of pods. A server that has to read all pods of a large
	// cluster takes a while.
	listTimeout = time.Minute
	pageSize    = 500
	// maxPages bounds a list that never ends.
	maxPages = 200
	// maxObject bounds one pod. etcd accepts 1.5 MiB.
	maxObject = 4 << 20
	// maxList bounds one list response, of which only one pod is held in memory at a time.
	maxList = 256 << 20

	// A watch is requested for 5 to 10 minutes, so that watches do not all end at once. A
	// watch that exceeds that by watchGrace hangs.
	watchAtLeast = 5 * time.Minute
	watchGrace   = 15 * time.Second
	// A watch that ends before watchShort failed, and one that lasted watchLong worked.
	watchShort = time.Second
	watchLong  = time.Minute
)

var podsPath = []string{"api", "v1", "pods"}

// followPods keeps the pods current until ctx is done: it lists them, and then watches for
// changes.
//
// https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
func (c *Client) followPods(ctx context.Context) {
	// version is where a watch continues, and the minimum version of a list. "0" accepts
	// any version, which makes the start of all agents cheap. Empty means the newest.
	version, listed := "0", false
	var b backoff
	for ctx.Err() == nil {
		var err error
		if !listed {
			if version, err = c.listPods(ctx, version); err == nil {
				listed = true
			}
			c.health.set(ctx, Pods, err)
		}
		if listed {
			began := time.Now()
			version, listed, err = c.watchPods(ctx, version)
			took := time.Since(began)
			if took >= watchLong || err == nil && took >= watchShort {
				b.next(nil)
			}
			if err == nil && took < watchShort {
				err = errors.New("watch of the pods ended at once")
			}
		}
		if expired(err) {
			version = ""
		}
		if err != nil && !sleep(ctx, b.next(err)) {
			return
		}
	}
}

func (c *Client) podQuery() url.Values {
	return url.Values{"fieldSelector": {"spec.nodeName=" + c.cfg.Node}}
}

// listPods replaces what is known by a list at least as new as version, and returns the
// version of that list, or the given version on failure.
func (c *Client) listPods(ctx context.Context, version string) (string, error) {
	q := c.podQuery()
	if version != "" {
		q.Set("resourceVersion", version)
	}
	if version == "" || version == "0" { // with another version, paging would mean exactly that version
		q.Set("limit", strconv.Itoa(pageSize))
	}
	var l podList
	for range maxPages {
		page, err := c.listPage(ctx, q, &l)
		if expired(err) && q.Has("continue") {
			// The rest of the list has expired. An unpaged list cannot expire.
			l = podList{}
			q = c.podQuery()
			continue
		}
		if err != nil {
			return version, err
		}
		if page.Continue == "" {
			c.pods.replace(l.pods, l.refused)
			return page.ResourceVersion, nil
		}
		q.Set("continue", page.Continue)
		q.Del("resourceVersion") // the token contains it
	}
	return version, fmt.Errorf("list of the pods has more than %d pages: %w", maxPages, errNonsense)
}

// podList is the pods of the pages so far.
type podList struct {
	pods    []*pod
	refused int
}

func (c *Client) listPage(ctx context.Context, q url.Values, l *podList) (listMeta, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	body, err := c.rest.open(ctx, plainJSON, podsPath, q)
	if err != nil {
		return listMeta{}, err
	}
	defer body.Close()
	page, err := decodePods(&bounded{body, maxList}, func(p *podObject) {
		switch {
		case p.Spec.NodeName != c.cfg.Node: // a server or proxy that ignores the selector
		case len(l.pods) >= maxPods:
			l.refused++
		default:
			l.pods = append(l.pods, c.pods.strip(p))
		}
	})
	if errors.Is(err, errTooLong) {
		c.pods.refuse()
	}
	return page, err
}

// listMeta is the metadata of a page.
type listMeta struct {
	ResourceVersion string `json:"resourceVersion"`
	Continue        string `json:"continue"`
}

// errNonsense means that an answer is invalid, and that reading it again will not help.
var errNonsense = errors.New("not a valid Kubernetes API response")

// errTooLong means that a size limit was reached.
var errTooLong = errors.New("too long")

// unreadable wraps an error from reading what. It is errNonsense unless the connection
// failed.
func unreadable(what string, err error) error {
	_, syntax := errors.AsType[*json.SyntaxError](err)
	_, kind := errors.AsType[*json.UnmarshalTypeError](err)
	if syntax || kind || errors.Is(err, errTooLong) {
		return fmt.Errorf("cannot read %s: %w: %w", what, errNonsense, err)
	}
	return fmt.Errorf("cannot read %s: %w", what, err)
}

// bounded is a reader that fails with errTooLong after left bytes.
type bounded struct {
	r    io.Reader
	left int
}

// Read implements io.Reader.
func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errTooLong
	}
	n, err := b.r.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

// values reads consecutive JSON values, each of at most maxObject bytes plus what was
// buffered.
type values struct {
	in bounded
	*json.Decoder
}

func newValues(r io.Reader) *values {
	v := &values{in: bounded{r: r}}
	v.Decoder = json.NewDecoder(&v.in)
	return v
}

func (v *values) next(into any) error {
	v.in.left = maxObject
	return v.Decode(into)
}

// delim reads a bracket, or null in place of an empty list.
func (v *values) delim(want json.Delim) (ok bool, err error) {
	v.in.left = maxObject
	t, err := v.Token()
	if err != nil {
		return false, err
	}
	if t == nil && want == '[' {
		return false, nil
	}
	if t != want {
		return false, fmt.Errorf("%w: %v instead of %v", errNonsense, t, want)
	}
	return true, nil
}

// decodePods decodes a page of a pod list, one pod at a time.
func decodePods(r io.Reader, each func(*podObject)) (listMeta, error) {
	var page listMeta
	var kind string
	v := newValues(r)
	err := v.fields(func(key string) error {
		switch key {
		case "kind":
			return v.next(&kind)
		case "metadata":
			return v.next(&page)
		case "items":
			return v.items(each)
		default:
			return v.next(new(json.RawMessage))
		}
	})
	if err != nil {
		return listMeta{}, unreadable("the list of pods", err)
	}
	if kind != "PodList" || page.ResourceVersion == "" {
		// Anything else must not be mistaken for a node without pods.
		return listMeta{}, fmt.Errorf("cannot read the list of pods: %w: a %q of version %q", errNonsense, kind, page.ResourceVersion)
	}
	return page, nil
}

// fields calls value at the value of each field of an object.
func (v *values) fields(value func(key string) error) error {
	if _, err := v.delim('{'); err != nil {
		return err
	}
	for v.More() {
		v.in.left = maxObject
		key, err := v.Token()
		if err != nil {
			return err
		}
		name, _ := key.(string) // cannot be anything else
		if err := value(name); err != nil {
			return err
		}
	}
	_, err := v.delim('}')
	return err
}

func (v *values) items(each func(*podObject)) error {
	ok, err := v.delim('[')
	if err != nil || !ok {
		return err
	}
	for v.More() {
		var p podObject
		if err := v.next(&p); err != nil {
			return err
		}
		if err := p.check(); err != nil {
			return err
		}
		each(&p)
	}
	_, err = v.delim(']')
	return err
}

// watchPods applies changes since version until the watch ends, and returns how far it got.
// more reports whether a watch can continue there; otherwise the pods must be listed again.
func (c *Client) watchPods(parent context.Context, version string) (last string, more bool, err error) {
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	length := watchAtLeast + rand.N(watchAtLeast)
	// A server ends a watch after the requested time. A server that hangs does not.
	end := time.AfterFunc(length+watchGrace, cancel)
	defer end.Stop()
	q := c.podQuery()
	q.Set("watch", "true")
	q.Set("allowWatchBookmarks", "true")
	q.Set("resourceVersion", version)
	q.Set("timeoutSeconds", strconv.Itoa(int(length/time.Second)))
	body, err := c.rest.open(ctx, plainJSON, podsPath, q)
	if err != nil {
		if !expired(err) { // only requires a new list
			c.health.set(parent, Pods, err)
		}
		return version, mayGoOn(err), err
	}
	defer body.Close()
	c.health.set(parent, Pods, nil)
	for v := newValues(body); ; {
		var raw json.RawMessage
		err := v.next(&raw)
		if errors.Is(err, io.EOF) || err != nil && ctx.Err() != nil {
			return version, true, nil
		}
		var e event
		if err != nil {
			err = unreadable("the watch of the pods", err)
		} else if e, err = parseEvent(raw); err == nil {
			version = cmp.Or(e.pod.Metadata.ResourceVersion, version)
			c.take(e)
			continue
		}
		if errors.Is(err, errTooLong) {
			c.pods.refuse()
		}
		broken := errors.Is(err, errNonsense) || code(err) != 0
		if broken && !expired(err) {
			c.health.set(parent, Pods, err)
		}
		return version, !broken, err
	}
}

// mayGoOn reports whether the same watch may be requested again after err: the server was
// unreachable or overloaded.
func mayGoOn(err error) bool {
	c := code(err)
	return !expired(err) && (c == 0 || c == http.StatusTooManyRequests || c >= 500)
}

func (c *Client) take(e event) {
	switch {
	case e.kind == bookmark:
	case e.kind == deleted:
		c.pods.remove(c.pods.strip(&e.pod))
	case e.pod.Spec.NodeName == c.cfg.Node: // the selector again
		c.pods.update(c.pods.strip(&e.pod))
	}
}

// event is a change of a pod.
type event struct {
	kind string
	pod  podObject
}

// Event types of a watch, including errors.
const (
	added    = "ADDED"
	modified = "MODIFIED"
	deleted  = "DELETED"
	bookmark = "BOOKMARK" // only the version changed
	failed   = "ERROR"
)

// parseEvent parses one value of a watch. The error is a *statusError if the event is one.
func parseEvent(b []byte) (event, error) {
	var frame struct {
		Type   string          `json:"type"`
		Object json.RawMessage `json:"object"`
	}
	if err := json.Unmarshal(b, &frame); err != nil {
		return event{}, unreadable("an event of a pod", err)
	}
	e := event{kind: frame.Type}
	switch frame.Type {
	case failed:
		var status struct {
			Code int `json:"code"`
		}
		if err := json.Unmarshal(frame.Object, &status); err != nil {
			return event{}, unreadable("an error of a watch", err)
		}
		return event{}, parseStatus(frame.Object, cmp.Or(status.Code, http.StatusInternalServerError), "")
	case added, modified, deleted, bookmark:
	default:
		return event{}, fmt.Errorf("cannot parse a watch event: %w: its type is %.20q", errNonsense, frame.Type)
	}
	if err := json.Unmarshal(frame.Object, &e.pod); err != nil {
		return event{}, unreadable("a pod", err)
	}
	if frame.Type != bookmark {
		if err := e.pod.check(); err != nil {
			return event{}, err
		}
	}
	return e, nil
}
