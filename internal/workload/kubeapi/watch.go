package kubeapi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

const (
	// listTimeout bounds one page of a list. A server that has to read all pods of a large
	// cluster takes a while.
	listTimeout = time.Minute
	pageSize    = 500
	// maxPages bounds a list that never ends.
	maxPages = 200
	// maxObject bounds one object. etcd accepts 1.5 MiB.
	maxObject = 4 << 20
	// maxList bounds one list response, of which only one object is held in memory at a time.
	maxList = 256 << 20

	// A watch is requested for 5 to 10 minutes, so that watches do not all end at once. A
	// watch that exceeds that by watchGrace hangs.
	watchAtLeast = 5 * time.Minute
	watchGrace   = 15 * time.Second
	// A watch that ends before watchShort failed, and one that lasted watchLong worked.
	watchShort = time.Second
	watchLong  = time.Minute
)

// Resource is a kind of object of the API server.
type Resource struct {
	Path  []string   // such as api, v1, pods
	Kind  string     // of one object, such as Pod
	Query url.Values // selectors; nil: all objects
	_     struct{}   // enforces keyed literals
}

// name returns what an error calls the objects: pods.
func (r *Resource) name() string { return r.Path[len(r.Path)-1] }

func (r *Resource) query() url.Values {
	q := maps.Clone(r.Query)
	if q == nil {
		q = url.Values{}
	}
	return q
}

// follower keeps a copy of the objects of a resource current.
type follower struct {
	rest     *rest
	resource Resource
	// from is the minimum version of the first list. "0" accepts any version, which makes the start of all agents
	// cheap, but the server then ignores the size of a page. Empty means the newest.
	from string

	// begin is called before the first object of a list, and again if a list has to start over, item reads
	// one object of it, and done says that the list is complete: it replaces what was known.
	begin func()
	item  func(*values) error
	done  func()
	// change takes a change, and returns the version of the object.
	change func(kind string, object json.RawMessage) (version string, err error)
	// report is called with the result of each list, and of watches as far as they say something new.
	report func(context.Context, error)
}

