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
	// listTimeout bounds one page of the pods. A server that has to read all pods of a
	// large cluster for them takes its time.
	listTimeout = time.Minute
	pageSize    = 500
	// maxPages bounds a server that never comes to an end.
	maxPages = 200
	// maxObject bounds one pod. etcd takes 1.5 MiB.
	maxObject = 4 << 20
	// maxList bounds one answer with pods, of which never more than one is held whole.
	maxList = 256 << 20

	// A watch is asked to end after 5 to 10 minutes, so that not all do at once. One that
	// goes on for watchGrace longer hangs.
	watchAtLeast = 5 * time.Minute
	watchGrace   = 15 * time.Second
	// A watch that ends before watchShort was none, and one of watchLong worked.
	watchShort = time.Second
	watchLong  = time.Minute
)

var podsPath = []string{"api", "v1", "pods"}

// followPods keeps the pods current until ctx is done: it lists them, and from there on
// is told what changes.
//
// https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
func (c *Client) followPods(ctx context.Context) {
	// version is where a watch goes on, and what a list must not be older than. Zero: any
	// age will do, so that the start of all agents is cheap. Empty: the newest.
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

// listPods replaces what is known by a list that is not older than version, and returns
// the version of that list, or version again if it fails.
func (c *Client) listPods(ctx context.Context, version string) (string, error) {
	q := c.podQuery()
	if version != "" {
		q.Set("resourceVersion", version)
	}
	if version == "" || version == "0" { // a page of another version would be of exactly that one
		q.Set("limit", strconv.Itoa(pageSize))
	}
	var l podList
	for range maxPages {
		page, err := c.listPage(ctx, q, &l)
		if expired(err) && q.Has("continue") {
			// The rest of it is no longer known. All at once cannot expire.
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
		q.Del("resourceVersion") // it is in the token
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
		case p.Spec.NodeName != c.cfg.Node: // a server or a proxy that does not know the selector
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

// listMeta is what a page says of itself.
type listMeta struct {
	ResourceVersion string `json:"resourceVersion"`
	Continue        string `json:"continue"`
}

// errNonsense says that something is not what it should be, and will not be if it is only
// read again.
var errNonsense = errors.New("not what a server of Kubernetes sends")

// errTooLong says that a limit was reached.
var errTooLong = errors.New("too long")

// unreadable wraps an error of reading what. Where the connection failed it is no nonsense.
func unreadable(what string, err error) error {
	_, syntax := errors.AsType[*json.SyntaxError](err)
	_, kind := errors.AsType[*json.UnmarshalTypeError](err)
	if syntax || kind || errors.Is(err, errTooLong) {
		return fmt.Errorf("cannot read %s: %w: %w", what, errNonsense, err)
	}
	return fmt.Errorf("cannot read %s: %w", what, err)
}

// bounded is a reader that ends with errTooLong after left bytes.
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

// values reads one JSON value after the other, each of at most maxObject bytes and what
// was read ahead of it.
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

// delim reads a bracket, or null where that is allowed for none.
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

// decodePods reads a page of a list of pods, one at a time.
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
		// Something else must not be taken for a node without pods.
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
		name, _ := key.(string) // nothing else can be there
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

// watchPods takes over what changes since version until the watch ends, and returns up to
// where it came. More says that a watch can go on there; otherwise the pods must be
// listed.
func (c *Client) watchPods(parent context.Context, version string) (last string, more bool, err error) {
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	length := watchAtLeast + rand.N(watchAtLeast)
	// A server ends a watch after the time it was asked to. One that hangs does not.
	end := time.AfterFunc(length+watchGrace, cancel)
	defer end.Stop()
	q := c.podQuery()
	q.Set("watch", "true")
	q.Set("allowWatchBookmarks", "true")
	q.Set("resourceVersion", version)
	q.Set("timeoutSeconds", strconv.Itoa(int(length/time.Second)))
	body, err := c.rest.open(ctx, plainJSON, podsPath, q)
	if err != nil {
		if !expired(err) { // that only wants a list
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

// mayGoOn reports whether the same watch may be asked for again after err: the server
// could not be reached, or has too much to do.
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

// The kinds of events. An error is one, too.
const (
	added    = "ADDED"
	modified = "MODIFIED"
	deleted  = "DELETED"
	bookmark = "BOOKMARK" // only the version changed
	failed   = "ERROR"
)

// parseEvent reads one value of a watch. The error is a *statusError if that is what it
// says.
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
		return event{}, fmt.Errorf("cannot read an event of a pod: %w: its type is %.20q", errNonsense, frame.Type)
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