// run keeps the objects current until ctx is done: it lists them, and then watches for
// changes.
//
// https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
func (f *follower) run(ctx context.Context) {
	// version is where a watch continues, and the minimum version of a list.
	version, listed := f.from, false
	var b backoff
	for ctx.Err() == nil {
		var err error
		if !listed {
			if version, err = f.list(ctx, version); err == nil {
				listed = true
			}
			f.report(ctx, err)
		}
		if listed {
			began := time.Now()
			version, listed, err = f.watch(ctx, version)
			took := time.Since(began)
			if took >= watchLong || err == nil && took >= watchShort {
				b.next(nil)
			}
			if err == nil && took < watchShort {
				err = fmt.Errorf("watch of the %s ended at once", f.resource.name())
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

// list replaces what is known by a list at least as new as version, and returns the
// version of that list, or the given version on failure.
func (f *follower) list(ctx context.Context, version string) (string, error) {
	q := f.resource.query()
	if version != "" {
		q.Set("resourceVersion", version)
	}
	if version == "" || version == "0" { // with another version, paging would mean exactly that version
		q.Set("limit", strconv.Itoa(pageSize))
	}
	f.begin()
	for range maxPages {
		page, err := f.page(ctx, q)
		if expired(err) && q.Has("continue") {
			// The rest of the list has expired. An unpaged list cannot expire.
			f.begin()
			q = f.resource.query()
			continue
		}
		if err != nil {
			return version, err
		}
		if page.Continue == "" {
			f.done()
			return page.ResourceVersion, nil
		}
		q.Set("continue", page.Continue)
		q.Del("resourceVersion") // the token contains it
	}
	return version, fmt.Errorf("list of the %s has more than %d pages: %w", f.resource.name(), maxPages, errNonsense)
}

func (f *follower) page(ctx context.Context, q url.Values) (listMeta, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	body, err := f.rest.open(ctx, plainJSON, f.resource.Path, q)
	if err != nil {
		return listMeta{}, err
	}
	defer body.Close()
	return decodeList(&bounded{body, maxList}, &f.resource, f.item)
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

// decodeList decodes a page of a list, one object at a time.
func decodeList(r io.Reader, of *Resource, item func(*values) error) (listMeta, error) {
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
			return v.items(item)
		default:
			return v.next(new(json.RawMessage))
		}
	})
	if err != nil {
		return listMeta{}, unreadable("the list of "+of.name(), err)
	}
	if kind != of.Kind+"List" || page.ResourceVersion == "" {
		// Anything else must not be mistaken for a server without such objects.
		return listMeta{}, fmt.Errorf("cannot read the list of %s: %w: a %q of version %q", of.name(), errNonsense, kind, page.ResourceVersion)
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

func (v *values) items(item func(*values) error) error {
	ok, err := v.delim('[')
	if err != nil || !ok {
		return err
	}
	for v.More() {
		if err := item(v); err != nil {
			return err
		}
	}
	_, err = v.delim(']')
	return err
}

// watch applies changes since version until the watch ends, and returns how far it got.
// more reports whether a watch can continue there; otherwise the objects must be listed again.
func (f *follower) watch(parent context.Context, version string) (last string, more bool, err error) {
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	length := watchAtLeast + rand.N(watchAtLeast)
	// A server ends a watch after the requested time. A server that hangs does not.
	end := time.AfterFunc(length+watchGrace, cancel)
	defer end.Stop()
	q := f.resource.query()
	q.Set("watch", "true")
	q.Set("allowWatchBookmarks", "true")
	q.Set("resourceVersion", version)
	q.Set("timeoutSeconds", strconv.Itoa(int(length/time.Second)))
	body, err := f.rest.open(ctx, plainJSON, f.resource.Path, q)
	if err != nil {
		if !expired(err) { // only requires a new list
			f.report(parent, err)
		}
		return version, mayGoOn(err), err
	}
	defer body.Close()
	f.report(parent, nil)
	for v := newValues(body); ; {
		var raw json.RawMessage
		err := v.next(&raw)
		if errors.Is(err, io.EOF) || err != nil && ctx.Err() != nil {
			return version, true, nil
		}
		var at string
		if err != nil {
			err = unreadable("the watch of the "+f.resource.name(), err)
		} else if at, err = f.take(raw); err == nil {
			version = cmp.Or(at, version)
			continue
		}
		broken := errors.Is(err, errNonsense) || code(err) != 0
		if broken && !expired(err) {
			f.report(parent, err)
		}
		return version, !broken, err
	}
}

// take applies one value of a watch and returns its version.
func (f *follower) take(raw []byte) (string, error) {
	kind, object, err := parseFrame(raw)
	if err != nil {
		return "", err
	}
	if kind == bookmark {
		return versionOf(object)
	}
	return f.change(kind, object)
}

// versionOf returns the version of any object.
func versionOf(object []byte) (string, error) {
	var o struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(object, &o); err != nil {
		return "", unreadable("an object of a watch", err)
	}
	return o.Metadata.ResourceVersion, nil
}

// mayGoOn reports whether the same watch may be requested again after err: the server was
// unreachable or overloaded.
func mayGoOn(err error) bool {
	c := code(err)
	return !expired(err) && (c == 0 || c == http.StatusTooManyRequests || c >= 500)
}

// Event types of a watch, including errors.
const (
	added    = "ADDED"
	modified = "MODIFIED"
	deleted  = "DELETED"
	bookmark = "BOOKMARK" // only the version changed
	failed   = "ERROR"
)

// parseFrame parses one value of a watch. The error is a *statusError if the value is one.
func parseFrame(b []byte) (kind string, object json.RawMessage, err error) {
	var frame struct {
		Type   string          `json:"type"`
		Object json.RawMessage `json:"object"`
	}
	if err := json.Unmarshal(b, &frame); err != nil {
		return "", nil, unreadable("an event of a watch", err)
	}
	switch frame.Type {
	case failed:
		var status struct {
			Code int `json:"code"`
		}
		if err := json.Unmarshal(frame.Object, &status); err != nil {
			return "", nil, unreadable("an error of a watch", err)
		}
		return "", nil, parseStatus(frame.Object, cmp.Or(status.Code, http.StatusInternalServerError), "")
	case added, modified, deleted, bookmark:
		return frame.Type, frame.Object, nil
	}
	return "", nil, fmt.Errorf("cannot parse a watch event: %w: its type is %.20q", errNonsense, frame.Type)
}
